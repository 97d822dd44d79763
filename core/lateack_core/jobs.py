"""The ledger's moves: one method for each named statement, in the words of the design.

Every move is compare-and-set and, where a worker makes it, fenced: what a method does not return
was not the caller's any more, and nothing was written for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from lateack.models import Job, StepOf
from lateack.states import Status

from .postgres import Lent, Postgres, Row


class Owned(NamedTuple):
    """A running job and the fence that proves ownership of it."""

    job_id: UUID
    fence: int


class Moved(NamedTuple):
    """A job as a move left it."""

    job_id: UUID
    fence: int
    attempt: int
    status: Status
    completed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Claimed:
    """A job that is this worker's until its lease ends. `args` and `kwargs` are JSON text."""

    job_id: UUID
    tenant_id: str
    task: str
    queue: str
    priority: int
    fence: int
    attempt: int
    max_retries: int
    args: str
    kwargs: str
    meta: str | None
    root_id: UUID | None
    ignore_result: bool
    soft_time_limit: float | None
    time_limit: float | None
    started_at: datetime
    # The result of the step before, as JSON text; None when there is none to pass.
    upstream: str | None
    # The first job of the line that redrives made of it; None for the first itself.
    origin_id: UUID | None = None

    @property
    def owned(self) -> Owned:
        return Owned(self.job_id, self.fence)


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """Why a claim did not get a job. A job that is not listed at all does not exist."""

    job_id: UUID
    status: str
    fence: int
    task: str
    queue: str
    priority: int
    ended: bool
    later: bool
    expired: bool
    cancelling: bool
    # It has lost a worker, and one more loss would end it.
    last_life: bool
    leased: bool
    worker_id: UUID | None


class Beat(NamedTuple):
    """What a running job's heartbeat carries."""

    owned: Owned
    progress: float | None
    step: str | None


class Renewal(NamedTuple):
    """What a heartbeat did. `held` without `renewed`: somebody has the row locked; not known."""

    job_id: UUID
    renewed: bool
    held: bool


class Success(NamedTuple):
    """A result, as JSON text; None when none is kept."""

    owned: Owned
    result: str | None
    location: str | None = None


class Failure(NamedTuple):
    """An error. `retry_after` is seconds until the next attempt, None when there is to be none."""

    owned: Owned
    code: str
    message: str
    info: dict[str, Any]
    retry_after: float | None


class Term(NamedTuple):
    """A leader's claim to act: every action carries it and does nothing when it is over."""

    name: str
    holder: UUID
    epoch: int


class Worker(NamedTuple):
    """A worker process, as the ledger lists it."""

    worker_id: UUID
    name: str
    host: str
    pid: int
    queues: list[str]
    tasks: list[str]
    slots: int


_encode = msgspec.json.Encoder().encode


class Ledger:
    """The jobs, over a pool of connections."""

    def __init__(self, postgres: Postgres) -> None:
        self.postgres = postgres

    # -- the worker's moves ---------------------------------------------------------------

    async def claim(
        self,
        job_ids: Sequence[UUID],
        worker_id: UUID,
        *,
        lease: float,
        tasks: Sequence[str],
        waiting: Sequence[str] = (),
        max_losses: int | None = None,
    ) -> list[Claimed]:
        """Take jobs that are runnable and whose task is among `tasks`, for `lease` seconds.

        Bodies of the tasks in `waiting` do not start yet: until `begin` is called for such a job,
        losing its worker costs it no attempt. With `max_losses`, jobs are left alone that have lost
        a worker and that one more loss would end.
        """
        rows = await self.postgres.fetch(
            "claim_jobs", job_ids, worker_id, lease, tasks, waiting, max_losses
        )
        return [Claimed(*row) for row in rows]

    async def begin(self, owned: Sequence[Owned]) -> set[Owned]:
        """Note that these bodies start now; returns those that are still the caller's."""
        rows = await self.postgres.fetch(
            "begin_jobs", [o.job_id for o in owned], [o.fence for o in owned]
        )
        return {Owned(*row) for row in rows}

    async def why_not_claimed(
        self, job_ids: Sequence[UUID], *, max_losses: int = 3
    ) -> list[Unclaimed]:
        """The state of jobs that a claim did not return."""
        rows = await self.postgres.fetch("why_not_claimed", job_ids, max_losses)
        return [
            Unclaimed(
                row["id"],
                row["status"],
                row["fence"],
                row["task"],
                row["queue"],
                row["priority"],
                row["ended"],
                row["later"],
                bool(row["expired"]),
                row["cancelling"],
                row["last_life"],
                bool(row["leased"]),
                row["worker_id"],
            )
            for row in rows
        ]

    async def heartbeat(self, beats: Sequence[Beat], *, lease: float) -> list[Renewal]:
        """Renew leases for `lease` seconds from now, past their expiry too."""
        rows = await self.postgres.fetch(
            "heartbeat",
            [beat.owned.job_id for beat in beats],
            [beat.owned.fence for beat in beats],
            lease,
            [beat.progress for beat in beats],
            [beat.step for beat in beats],
        )
        return [Renewal(*row) for row in rows]

    async def cancelled_leases(self, worker_id: UUID) -> list[Owned]:
        """This worker's running jobs that somebody wants cancelled."""
        return [Owned(*r) for r in await self.postgres.fetch("cancelled_leases", worker_id)]

    async def complete_in(self, lent: Lent, success: Success) -> Moved | None:
        """Commit somebody's transaction together with a job's success: both, or neither.

        None, and nothing committed, when the job was no longer the caller's.

        Raises:
            whatever the database answers; see Lent.commit_with.
        """
        owned = success.owned
        rows = await lent.commit_with(
            "complete_jobs",
            [owned.job_id],
            [owned.fence],
            [success.result],
            [success.location],
        )
        return Moved(*rows[0]) if rows else None

    async def complete(self, successes: Sequence[Success]) -> list[Moved]:
        """Record success; what is missing from the answer was no longer the caller's."""
        rows = await self.postgres.fetch(
            "complete_jobs",
            [s.owned.job_id for s in successes],
            [s.owned.fence for s in successes],
            [s.result for s in successes],
            [s.location for s in successes],
        )
        return [Moved(*row) for row in rows]

    async def fail(self, failures: Sequence[Failure]) -> list[Moved]:
        """Record errors: another attempt when one was asked for and is left, else the end."""
        rows = await self.postgres.fetch(
            "fail_jobs",
            [f.owned.job_id for f in failures],
            [f.owned.fence for f in failures],
            [f.code for f in failures],
            [f.message for f in failures],
            [_encode(f.info).decode() for f in failures],
            [f.retry_after for f in failures],
        )
        return [Moved(*row) for row in rows]

    async def release(self, owned: Sequence[Owned]) -> list[Moved]:
        """Hand running jobs back; their attempt is not used up."""
        rows = await self.postgres.fetch(
            "release_jobs", [o.job_id for o in owned], [o.fence for o in owned]
        )
        return [Moved(*row) for row in rows]

    async def release_all(self, worker_id: UUID) -> tuple[list[Moved], int]:
        """Hand back every job that a worker holds, known to it or not; also returns how many are
        left, since somebody has their rows locked."""
        async with self.postgres.transaction() as transaction:
            held = await transaction.fetch("held_jobs", worker_id)
            free = await transaction.fetch("lock_free_jobs", [row["job_id"] for row in held])
            rows = await transaction.fetch(
                "release_jobs", [row["id"] for row in free], [row["fence"] for row in free]
            )
        return [Moved(*row) for row in rows], len(held) - len(free)

    async def defer(self, delays: dict[UUID, float]) -> None:
        """Publish pending jobs once more after so many seconds, for another worker."""
        await self.postgres.fetch("defer_jobs", list(delays), list(delays.values()))

    async def expire(self, job_ids: Sequence[UUID] | None = None) -> list[Moved]:
        """End jobs that have not started by their latest start time."""
        return [Moved(*r) for r in await self.postgres.fetch("expire_jobs", job_ids)]

    async def reap(
        self, job_ids: Sequence[UUID] | None, *, max_losses: int, most: int = 500
    ) -> list[Moved]:
        """Move jobs whose lease has expired: runnable again, or failed with WorkerLost."""
        rows = await self.postgres.fetch("reap_jobs", job_ids, max_losses, most, None)
        return [Moved(*row) for row in rows]

    async def lose(self, owned: Sequence[Owned], *, max_losses: int) -> list[Moved]:
        """Like reap, by the owner, for jobs whose own process has died: no lease need run out."""
        rows = await self.postgres.fetch(
            "reap_jobs",
            [o.job_id for o in owned],
            max_losses,
            len(owned),
            [o.fence for o in owned],
        )
        return [Moved(*row) for row in rows]

    async def record_strays(
        self, stream: str, strays: Sequence[tuple[str, dict[str, str], str]]
    ) -> None:
        """Set aside messages that are no job of ours: (entry id, fields, reason) each."""
        await self.postgres.fetch(
            "record_strays",
            stream,
            [entry for entry, _, _ in strays],
            [_encode(fields).decode() for _, fields, _ in strays],
            [reason for _, _, reason in strays],
        )

    # -- the caller's moves and views -----------------------------------------------------

    async def cancel_abandoned(self, most: int = 20) -> list[Moved]:
        """Cancel what is left of groups that have failed, a few groups at a time.

        They are forgotten last: after a crash in between they are only cancelled once more.
        """
        rows = await self.postgres.fetch("abandoned_members", most)
        members: dict[str, list[UUID]] = {}
        for row in rows:
            if row["job_id"] is not None:
                members.setdefault(row["tenant_id"], []).append(row["job_id"])
        moves = [move for one in members.items() for move in await self.cancel(*one)]
        await self.postgres.fetch("forget_abandoned", list({row["group_id"] for row in rows}))
        return moves

    async def cancel(self, tenant_id: str, job_ids: Sequence[UUID]) -> list[Moved]:
        """Cancel jobs and, with a workflow, its steps; terminal and foreign ones are left."""
        rows = await self.postgres.fetch("cancel_jobs", tenant_id, job_ids)
        return [Moved(*row) for row in rows]

    async def get(self, tenant_id: str, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
        """The documents of a tenant's jobs; unknown and foreign ones are both missing."""
        rows = await self.postgres.fetch("get_jobs", tenant_id, job_ids)
        return {job.job_id: job for job in await self._documents(tenant_id, rows)}

    async def page(
        self,
        tenant_id: str,
        *,
        before: UUID | None = None,
        statuses: Sequence[str] | None = None,
        task: str | None = None,
        queue: str | None = None,
        tag: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        most: int = 50,
    ) -> list[Job]:
        """A tenant's jobs, newest first, without their results."""
        rows = await self.postgres.fetch(
            "list_jobs", tenant_id, before, statuses, task, queue, tag, since, until, most
        )
        return await self._documents(tenant_id, rows)

    async def attempts(self, tenant_id: str, job_id: UUID) -> list[dict[str, Any]]:
        """How the attempts of a tenant's job ended, oldest first."""
        return [dict(r) for r in await self.postgres.fetch("job_attempts", tenant_id, job_id)]

    async def states(self, job_ids: Sequence[UUID]) -> list[Row]:
        """What watchers need: job_id, status, fence, attempt, progress, step, error_*, at."""
        return await self.postgres.fetch("job_states", job_ids)

    async def ended(self, job_ids: Sequence[UUID]) -> set[UUID]:
        """Which of these jobs are terminal."""
        return {row["id"] for row in await self.postgres.fetch("ended_jobs", job_ids)}

    async def queue_counts(self, tenant_id: str | None = None) -> list[Row]:
        """Live jobs by queue and status; `oldest` is the age of the oldest runnable one."""
        return await self.postgres.fetch("queue_counts", tenant_id)

    async def drain_rate(self, queue: str | None) -> float:
        """Jobs a second that ended in a queue over the last minute."""
        return float((await self.postgres.fetch("drain_rate", queue))[0]["ended"]) / 60.0

    # -- tasks and workers ----------------------------------------------------------------

    async def register_tasks(self, tasks: Sequence[dict[str, Any]]) -> None:
        """Publish what can be run; see core/tasks_table.py for the shape of an entry."""
        await self.postgres.fetch("register_tasks", _encode(tasks).decode())

    async def tasks(self) -> list[Row]:
        """Every task that was ever registered."""
        return await self.postgres.fetch("list_tasks")

    async def beat_worker(self, worker: Worker, *, draining: bool = False) -> None:
        """Tell that this worker lives."""
        await self.postgres.fetch("beat_worker", *worker, draining)

    async def remove_worker(self, worker_id: UUID) -> None:
        """Tell that this worker has ended."""
        await self.postgres.fetch("remove_worker", worker_id)

    async def workers(self, gone_after: float) -> list[Row]:
        """Workers seen within the last `gone_after` seconds."""
        return await self.postgres.fetch("live_workers", gone_after)

    async def prune_workers(self, seconds: float) -> int:
        """Forget workers not seen for so long that hold no lease; returns how many."""
        return len(await self.postgres.fetch("prune_workers", seconds))

    # -- the leader's chores --------------------------------------------------------------

    async def fail_stale_pending(
        self,
        term: Term,
        *,
        timeouts: dict[str, float],
        unpublished_timeout: float,
        gone_after: float,
        most: int = 1000,
    ) -> list[Moved]:
        """Fail jobs that waited for too long; see fail_stale_pending.sql for what is spared."""
        rows = await self.postgres.fetch(
            "fail_stale_pending",
            *term,
            _encode(timeouts).decode(),
            unpublished_timeout,
            most,
            gone_after,
        )
        return [Moved(*row) for row in rows]

    async def republish_lost(
        self,
        term: Term,
        queue: str,
        priorities: tuple[int, int],
        *,
        older_than: float,
        most: int = 1000,
    ) -> int:
        """Publish once more what one stream should have delivered already; returns how many."""
        rows = await self.postgres.fetch(
            "republish_lost", *term, queue, *priorities, older_than, most
        )
        return len(rows)

    async def live_queues(self) -> list[str]:
        """The queues that have jobs in them."""
        return [row["queue"] for row in await self.postgres.fetch("live_queues")]

    async def _documents(self, tenant_id: str, rows: Sequence[Row]) -> list[Job]:
        workflows = [row["job_id"] for row in rows if row["engine"] == "workflow"]
        steps: dict[UUID, list[StepOf]] = {}
        if workflows:
            for row in await self.postgres.fetch("workflow_steps", tenant_id, workflows):
                steps.setdefault(row["root_id"], []).append(
                    StepOf(row["job_id"], row["task"], row["status"])
                )
        return [_document(row, steps.get(row["job_id"])) for row in rows]


def _document(row: Row, steps: list[StepOf] | None) -> Job:
    return Job(
        job_id=row["job_id"],
        task=row["task"],
        queue=row["queue"],
        status=row["status"],
        priority=row["priority"],
        progress=row["progress"],
        step=row["step"],
        attempt=row["attempt"],
        max_retries=row["max_retries"],
        # Verbatim: what the task returned goes out as it came in.
        result=None if row["result"] is None else msgspec.Raw(row["result"].encode()),
        result_location=row["result_location"],
        error_code=row["error_code"],
        error_message=row["error_message"],
        error_info=_json(row["error_info"]),
        tags=row["tags"] or [],
        meta=_json(row["meta"]) or {},
        owner=row["owner"],
        external_ref=row["external_ref"],
        parent_id=row["parent_id"],
        retry_of=row["retry_of"],
        cancel_requested=row["cancel_requested"],
        created_at=row["created_at"],
        run_at=row["run_at"],
        started_at=row["started_at"],
        completed_at=row["completed_at"],
        expires_at=row["expires_at"],
        steps=msgspec.UNSET if steps is None else steps,
    )


def _json(text: str | None) -> dict[str, Any] | None:
    return None if text is None else msgspec.json.decode(text)
