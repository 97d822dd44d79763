"""From the outbox to the broker: at least once, in every process, with no transaction open.

A process publishes what it just committed at once (`Publisher`, optimistic); whatever that misses,
and whatever becomes due later, any process's `Relay` takes. A crash between publishing and deleting
repeats the publish, which the claim makes harmless.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

from .log import Throttled
from .postgres import Postgres
from .process import Loop
from .stream import Broker, BrokerUnavailable, Hint

log = logging.getLogger("lateack.outbox")

MOST = 500
# A relay that was killed between taking rows and publishing them delays those by this.
RELAY_LEASE = 5.0
# More than this waiting in memory is left to the relay.
BACKLOG = 20_000


class Fresh(NamedTuple):
    """An outbox row that this process has just committed."""

    outbox_id: int
    hint: Hint


class Publisher:
    """Publishes what this process committed, right after the commit."""

    def __init__(self, postgres: Postgres, broker: Broker) -> None:
        self._postgres = postgres
        self._broker = broker
        self._fresh: list[Fresh] = []
        self._published: list[int] = []
        self._wake = asyncio.Event()
        self._troubles = Throttled(log)
        self._down_until = 0.0

    def offer(self, rows: Sequence[Fresh]) -> None:
        """Publish these soon. When that fails nothing is lost: the relay has them soon."""
        if len(self._fresh) < BACKLOG and time.monotonic() >= self._down_until:
            self._fresh.extend(rows)
            self._wake.set()

    async def run(self, loop: Loop) -> None:
        """The loop; runs until the process stops, then publishes the rest."""
        loop.wake_at_stop(self._wake)
        while not (loop.stopping and not self._fresh and not self._published):
            loop.beat()
            if not self._fresh and not self._published:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), 1.0)
                self._wake.clear()
                continue
            await self._turn()

    async def _turn(self) -> None:
        batch, self._fresh = self._fresh[:MOST], self._fresh[MOST:]
        # While one batch is being published, the one before it is deleted.
        done, self._published = self._published, []
        results = await asyncio.gather(
            self._publish(batch), self._delete(done), return_exceptions=True
        )
        for error in results:
            if isinstance(error, BaseException) and not isinstance(error, Exception):
                raise error
            if isinstance(error, BrokerUnavailable):
                # The relay takes over; trying each submission anew would slow them all down.
                self._down_until = time.monotonic() + 1.0
                self._fresh.clear()
            if isinstance(error, Exception):
                self._troubles.warning(f"{type(error).__name__}: {error}", time.monotonic())

    async def _publish(self, batch: Sequence[Fresh]) -> None:
        if batch:
            added = await self._broker.publish([row.hint for row in batch])
            self._published += [row.outbox_id for row, ok in zip(batch, added, strict=True) if ok]

    async def _delete(self, done: Sequence[int]) -> None:
        if done:
            await self._postgres.fetch("delete_outbox", done)


class Relay:
    """Publishes whatever is due in the outbox, whoever wrote it."""

    def __init__(self, postgres: Postgres, broker: Broker, *, interval: float) -> None:
        self._postgres = postgres
        self._broker = broker
        self._interval = interval
        self._troubles = Throttled(log)

    async def run(self, loop: Loop) -> None:
        """The loop; one turn every `interval` seconds, at once again while there is a backlog."""
        while not loop.stopping:
            try:
                full = await self.turn()
            except BrokerUnavailable as error:
                # Rows wait in the ledger for as long as it takes; the loop itself is well.
                self._troubles.warning(
                    f"the broker is away, the outbox waits: {error}", time.monotonic()
                )
                await loop.pause(1.0, jitter=0.3)
                full = False
            loop.beat()
            if not full:
                await loop.pause(self._interval, jitter=0.2)

    async def turn(self) -> bool:
        """Publish what is due; true when there is more.

        Raises:
            LedgerUnavailable, BrokerUnavailable
        """
        # Rows are not even taken while the broker is away, or each would wait out its lease.
        await self._broker.ping()
        rows = await self._postgres.fetch("lease_outbox", RELAY_LEASE, MOST)
        if not rows:
            return False
        verdicts = {
            row["job_id"]: row
            for row in await self._postgres.fetch(
                "mark_runnable", [r["job_id"] for r in rows], [r["republish"] for r in rows]
            )
        }
        ready = [row for row in rows if verdicts[row["job_id"]]["ready"]]
        hints = [Hint(row["job_id"], row["queue"], row["priority"]) for row in ready]
        added = await self._broker.publish(hints) if hints else []
        done = [row["id"] for row, ok in zip(ready, added, strict=True) if ok]
        done += [
            row["id"]
            for row in rows
            if verdicts[row["job_id"]]["gone"] and not verdicts[row["job_id"]]["ready"]
        ]
        if done:
            await self._postgres.fetch("delete_outbox", done)
        return len(rows) == MOST
