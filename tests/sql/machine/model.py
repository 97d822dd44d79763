"""The ledger in small: what one job, or one chain, is, and what may become of it. Pure.

Times are seconds since the machine's clock began. Nothing here knows of connections: a move changes
a `State` as if it were alone, and `order.py` asks whether some order of such moves explains what
several connections saw at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID

from lateack.states import TERMINAL

WAITING = frozenset({"pending", "scheduled", "retrying"})


class Lease(NamedTuple):
    """Who runs a job, and until when nobody may take over."""

    fence: int
    worker: UUID
    until: float
    # Its body has not begun: losing it there costs no attempt.
    waiting: bool


class Ended(NamedTuple):
    """How an attempt ended; a row of `attempts`."""

    fence: int
    attempt: int
    outcome: str


class Leader(NamedTuple):
    """The row of the leader."""

    holder: UUID
    epoch: int
    until: float


class Slip(NamedTuple):
    """A row of the outbox. `number` is None for one that came in the step that is looked at."""

    number: int | None
    job: UUID
    due: float
    republish: bool


@dataclass(frozen=True, slots=True)
class Row:
    """A job's row, with its lease, its result and its attempts; or a workflow's own row."""

    status: str
    fence: int
    attempt: int
    losses: int
    max_retries: int
    cancelling: bool
    created_at: float
    run_at: float
    expires_at: float | None
    runnable_since: float | None
    enqueued_at: float | None
    completed_at: float | None
    error: str | None
    lease: Lease | None
    result: str | None
    attempts: tuple[Ended, ...]
    # The row that waits for this one's end, and whose step it is.
    waiter: UUID | None
    root: UUID | None
    workflow: bool

    @property
    def ended(self) -> bool:
        return self.status in TERMINAL

    def runnable(self, now: float) -> bool:
        """Whether a claim would get it."""
        return (
            self.status in WAITING
            and self.run_at <= now
            and (self.expires_at is None or self.expires_at > now)
            and not self.cancelling
        )

    def owned(self, fence: int) -> bool:
        """Whether the owner with this fence is still its owner."""
        return self.status == "running" and self.fence == fence


@dataclass(slots=True)
class State:
    """One job or chain, what the outbox has of it, and the leader."""

    now: float
    rows: dict[UUID, Row]
    outbox: tuple[Slip, ...]
    leader: Leader | None

    def copy(self) -> State:
        return State(self.now, dict(self.rows), self.outbox, self.leader)

    def like(self, other: State) -> bool:
        """Whether both are the same but for the numbers of new slips."""
        return (
            self.rows == other.rows
            and self.leader == other.leader
            and sorted(map(_bare, self.outbox)) == sorted(map(_bare, other.outbox))
        )

    def change(self, job: UUID, **new: object) -> Row:
        row = self.rows[job] = replace(self.rows[job], **new)  # type: ignore[arg-type]
        return row

    def in_outbox(self, job: UUID, *, republish: bool = True) -> bool:
        """Whether it is to be published; of those that had been before only if `republish`."""
        return any(slip.job == job and (republish or not slip.republish) for slip in self.outbox)

    def put_out(self, job: UUID, due: float, *, republish: bool = False) -> None:
        self.outbox += (Slip(None, job, due, republish),)

    def take_out(self, numbers: Iterable[int]) -> None:
        gone = set(numbers)
        self.outbox = tuple(slip for slip in self.outbox if slip.number not in gone)

    def told(self, job: UUID, outcome: str) -> tuple[Ended, ...]:
        """The row's attempts with one more."""
        row = self.rows[job]
        return (*row.attempts, Ended(row.fence, row.attempt, outcome))

    def runs_again(self, job: UUID, **new: object) -> None:
        """Runnable at once, with its hint in the outbox."""
        now = self.now
        self.change(job, status="pending", runnable_since=now, enqueued_at=now, **new)
        self.put_out(job, now)

    def end(self, job: UUID, status: str, **new: object) -> None:
        self.change(job, status=status, completed_at=self.now, **new)
        self.feed(job)

    def feed(self, job: UUID) -> None:
        """I5: what the end of a step means for the one row that waits for it."""
        row = self.rows[job]
        waiter = None if row.waiter is None else self.rows[row.waiter]
        if row.waiter is None or waiter is None or waiter.status != "blocked":
            return
        if row.status != "succeeded":
            error = "UpstreamFailed" if row.status == "failed" else None
            self.end(row.waiter, row.status, error=error, fence=waiter.fence + 1)
        elif waiter.workflow:
            # A result that was not kept is gathered as null.
            result = "null" if row.result is None else row.result
            self.end(row.waiter, "succeeded", fence=waiter.fence + 1, result=result)
        else:
            self.runs_again(row.waiter, run_at=self.now)


def _bare(slip: Slip) -> tuple[int, UUID, float, bool]:
    return (-1 if slip.number is None else slip.number, slip.job, slip.due, slip.republish)
