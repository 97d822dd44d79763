"""Taking over from crashed consumers: XAUTOCLAIM, with the ledger's word on every job.

Entries that sat with one consumer for longer than a lease belong to a worker that died, or to a job
that has ended meanwhile. The lease decides, never the broker's idea of ownership.
"""

from __future__ import annotations

import logging

from lateack_core.jobs import Ledger
from lateack_core.process import Loop
from lateack_core.progress import announce
from lateack_core.stream import Broker, BrokerUnavailable, Entry, GroupMissing

from .dispatcher import Dispatcher, job_id_of
from .slots import Slots

log = logging.getLogger("lateack.reclaimer")

PAGES = 20
END = "0-0"


class Reclaimer:
    """Sweeps the streams of this worker's queues."""

    def __init__(
        self,
        queues: list[str],
        ledger: Ledger,
        broker: Broker,
        slots: Slots,
        dispatcher: Dispatcher,
        *,
        consumer: str,
        min_idle: float,
        interval: float,
        settle: float,
        max_losses: int,
    ) -> None:
        self._ledger = ledger
        self._broker = broker
        self._slots = slots
        self._dispatcher = dispatcher
        self._consumer = consumer
        self._min_idle = min_idle
        self._interval = interval
        self._settle = settle
        self._max_losses = max_losses
        # Kept between sweeps: a walk that always began at the start would never get past a page of
        # healthy entries (REC-03).
        self._cursors = {stream: END for queue in queues for stream in broker.streams(queue)}

    async def run(self, loop: Loop) -> None:
        """The loop."""
        while not loop.stopping:
            try:
                for stream in self._cursors:
                    await self._sweep(stream)
            except GroupMissing:
                # The reader makes it again.
                pass
            except BrokerUnavailable as error:
                log.debug("sweeping waits for the broker: %s", error)
            loop.beat(rest=self._interval * 1.3)
            await loop.pause(self._interval, jitter=0.3)

    async def _sweep(self, stream: str) -> None:
        for _ in range(PAGES):
            if not self._slots.free or self._ledger.postgres.settled_for < self._settle:
                return
            cursor, entries, ghosts = await self._broker.take_over(
                stream, self._consumer, self._min_idle, self._cursors[stream]
            )
            self._cursors[stream] = cursor
            if entries:
                await self._take(stream, entries)
            if ghosts and (gone := await self._broker.ghosts(stream, self._consumer)):
                await self._broker.ack(stream, gone)
            if cursor == END:
                return

    async def _take(self, stream: str, entries: list[Entry]) -> None:
        entries = [entry for entry in entries if not self._dispatcher.is_handling(entry)]
        ids = [job_id for entry in entries if (job_id := job_id_of(entry)) is not None]
        # Leases that have run out are ended first, so that the claim finds the jobs runnable.
        moved = await self._ledger.reap(ids, max_losses=self._max_losses)
        await announce(self._broker, moved)
        if moved:
            log.info("took over %d jobs of lost workers from %s", len(moved), stream)
        taken = self._slots.take(len(entries))
        if taken:
            self._dispatcher.dispatch(entries[:taken])
        if entries[taken:]:
            await self._dispatcher.hand_back(entries[taken:])
