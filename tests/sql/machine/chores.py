"""The moves of leaders, relays and of a worker that was given what it cannot run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from lateack_core.jobs import Ledger, Term
from tests.sql.machine.model import WAITING, Leader, State
from tests.sql.machine.moves import (
    DEFER,
    LEADER,
    LEADER_TTL,
    OLDER_THAN,
    PENDING_TIMEOUT,
    RELAY_LEASE,
    UNPUBLISHED_TIMEOUT,
    Answer,
    Move,
    as_left,
    moved,
)

NAME = "scheduler"


@dataclass(frozen=True)
class Lead(Move):
    """Campaign once."""

    holder: UUID
    ids = None

    async def send(self, ledger: Ledger) -> Answer:
        rows = await ledger.postgres.fetch("lead", NAME, self.holder, LEADER_TTL)
        return {LEADER: (self.holder, rows[0]["epoch"] if rows else None)}

    def eligible(self, state: State, start: State) -> list[UUID]:
        return []

    def apply(self, state: State, chosen: Sequence[UUID], start: State) -> dict[UUID | None, Any]:
        leader, until = state.leader, state.now + LEADER_TTL
        if leader is None:
            state.leader = Leader(self.holder, 1, until)
        elif leader.holder == self.holder or leader.until < state.now:
            stays = leader.holder == self.holder and leader.until >= state.now
            state.leader = Leader(self.holder, leader.epoch + (not stays), until)
        else:
            return {LEADER: (self.holder, None)}
        return {LEADER: (self.holder, state.leader.epoch)}


@dataclass(frozen=True)
class StepDown(Move):
    term: Term
    ids = None

    async def send(self, ledger: Ledger) -> Answer:
        await ledger.postgres.fetch("step_down", *self.term)
        return {}

    def eligible(self, state: State, start: State) -> list[UUID]:
        return []

    def apply(self, state: State, chosen: Sequence[UUID], start: State) -> dict[UUID | None, Any]:
        if leads(state, self.term) and state.leader is not None:
            state.leader = state.leader._replace(until=state.now - 1)
        return {}


def leads(state: State, term: Term) -> bool:
    """Whether nobody has led since."""
    leader = state.leader
    return leader is not None and (leader.holder, leader.epoch) == (term.holder, term.epoch)


@dataclass(frozen=True)
class Clean(Move):
    """Pending cleanup."""

    term: Term
    ids = None
    skips = True

    async def send(self, ledger: Ledger) -> Answer:
        rows = await ledger.fail_stale_pending(
            self.term,
            timeouts={"": PENDING_TIMEOUT},
            unpublished_timeout=UNPUBLISHED_TIMEOUT,
            gone_after=5,
        )
        return moved(rows)

    def eligible(self, state: State, start: State) -> list[UUID]:
        if not leads(state, self.term):
            return []
        return [j for j in state.rows if _stale(state, state, j) or _stale(state, start, j)]

    def apply(self, state: State, chosen: Sequence[UUID], start: State) -> dict[UUID | None, Any]:
        for job in chosen:
            state.end(job, "failed", error="PendingTimeout", fence=state.rows[job].fence + 1)
        return as_left(state, chosen)


def _stale(state: State, outbox: State, job: UUID) -> bool:
    row = state.rows[job]
    if row.status != "pending":
        return False
    if outbox.in_outbox(job, republish=False):
        return row.created_at < state.now - UNPUBLISHED_TIMEOUT
    return row.runnable_since is not None and row.runnable_since < state.now - PENDING_TIMEOUT


@dataclass(frozen=True)
class Republish(Move):
    """The reconciler's statement."""

    term: Term
    ids = None
    skips = True

    async def send(self, ledger: Ledger) -> Answer:
        rows = await ledger.postgres.fetch(
            "republish_lost", *self.term, "work", 0, 9, OLDER_THAN, 1000
        )
        return {row["job_id"]: True for row in rows}

    def eligible(self, state: State, start: State) -> list[UUID]:
        if not leads(state, self.term):
            return []
        return [
            job
            for job, row in state.rows.items()
            if row.status == "pending"
            and row.run_at <= state.now
            and row.enqueued_at is not None
            and row.enqueued_at < state.now - OLDER_THAN
            and not (state.in_outbox(job) and start.in_outbox(job))
        ]

    def apply(self, state: State, chosen: Sequence[UUID], start: State) -> dict[UUID | None, Any]:
        for job in chosen:
            state.change(job, enqueued_at=state.now)
            state.put_out(job, state.now, republish=True)
        return dict.fromkeys(chosen, True)


class Taken(NamedTuple):
    """A row of the outbox in a relay's hands."""

    number: int
    job: UUID
    republish: bool


@dataclass(frozen=True)
class TakeOutbox(Move):
    """A relay takes what is due."""

    ids = None
    skips = True

    async def send(self, ledger: Ledger) -> Answer:
        rows = await ledger.postgres.fetch("lease_outbox", RELAY_LEASE, 500)
        answer: dict[UUID | None, Any] = {}
        for row in rows:
            slip = (row["id"], row["republish"])
            answer[row["job_id"]] = (*answer.get(row["job_id"], ()), slip)
        return answer

    def eligible(self, state: State, start: State) -> list[Any]:
        # Rows are skipped one by one: two relays may share what is due of one job.
        return [n for n, slip in enumerate(state.outbox) if slip.due <= state.now]

    def apply(self, state: State, chosen: Sequence[Any], start: State) -> dict[UUID | None, Any]:
        taken: dict[UUID | None, Any] = {}
        slips = list(state.outbox)
        for number in chosen:
            slip = slips[number]
            slips[number] = slip._replace(due=state.now + RELAY_LEASE)
            taken[slip.job] = (*taken.get(slip.job, ()), (slip.number, slip.republish))
        state.outbox = tuple(slips)
        return {job: tuple(sorted(found, key=str)) for job, found in taken.items()}

    def seen(self, answer: Answer, start: State) -> Answer:
        old = {slip.number for slip in start.outbox}
        return {
            job: tuple(sorted(((n if n in old else None, again) for n, again in found), key=str))
            for job, found in super().seen(answer, start).items()
        }


@dataclass(frozen=True)
class Mark(Move):
    """The relay's word before it publishes."""

    slips: tuple[Taken, ...]
    skips = True

    @property
    def ids(self) -> tuple[UUID, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys(slip.job for slip in self.slips))

    async def send(self, ledger: Ledger) -> Answer:
        jobs, flags = [s.job for s in self.slips], [s.republish for s in self.slips]
        rows = await ledger.postgres.fetch("mark_runnable", jobs, flags)
        return {row["job_id"]: (row["ready"], row["gone"]) for row in rows}

    def eligible(self, state: State, start: State) -> list[UUID]:
        return [j for j in self.named(state) if _due(state, j) or _due(start, j)]

    def apply(self, state: State, chosen: Sequence[UUID], start: State) -> dict[UUID | None, Any]:
        answer: dict[UUID | None, Any] = {}
        for job in self.named(state):
            row = state.rows[job]
            if job in chosen and _due(state, job):
                again = all(slip.republish for slip in self.slips if slip.job == job)
                since = row.runnable_since if again else None
                since = state.now if since is None else since
                state.change(job, status="pending", enqueued_at=state.now, runnable_since=since)
                answer[job] = (True, False)
            elif job in chosen or not _due(start, job):
                answer[job] = (False, row.status not in WAITING)
            else:
                answer[job] = (False, False)
        return answer


def _due(state: State, job: UUID) -> bool:
    row = state.rows[job]
    return row.status in WAITING and row.run_at <= state.now


@dataclass(frozen=True)
class Delete(Move):
    """Published: these rows are not needed any more."""

    slips: tuple[Taken, ...]

    @property
    def ids(self) -> tuple[UUID, ...]:  # type: ignore[override]
        return tuple(slip.job for slip in self.slips)

    async def send(self, ledger: Ledger) -> Answer:
        await ledger.postgres.fetch("delete_outbox", [slip.number for slip in self.slips])
        return {}

    def eligible(self, state: State, start: State) -> list[Any]:
        numbers = {slip.number for slip in self.slips}
        return [slip.number for slip in state.outbox if slip.number in numbers]

    def apply(self, state: State, chosen: Sequence[Any], start: State) -> dict[UUID | None, Any]:
        state.take_out(chosen)
        return {}


@dataclass(frozen=True)
class Defer(Move):
    """What a worker does with hints of jobs that it cannot run: put them back for another one."""

    ids: tuple[UUID, ...]

    async def send(self, ledger: Ledger) -> Answer:
        await ledger.defer(dict.fromkeys(self.ids, DEFER))
        return {}

    def eligible(self, state: State, start: State) -> list[UUID]:
        return [job for job in self.named(state) if state.rows[job].status == "pending"]

    def apply(self, state: State, chosen: Sequence[UUID], start: State) -> dict[UUID | None, Any]:
        for job in chosen:
            state.put_out(job, state.now + DEFER, republish=True)
        return {}
