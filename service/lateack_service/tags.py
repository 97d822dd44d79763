"""Reading progress streams: one task and one connection for each tag that is being watched.

All keys of a tag live in one slot of a cluster, so a single blocking read covers them all. A reader
only goes forward; whoever is slower than it reads the stream at its own pace (see following.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable
from uuid import UUID

import msgspec

from lateack_core.log import Throttled
from lateack_core.process import Loop
from lateack_core.progress import order, read_event
from lateack_core.stream import BlockingReader, Broker, BrokerUnavailable

from .sinks import Heard, Order, Sink

log = logging.getLogger("lateack.progress")

Rows = Iterable[tuple[str, str | None]]

_encode = msgspec.json.Encoder().encode


class Watched:
    """A job that somebody listens to. `cursor` is the newest event that was handed on."""

    def __init__(self, job_id: UUID, key: str, reader: TagReader) -> None:
        self.job_id = job_id
        self.key = key
        self.reader = reader
        self.cursor: Order | None = None
        self.sinks: set[Sink] = set()

    @property
    def blind(self) -> bool:
        """Whether events cannot be read now, so that the ledger is all there is."""
        return self.cursor is None or self.reader.failing

    def start_at(self, tail: Order) -> None:
        """Read on from here, unless that was settled before."""
        if self.cursor is None:
            self.cursor = tail
            self.reader.cursors_changed()

    def hear(self, rows: Rows) -> None:
        """Hand new events to every listener."""
        if self.cursor is None:
            # An answer to an older reading of this key. What counts comes again, from the cursor.
            return
        heard = [one for one in heard_of(rows) if one.at > self.cursor]
        if heard:
            self.cursor = heard[-1].at
            for sink in self.sinks:
                sink.push(heard)


class TagReader:
    """The one reader of a tag's streams in this process."""

    def __init__(self, broker: Broker, tag: int) -> None:
        self.tag = tag
        self.failing = False
        self.watched: dict[str, Watched] = {}
        self._reader: BlockingReader = broker.reader()
        self._changed = asyncio.Event()
        # Generations of the set of cursors: the wanted one, and the one being read.
        self._wanted = self._reading = 0
        self._nudge: asyncio.Task[None] | None = None
        self._troubles = Throttled(log)

    def cursors_changed(self) -> None:
        """Read the newest set of cursors soon, not only after the present wait."""
        self._wanted += 1
        self._changed.set()
        if self._nudge is None or self._nudge.done():
            self._nudge = asyncio.create_task(self._wake_until_read())

    async def run(self, loop: Loop) -> None:
        """The loop."""
        try:
            while not loop.stopping:
                loop.beat()
                await self._turn(loop)
        finally:
            await self._reader.close()

    async def wake(self) -> None:
        """End the present wait."""
        self._changed.set()
        await self._reader.wake()

    async def _turn(self, loop: Loop) -> None:
        self._reading = self._wanted
        cursors = {
            key: f"{one.cursor[0]}-{one.cursor[1]}"
            for key, one in self.watched.items()
            if one.cursor is not None
        }
        if not cursors:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._changed.wait()
            return
        try:
            found = await self._reader.wait_for_progress(cursors)
        except BrokerUnavailable as error:
            self.failing = True
            self._troubles.warning(f"progress cannot be read: {error}", time.monotonic())
            await loop.pause(0.3, jitter=0.3)
            return
        except Exception:
            # The loop is restarted; until a read works, listeners look at the ledger.
            self.failing = True
            raise
        if self.failing:
            self.failing = False
            for one in self.watched.values():
                for sink in one.sinks:
                    sink.lag()
        for key, rows in found.items():
            if watched := self.watched.get(key):
                watched.hear(rows)

    async def _wake_until_read(self) -> None:
        # A wake before the reader waits does nothing, so it is repeated until it was of use.
        while self._reading < self._wanted and not self.failing:
            await self._reader.wake()
            await asyncio.sleep(0.01)


def heard_of(rows: Rows) -> list[Heard]:
    """Entries as events. What cannot be read is left out, and so becomes a gap."""
    heard = []
    for entry_id, body in rows:
        try:
            if body is None:
                heard.append(Heard(order(entry_id), None, b""))
                continue
            event = read_event(entry_id, body)
            heard.append(Heard(order(entry_id), event, _encode(event)))
        except (msgspec.MsgspecError, ValueError) as error:
            log.debug("entry %s of a progress stream cannot be read: %s", entry_id, error)
    return heard
