"""Progress events: their ids, their bytes, and who may write them.

An event's id is `<fence>-<seq>`, and the id of its entry in the job's stream. The stream refuses an
id that is not above its newest, so a stale owner, whose fence is lower, cannot add a word. Whoever
moves a job that is not his raises the fence first and then speaks as `<fence>-1`.

Events that only tell a state are added when somebody watches (the watcher makes the stream); events
of `ctx.progress` always. So a job that nobody watches and that reports nothing costs no memory.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import msgspec

from lateack.models import Event, EventType
from lateack.states import TERMINAL, Status

from .jobs import Moved
from .stream import Broker, BrokerUnavailable, ProgressEntry

log = logging.getLogger("lateack.progress")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode


class Trail:
    """The events of one attempt, numbered without a hole."""

    def __init__(self, job_id: UUID, fence: int, attempt: int) -> None:
        self.job_id = job_id
        self.fence = fence
        self.attempt = attempt
        self._last = 0

    def next(
        self,
        type_: EventType,
        status: Status,
        *,
        progress: float | None = None,
        step: str | None = None,
        message: str | None = None,
        at: datetime | None = None,
    ) -> ProgressEntry:
        """The next event."""
        self._last += 1
        event = Event(
            id=f"{self.fence}-{self._last}",
            job_id=self.job_id,
            # Each fence opens with a snapshot.
            type="snapshot" if self._last == 1 else type_,
            status=status,
            progress=progress,
            step=step,
            message=message,
            attempt=self.attempt,
            at=at or datetime.now(UTC),
        )
        return ProgressEntry(
            self.job_id, event.id, _encode(event), type_ in ("progress", "log"), status in TERMINAL
        )

    def dropped(self, entry: ProgressEntry) -> None:
        """Nobody watches, so there is no stream: the number is free again, if not too late."""
        if entry.event_id == f"{self.fence}-{self._last}":
            self._last -= 1


def read_event(entry_id: str, body: str) -> Event:
    """The event of a stream's entry."""
    event = _decode(body)
    event.id = entry_id
    return event


def order(event_id: str) -> tuple[int, int]:
    """An event id as a pair that compares.

    Raises:
        ValueError: it is not an event's id.
    """
    fence, dash, seq = event_id.partition("-")
    if not dash or not fence.isdecimal() or not seq.isdecimal() or len(event_id) > 40:
        raise ValueError(f"not an event's id: {event_id!r}")
    return int(fence), int(seq)


async def announce(broker: Broker, moves: Sequence[Moved]) -> None:
    """Tell watchers of moves made by anyone but the owner; their fence was raised by the move.

    It never fails a move: a watcher also finds out from the ledger, within a second or so.
    """
    entries = [
        Trail(move.job_id, move.fence, move.attempt).next(
            "status",
            move.status,
            at=move.completed_at,
        )
        for move in moves
        # A running job that was only marked for cancellation is still its owner's to speak for.
        if move.status != "running"
    ]
    try:
        if entries:
            await broker.append_progress(entries)
    except BrokerUnavailable as error:
        log.debug("watchers were not told of %d moves: %s", len(moves), error)
