"""Following one job for one client: every event in order, once, from where it left off (I8).

A client without a cursor gets a snapshot and then the events after it. One with a cursor gets
exactly the events after it, and when that cannot be had a `gap` and a snapshot, never silence:

  - the cursor is newer than the stream (the broker was wiped or failed over),
  - or older than its first event (it was trimmed, or its time was over),
  - or the numbers have a hole. Within a fence they have none, and a new fence begins at 1.

The listener is registered before anything is read, so that nothing falls in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

import msgspec

from lateack.models import Event, EventType
from lateack.states import TERMINAL
from lateack_core.postgres import LedgerUnavailable, Row
from lateack_core.progress import order
from lateack_core.stream import BrokerUnavailable

from .problems import bad_request
from .progress import Hub
from .sinks import MOST, Heard, Order, Sink, view_of

# The mark that opens a stream before the first event, and the place before everything.
MARK: Order = (0, 1)
ORIGIN: Order = (0, 0)
# Read at once: a slow client costs this much memory and no more.
PAGE = 200
# No fence and no number of ours comes near; the broker's ids have 64 bits.
LARGEST = 2**63

_encode = msgspec.json.Encoder().encode


class Told(NamedTuple):
    """An event to send: its JSON text, and the id to go on from (None: keep the one before)."""

    event: Event
    text: bytes
    resume: str | None


def place(after: str) -> Order:
    """A client's cursor. Raises Refused when it is none."""
    try:
        found = order(after)
    except ValueError:
        found = (LARGEST, LARGEST)
    if max(found) >= LARGEST:
        raise bad_request("after is the id of an event, such as 3-17")
    return found


class Follower:
    """One client's way along one job's events.

    To be used inside `hub.watching(job_id, follower.sink)`.
    """

    def __init__(
        self, hub: Hub, job_id: UUID, after: Order | None, *, ended: bool, most: int = MOST
    ) -> None:
        self.job_id = job_id
        self.sink = Sink(most=most)
        # True once the job's last event was told: there is nothing to wait for.
        self.ended = False
        self._hub = hub
        self._after = after
        # A job that has ended makes no more events: no stream is made for it.
        self._has_ended = ended
        self._last = after or ORIGIN

    async def begin(self) -> list[Told]:
        """What the client has to be told first.

        Raises:
            LedgerUnavailable: neither stream nor ledger answers.
        """
        try:
            if self._after is not None:
                return await self._resume(self._after)
            return await self._snapshot()
        except BrokerUnavailable:
            self.sink.blind = True
            row = await self._hub.state(self.job_id)
            return [] if row is None else [self._of_ledger(row)]

    async def next(self, seconds: float) -> list[Told]:
        """What comes next; empty when nothing did within so many seconds."""
        if not await self.sink.wait(seconds):
            return []
        try:
            told = await self._from_stream()
        except BrokerUnavailable:
            # The reader of the tag notices as well, and says when the broker is back.
            self.sink.blind = True
            told = []
        row, self.sink.state = self.sink.state, None
        if row is not None and not self.ended:
            told += await self._from_ledger(row, fresh=bool(told))
        return told

    # -- from the stream ------------------------------------------------------------------

    async def _from_stream(self) -> list[Told]:
        if self.sink.blind:
            if not self.sink.back:
                return []
            self.sink.back = False
            told = await (self._snapshot() if self._last == ORIGIN else self._resume(self._last))
            self.sink.blind = False
            return told
        if not self.sink.behind:
            return await self._in_order(self.sink.take())
        self.sink.heard.clear()
        self.sink.behind = False
        try:
            entries = await self._hub.read(self.job_id, self._last, PAGE)
        except BrokerUnavailable:
            self.sink.behind = True
            raise
        told = await self._in_order(entries)
        if len(entries) == PAGE:
            self.sink.lag()
        return told

    async def _resume(self, after: Order) -> list[Told]:
        if not self._has_ended:
            await self._hub.open(self.job_id)
        entries = await self._hub.read(self.job_id, _before(after), PAGE)
        if not entries or not _is_contiguous(after, entries[0].at):
            return await self._gap()
        first = entries[0]
        if first.at == after and first.event is not None:
            # Seen before; it says what the client knows, and whether there is anything to come.
            self._show(first.at, first.event)
        self._last = after
        told = [] if self.ended else await self._in_order(entries)
        if len(entries) == PAGE:
            self.sink.lag()
        return told

    async def _in_order(self, entries: Sequence[Heard]) -> list[Told]:
        told: list[Told] = []
        for at, event, text in entries:
            if at <= self._last or self.ended:
                continue
            if not _follows(self._last, at):
                return told + await self._gap_unless(told)
            self._last = at
            if event is not None:
                self._show(at, event)
                told.append(Told(event, text, event.id))
        return told

    async def _gap_unless(self, told: list[Told]) -> list[Told]:
        # What was read is not thrown away because the rest cannot be told now.
        try:
            return await self._gap()
        except (BrokerUnavailable, LedgerUnavailable):
            self.sink.lag()
            if not told:
                raise
            return []

    async def _gap(self) -> list[Told]:
        """Events were missed: say so, and say how things stand."""
        snapshot = await self._snapshot()
        if not snapshot:
            return []
        event = msgspec.structs.replace(snapshot[0].event, type="gap", message="events were missed")
        return [Told(event, _encode(event), None), *snapshot]

    async def _snapshot(self) -> list[Told]:
        tail = (
            await self._hub.tail(self.job_id)
            if self._has_ended
            else await self._hub.open(self.job_id)
        ) or MARK
        row = await self._hub.state(self.job_id)
        if row is None:
            self.sink.finish("gone")
            return []
        entries = await self._hub.read(self.job_id, _before(tail), PAGE)
        newest = entries[0].event if entries and entries[0].at == tail else None
        event = _overlaid(_event_of(row, "snapshot", _text(tail)), row, newest, tail)
        self._last = tail
        self._show((max(tail[0], row["fence"]), 0), event)
        told = [Told(event, _encode(event), event.id)]
        for at, later, text in entries:
            if at <= tail or later is None:
                continue
            if self.ended or not _follows(self._last, at):
                break
            self._last = at
            self._show(at, later)
            told.append(Told(later, text, later.id))
        if len(entries) == PAGE or (entries and self._last < entries[-1].at):
            # There is more, or a hole right behind the snapshot, of which the next turn tells.
            self.sink.lag()
        return told

    # -- from the ledger ------------------------------------------------------------------

    async def _from_ledger(self, row: Row, *, fresh: bool) -> list[Told]:
        """What the ledger knows and the stream did not say; `fresh`: the stream just spoke."""
        told: list[Told] = []
        view = view_of(row["fence"], row["status"], row["progress"], row["step"])
        if row["status"] in TERMINAL and not self.sink.blind:
            # Whatever the stream still holds comes first.
            try:
                told = await self._in_order(await self._hub.read(self.job_id, self._last, PAGE))
            except (BrokerUnavailable, LedgerUnavailable):
                self.sink.blind = True
        state, shown = view[:2], self.sink.shown[:2]
        is_old = state < shown or view == self.sink.shown
        # Progress reaches the ledger later than the stream.
        if self.ended or is_old or (state == shown and (fresh or told)):
            return told
        return [*told, self._of_ledger(row)]

    def _of_ledger(self, row: Row) -> Told:
        """The state that no event told; it keeps the id of the last event seen."""
        # A snapshot: an event with an id that was seen before would be taken for a repetition.
        event = _event_of(row, "snapshot", _text(self._last))
        self._show((row["fence"], 0), event)
        return Told(event, _encode(event), None)

    def _show(self, at: Order, event: Event) -> None:
        self.sink.shown = view_of(at[0], event.status, event.progress, event.step)
        self.ended = self.ended or event.ended


def _follows(last: Order, at: Order) -> bool:
    """Whether nothing can be missing between two events."""
    if last[0] == at[0]:
        return at[1] == last[1] + 1
    return at[0] > last[0] and at[1] == 1


def _is_contiguous(after: Order, first: Order) -> bool:
    """Whether a stream whose first entry at or after the cursor is `first` has all that follows."""
    if first == after or first == (after[0], after[1] + 1):
        return True
    # Before the first event of all there was nothing to miss.
    return after[0] == 0 and first in (MARK, (1, 1))


def _before(at: Order) -> Order:
    """The place that leaves `at` itself to be read."""
    if at[1]:
        return at[0], at[1] - 1
    return (at[0] - 1, LARGEST) if at[0] else ORIGIN


def _text(at: Order) -> str:
    return f"{at[0]}-{at[1]}"


def _event_of(row: Row, type_: EventType, event_id: str) -> Event:
    at: datetime = row["at"]
    return Event(
        id=event_id,
        job_id=row["job_id"],
        type=type_,
        status=row["status"],
        progress=row["progress"],
        step=row["step"],
        message=row["error_message"],
        attempt=row["attempt"],
        at=at.astimezone(UTC),
    )


def _overlaid(snapshot: Event, row: Row, newest: Event | None, tail: Order) -> Event:
    """The ledger's state with what the stream knows better: progress reaches the ledger only with
    the next heartbeat, so of a running job the newest event of the same fence is the newer word."""
    if newest is None or tail[0] < row["fence"] or row["status"] in TERMINAL:
        return snapshot
    if tail[0] == row["fence"] and row["status"] != "running" and not newest.ended:
        return snapshot
    return msgspec.structs.replace(newest, id=snapshot.id, type="snapshot")
