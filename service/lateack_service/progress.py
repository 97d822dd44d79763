"""The hub: every job that somebody listens to in this process, whoever listens and how.

Events come from the streams (tags.py). Every half second one statement asks the ledger about all
watched jobs at once: a worker may have died between its commit and its last event, the broker may
be away or have been wiped. So the end of a job is always told, within about a second (I8).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any
from uuid import UUID

from lateack_core.ground import Ground
from lateack_core.group_commit import GroupCommit
from lateack_core.log import Throttled
from lateack_core.postgres import LedgerUnavailable, Row
from lateack_core.process import Loop
from lateack_core.progress import order
from lateack_core.stream import BrokerUnavailable, progress_tag

from .sinks import Heard, Order, Sink
from .tags import TagReader, Watched, heard_of

log = logging.getLogger("lateack.progress")

# Two looks of the ledger, and a client knows what its stream did not say.
POLL = 0.5
# Streams that are made sure of at every look, in turn: a wiped broker forgets whom to tell.
REOPENED_A_LOOK = 50
# A broker that hangs must not keep a client from what the ledger knows.
PATIENCE = 2.0


class Hub:
    """All listening of one process."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._broker = ground.broker
        self._watched: dict[UUID, Watched] = {}
        self._readers: dict[int, TagReader] = {}
        self._states: GroupCommit[UUID, Row | None] = GroupCommit(self._read_states, lanes=2)
        self._to_reopen: list[UUID] = []
        self._closing = False
        self._attending: set[Sink] = set()
        self._background: set[asyncio.Task[Any]] = set()
        self._troubles = Throttled(log)

    def start(self) -> None:
        """Start the loop that looks at the ledger; readers start when their tag is first used."""
        self._ground.loops.start("watch", self._look, stalled_after=30.0)

    @contextlib.contextmanager
    def watching(self, job_id: UUID, sink: Sink) -> Iterator[None]:
        """Hand what happens to a job to `sink`. To be entered before any state is read."""
        if self._closing:
            sink.finish("stopping")
        watched = self._watched.get(job_id)
        if watched is None:
            reader = self._reader_of(progress_tag(job_id))
            watched = Watched(job_id, self._broker.progress_key(job_id), reader)
            self._watched[job_id] = watched
            reader.watched[watched.key] = watched
        watched.sinks.add(sink)
        try:
            yield
        finally:
            watched.sinks.discard(sink)
            if not watched.sinks:
                self._watched.pop(job_id, None)
                watched.reader.watched.pop(watched.key, None)

    @contextlib.contextmanager
    def attending(self, sink: Sink) -> Iterator[None]:
        """Let `sink` hear when this process stops, and of nothing else."""
        if self._closing:
            sink.finish("stopping")
        self._attending.add(sink)
        try:
            yield
        finally:
            self._attending.discard(sink)

    @contextlib.asynccontextmanager
    async def listening(self, job_id: UUID) -> AsyncIterator[Sink]:
        """A sink that hears of a job's end, from the stream or from the ledger."""
        sink = Sink()
        with self.watching(job_id, sink):
            # Without the broker the looks at the ledger find it.
            with contextlib.suppress(BrokerUnavailable):
                await self.open(job_id)
            yield sink

    async def open(self, job_id: UUID) -> Order:
        """Make a watched job's stream, so that its moves are told; the newest event's place.

        Raises:
            BrokerUnavailable
        """
        tail = order(await _patiently(self._broker.open_progress(job_id)))
        if watched := self._watched.get(job_id):
            watched.start_at(tail)
        return tail

    async def tail(self, job_id: UUID) -> Order | None:
        """The newest event's place in a stream, None when there is none. It makes no stream.

        Raises:
            BrokerUnavailable
        """
        edges = await _patiently(self._broker.progress_edges(job_id))
        return None if edges is None else order(edges[1])

    async def read(self, job_id: UUID, after: Order, most: int = 1000) -> list[Heard]:
        """Entries of a stream after a place, oldest first.

        Raises:
            BrokerUnavailable
        """
        at = f"{after[0]}-{after[1]}"
        return heard_of(await _patiently(self._broker.progress_range(job_id, at, most)))

    async def state(self, job_id: UUID) -> Row | None:
        """What the ledger says of a job, None when it is gone. Callers at once share a statement.

        Raises:
            LedgerUnavailable
        """
        return await self._states.put(job_id)

    def in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Let `work` run without anybody waiting for it; it must not raise."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def close(self) -> None:
        """Tell every listener that this process stops. New ones are told at once."""
        self._closing = True
        sinks = [sink for watched in self._watched.values() for sink in watched.sinks]
        for sink in [*sinks, *self._attending]:
            sink.finish("stopping")

    async def wake_readers(self) -> None:
        """End every reader's wait, for a quick stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.gather(*(reader.wake() for reader in self._readers.values()))

    def _reader_of(self, tag: int) -> TagReader:
        if tag not in self._readers:
            reader = self._readers[tag] = TagReader(self._broker, tag)
            self._ground.loops.start(f"progress {tag:02d}", reader.run)
        return self._readers[tag]

    async def _read_states(self, job_ids: list[UUID]) -> list[Row | None]:
        rows = {row["job_id"]: row for row in await self._ground.ledger.states(job_ids)}
        return [rows.get(job_id) for job_id in job_ids]

    # -- the looks at the ledger ----------------------------------------------------------

    async def _look(self, loop: Loop) -> None:
        while not loop.stopping:
            loop.beat()
            if self._watched:
                try:
                    await self._compare()
                except LedgerUnavailable as error:
                    self._troubles.warning(f"watched jobs: {error}", time.monotonic())
                try:
                    await self._reopen()
                except BrokerUnavailable as error:
                    self._troubles.warning(f"watched streams: {error}", time.monotonic())
            await loop.pause(POLL)

    async def _compare(self) -> None:
        asked = dict(self._watched)
        rows = {row["job_id"]: row for row in await self._ground.ledger.states(list(asked))}
        for job_id, watched in asked.items():
            row = rows.get(job_id)
            for sink in list(watched.sinks):
                if row is None:
                    sink.finish("gone")
                else:
                    sink.compare(row, blind=watched.blind)

    async def _reopen(self) -> None:
        blind = [sink for one in self._watched.values() for sink in one.sinks if sink.blind]
        if blind:
            await _patiently(self._broker.ping())
            for sink in blind:
                sink.return_of_broker()
        if not self._to_reopen:
            self._to_reopen = list(self._watched)
        now, self._to_reopen = self._to_reopen[:REOPENED_A_LOOK], self._to_reopen[REOPENED_A_LOOK:]
        open_now = [job_id for job_id in now if not self._is_blind(job_id)]
        lost = await asyncio.gather(*(self._is_lost(job_id) for job_id in open_now))
        if any(lost):
            log.warning("the broker has lost progress streams; those being watched are made anew")
            for job_id in set(self._watched) - set(now):
                if not self._is_blind(job_id):
                    await self._is_lost(job_id)

    def _is_blind(self, job_id: UUID) -> bool:
        watched = self._watched.get(job_id)
        return watched is None or watched.blind

    async def _is_lost(self, job_id: UUID) -> bool:
        """Make sure of a stream; true when it had been lost."""
        watched = self._watched.get(job_id)
        if watched is None:
            return False
        before = watched.cursor
        tail = order(await _patiently(self._broker.open_progress(job_id)))
        return before is not None and tail < before


async def _patiently(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        async with asyncio.timeout(PATIENCE):
            return await work
    except TimeoutError:
        raise BrokerUnavailable("the broker does not answer") from None
