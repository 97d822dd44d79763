"""The moves: how each is sent to the ledger, and what it does to the model when it is alone.

An answer is a mapping from job to what was said of it, so that it can be looked at for one job or
chain at a time: a statement over many jobs is atomic for each of them, not for all together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import UUID

from lateack_core.jobs import Beat, Failure, Ledger, Moved, Owned, Success
from tests.sql.machine.model import WAITING, Lease, State

Answer = Mapping[UUID | None, Any]

LEASE = 10.0
MAX_LOSSES = 2
PENDING_TIMEOUT = 30.0
UNPUBLISHED_TIMEOUT = 60.0
OLDER_THAN = 3.0
RELAY_LEASE = 5.0
DEFER = 1.0
LEADER_TTL = 12.0
# Whatever is said of the leader, not of a job.
LEADER = None


class Move:
    """One statement. `skips`: it passes over what somebody else has locked."""

    skips: ClassVar[bool] = False
    # Without ids a move sweeps: it may touch every job.
    ids: tuple[UUID, ...] | None

    async def send(self, ledger: Ledger) -> Answer:
        raise NotImplementedError

    def touches(self, family: Collection[UUID]) -> bool:
        return self.ids is None or any(job in family for job in self.ids)

    def named(self, state: State) -> list[UUID]:
        return list(state.rows if self.ids is None else (i for i in self.ids if i in state.rows))

    def seen(self, answer: Answer, start: State) -> Answer:
        """What the answer says of one job or chain."""
        return {job: said for job, said in answer.items() if job is LEADER or job in start.rows}

    def eligible(self, state: State, start: State) -> list[Any]:
        """What it moves: jobs, or rows of the outbox. `start` is the state before the step: a look
        at a second table may be as old as that, when the row itself had to be waited for."""
        raise NotImplementedError

    def apply(self, state: State, chosen: Sequence[Any], start: State) -> dict[UUID | None, Any]:
        """Move the chosen ones; what it answers for this state's jobs."""
        raise NotImplementedError


def moved(rows: Sequence[Moved]) -> Answer:
    return {row.job_id: (row.fence, row.attempt, row.status) for row in rows}


def as_left(state: State, jobs: Sequence[UUID]) -> dict[UUID | None, Any]:
    rows = state.rows
    return {job: (rows[job].fence, rows[job].attempt, rows[job].status) for job in jobs}


@dataclass(frozen=True)
class Claim(Move):
    ids: tuple[UUID, ...]
    worker: UUID
    tasks: tuple[str, ...]
    # Whether the body has to wait for a free process.
    waiting: bool = False

    async def send(self, ledger: Ledger) -> Answer:
        waiting = self.tasks if self.waiting else ()
        claimed = await ledger.claim(
            self.ids, self.worker, lease=LEASE, tasks=self.tasks, waiting=waiting
        )
        return {one.job_id: (one.fence, one.attempt) for one in claimed}

    def eligible(self, state: State, start: State) -> list[UUID]:
        return [j for j in self.named(state) if self.tasks and state.rows[j].runnable(state.now)]

    def apply(self, state: State, chosen: Sequence[UUID], start: State) -> dict[UUID | None, Any]:
        answer: dict[UUID | None, Any] = {}
        for job in chosen:
            row = state.rows[job]
            fence, attempt = row.fence + 1, row.attempt + 1
            lease = Lease(fence, self.worker, state.now + LEASE, self.waiting)
            state.change(job, status="running", fence=fence, attempt=attempt, lease=lease)
            answer[job] = (fence, attempt)
        return answer


@dataclass(frozen=True)
class Owners(Move):
    """A worker's word on what it has, or had."""

    owned: tuple[Owned, ...]

    @property
    def ids(self) -> tuple[UUID, ...]:  # type: ignore[override]
        return tuple(one.job_id for one in self.owned)

    def fence(self, job: UUID) -> int:
        return next(one.fence for one in self.owned if one.job_id == job)

    def eligible(self, state: State, start: State) -> list[UUID]:
        return [j for j in self.named(state) if state.rows[j].owned(self.fence(j))]


@dataclass(frozen=True)
class Complete(Owners):
    result: str | None

    async def send(self, ledger: Ledger) -> Answer:
        return moved(await ledger.complete([Success(one, self.result) for one in self.owned]))

    def apply(self, state: State, chosen: Sequence[UUID], start: State) -> dict[UUID | None, Any]:
        for job in chosen:
            told = state.told(job, "succeeded")
            attempts = told if state.rows[job].attempt > 1 else told[:-1]
            state.end(job, "succeeded", lease=None, result=self.result, attempts=attempts)
        return as_left(state, chosen)


@dataclass(frozen=True)
class Fail(Owners):
    delay: float | None

    async def send(self, ledger: Ledger) -> Answer:
        failures = [Failure(one, "Boom", "boom", {}, self.delay) for one in self.owned]
        return moved(await ledger.fail(failures))

    def apply(self, state: State, chosen: Sequence[UUID], start: State) -> dict[UUID | None, Any]:
        for job in chosen:
            row = state.rows[job]
            if row.cancelling:
                verdict = "cancelled"
            elif self.delay is not None and row.attempt <= row.max_retries:
                verdict = "retrying"
            else:
                verdict = "failed"
            told = state.told(job, "retried" if verdict == "retrying" else verdict)
            state.change(job, lease=None, runnable_since=None, attempts=told)
            if verdict == "retrying":
                assert self.delay is not None
                state.change(job, status=verdict, run_at=state.now + self.delay)
                state.put_out(job, state.now + self.delay)
            else:
                state.end(job, verdict, error="Boom" if verdict == "failed" else None)
        return as_left(state, chosen)


@dataclass(frozen=True)
class Release(Owners):
    async def send(self, ledger: Ledger) -> Answer:
        return moved(await ledger.release(self.owned))

    def apply(self, state: State, chosen: Sequence[UUID], start: State) -> dict[UUID | None, Any]:
        for job in chosen:
            row, now = state.rows[job], state.now
            new: dict[str, Any] = {
                "lease": None, "attempts": state.told(job, "handed_back"),
                "attempt": row.attempt - 1, "fence": row.fence + 1,
            }  # fmt: skip
            if row.cancelling:
                state.end(job, "cancelled", runnable_since=now, enqueued_at=now, **new)
            else:
                state.runs_again(job, **new)
        return as_left(state, chosen)


@dataclass(frozen=True)
class Heartbeat(Owners):
    skips = True

    async def send(self, ledger: Ledger) -> Answer:
        beats = [Beat(one, 10.0, "step") for one in self.owned]
        renewals = await ledger.heartbeat(beats, lease=LEASE)
        return {one.job_id: (one.renewed, one.held) for one in renewals}

    def _holds(self, state: State, job: UUID) -> bool:
        lease = state.rows[job].lease
        return lease is not None and lease.fence == self.fence(job)

    def eligible(self, state: State, start: State) -> list[UUID]:
        named = self.named(state)
        return [j for j in named if self._holds(state, j) or self._holds(start, j)]

    def apply(self, state: State, chosen: Sequence[UUID], start: State) -> dict[UUID | None, Any]:
        answer: dict[UUID | None, Any] = {}
        for job in self.named(state):
            lease = state.rows[job].lease
            if job not in chosen:
                # Locked: not known, but never lost.
                answer[job] = (False, self._holds(start, job))
            elif lease is not None and self._holds(state, job):
                state.change(job, lease=lease._replace(until=state.now + LEASE))
                answer[job] = (True, True)
            else:
                answer[job] = (False, False)
        return answer


@dataclass(frozen=True)
class Begin(Owners):
    """The bodies start now."""

    async def send(self, ledger: Ledger) -> Answer:
        return {one.job_id: one.fence for one in await ledger.begin(self.owned)}

    def eligible(self, state: State, start: State) -> list[UUID]:
        return [
            job
            for job in self.named(state)
            if (lease := state.rows[job].lease) is not None and lease.fence == self.fence(job)
        ]

    def apply(self, state: State, chosen: Sequence[UUID], start: State) -> dict[UUID | None, Any]:
        for job in chosen:
            lease = state.rows[job].lease
            assert lease is not None
            state.change(job, lease=lease._replace(waiting=False))
        return {job: self.fence(job) for job in chosen}


def _reap(state: State, chosen: Sequence[UUID], *, died: bool) -> dict[UUID | None, Any]:
    """`died`: the owner itself says that a process died, and that is a loss always."""
    for job in chosen:
        row = state.rows[job]
        unbegun = row.lease is not None and row.lease.waiting and not died
        losses = row.losses + (not unbegun)
        new: dict[str, Any] = {
            "lease": None,
            "attempts": state.told(job, "handed_back" if unbegun else "lost"),
            "attempt": row.attempt - unbegun,
            "fence": row.fence + 1,
            "losses": losses,
            "enqueued_at": state.now,
            "runnable_since": None,
        }
        if row.cancelling:
            state.end(job, "cancelled", **new)
        elif not unbegun and (losses >= MAX_LOSSES or row.attempt > row.max_retries):
            state.end(job, "failed", error="WorkerLost", **new)
        else:
            del new["enqueued_at"], new["runnable_since"]
            state.runs_again(job, **new)
    return as_left(state, chosen)


@dataclass(frozen=True)
class Lose(Owners):
    skips = True

    async def send(self, ledger: Ledger) -> Answer:
        return moved(await ledger.lose(self.owned, max_losses=MAX_LOSSES))

    def apply(self, state: State, chosen: Sequence[UUID], start: State) -> dict[UUID | None, Any]:
        return _reap(state, chosen, died=True)


@dataclass(frozen=True)
class Reap(Move):
    ids: tuple[UUID, ...] | None
    skips = True

    async def send(self, ledger: Ledger) -> Answer:
        return moved(await ledger.reap(self.ids, max_losses=MAX_LOSSES))

    def eligible(self, state: State, start: State) -> list[UUID]:
        rows = state.rows
        return [
            job
            for job in self.named(state)
            if (lease := rows[job].lease) is not None and lease.until < state.now
        ]

    def apply(self, state: State, chosen: Sequence[UUID], start: State) -> dict[UUID | None, Any]:
        return _reap(state, chosen, died=False)


@dataclass(frozen=True)
class Cancel(Move):
    ids: tuple[UUID, ...]

    async def send(self, ledger: Ledger) -> Answer:
        return moved(await ledger.cancel("default", self.ids))

    def eligible(self, state: State, start: State) -> list[UUID]:
        return [
            job
            for job, row in state.rows.items()
            if not row.ended and (job in self.ids or row.root in self.ids)
        ]

    def apply(self, state: State, chosen: Sequence[UUID], start: State) -> dict[UUID | None, Any]:
        ended = [job for job in chosen if state.rows[job].status != "running"]
        for job in chosen:
            row = state.change(job, cancelling=True)
            if job in ended:
                new = {"status": "cancelled", "completed_at": state.now, "fence": row.fence + 1}
                state.change(job, **new)
        answer = as_left(state, chosen)
        for job in ended:
            state.feed(job)
        return answer

    def touches(self, family: Collection[UUID]) -> bool:
        return any(job in family for job in self.ids)


@dataclass(frozen=True)
class Expire(Move):
    ids: tuple[UUID, ...] | None
    skips = True

    async def send(self, ledger: Ledger) -> Answer:
        return moved(await ledger.expire(self.ids))

    def eligible(self, state: State, start: State) -> list[UUID]:
        rows = state.rows
        return [
            job
            for job in self.named(state)
            if rows[job].status in WAITING
            and (expires := rows[job].expires_at) is not None
            and expires <= state.now
        ]

    def apply(self, state: State, chosen: Sequence[UUID], start: State) -> dict[UUID | None, Any]:
        for job in chosen:
            state.end(job, "failed", error="Expired", fence=state.rows[job].fence + 1)
        return as_left(state, chosen)
