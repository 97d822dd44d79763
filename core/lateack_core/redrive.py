"""Running a job that ended badly again, as a new job that knows which one it continues.

The old row stays as it ended: that is the history (I2). The new one has a fresh budget of attempts
and a fresh latest start, keeps the tokens and the finished steps of the old one, and takes over its
idempotency key. A job is redriven once, ever; when the new job fails, that one is redriven.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from lateack.ended import Redrive, RedriveAnswer, RedriveCount
from lateack.models import Job
from lateack.states import TERMINAL

from .ground import Ground
from .identifiers import uuid7
from .outbox import Fresh
from .postgres import Blocked, Row
from .stream import Hint
from .submission import Accepted
from .validation import Refused, refusal

BATCH = 500
# One request works this long, then says that there is more: a caller's patience has an end.
TURN = 2.0  # seconds
# They differ in the index that finds them.
_NEXT = {"failed": "redrive_failed", "cancelled": "redrive_cancelled"}


class Redrives:
    """Redrives, over the ground of a process."""

    def __init__(self, ground: Ground) -> None:
        self._ledger = ground.ledger
        self._publisher = ground.publisher
        self._outbox_delay = ground.settings.outbox_delay

    async def one(self, tenant_id: str, job_id: UUID) -> Accepted | None:
        """The job that runs this one again; `replayed` when there was one already. None when
        the job is unknown or foreign.

        Raises:
            Refused: it has not ended, it succeeded, or it is a part of a workflow.
            LedgerUnavailable: whether it was redriven is not known; ask again.
        """
        for _ in range(3):
            made = await self._ledger.postgres.fetch(
                "redrive_jobs", tenant_id, [job_id], None, self._outbox_delay
            )
            self._publish(made)
            if made:
                new_id = made[0]["new_id"]
                document = (await self._ledger.get(tenant_id, [new_id]))[new_id]
                return Accepted(document, replayed=False)
            found = await self._ledger.postgres.fetch("redrive_state", tenant_id, job_id)
            if not found:
                return None
            if found[0]["new_id"] is not None:
                return Accepted(await self._successor(tenant_id, found[0]["new_id"]), replayed=True)
            if refused := _refused(found[0]):
                raise refused
        raise Blocked("the job ended between two statements, three times")

    async def count(self, tenant_id: str, which: Redrive) -> RedriveAnswer:
        """What a run over these jobs would do, by task and error."""
        rows = await self._ledger.postgres.fetch(
            "redrive_counts", tenant_id, which.status, *_filters(which)
        )
        counts = [RedriveCount(**row) for row in rows]
        matched = sum(count.jobs for count in counts)
        return RedriveAnswer(dry_run=True, matched=matched, counts=counts)

    async def many(self, tenant_id: str, which: Redrive, *, seconds: float = TURN) -> RedriveAnswer:
        """Redrive what had ended when the run began, oldest first, for so many seconds.

        With `done` false there is more: call again with the answer's `run`. However often a run is
        called, and from where, its numbers are those of the whole run.

        Raises:
            Blocked: somebody else is at the same run; call again. LedgerUnavailable: the same.
        """
        run = which.run or uuid7()
        deadline = time.monotonic() + seconds
        after: UUID | None = UUID(int=0)
        while after is not None and time.monotonic() < deadline:
            after = await self._batch(tenant_id, run, which, after)
        (state,) = await self._ledger.postgres.fetch("redrive_run", tenant_id, run)
        return RedriveAnswer(
            dry_run=False,
            matched=state["retried"],
            run=run,
            retried=state["retried"],
            done=after is None,
            job_ids=state["new_ids"],
        )

    async def _batch(self, tenant_id: str, run: UUID, which: Redrive, after: UUID) -> UUID | None:
        """Redrive the next few; the last job that was looked at, None when there are no more."""
        async with self._ledger.postgres.transaction(lock_timeout=3000) as transaction:
            await transaction.fetch("redrive_lock", tenant_id, run)
            (state,) = await transaction.fetch("redrive_run", tenant_id, run)
            most = BATCH if which.limit is None else min(BATCH, which.limit - state["retried"])
            if most <= 0:
                return None
            *others, until = _filters(which)
            found = await transaction.fetch(
                _NEXT[which.status],
                tenant_id,
                *others,
                state["began"] if until is None else min(until, state["began"]),
                max(after, state["last_id"]),
                most,
            )
            free = [row["id"] for row in found if row["free"]]
            made = await transaction.fetch("redrive_jobs", tenant_id, free, run, self._outbox_delay)
        self._publish(made)
        return found[-1]["id"] if len(found) == most else None

    async def _successor(self, tenant_id: str, new_id: UUID) -> Job:
        job = (await self._ledger.get(tenant_id, [new_id])).get(new_id)
        if job is None:
            raise refusal(
                409,
                "retry-pruned",
                "It was run again long ago",
                "this job was retried, and the job that ran it again has been pruned; "
                "submit it anew",
            )
        return job

    def _publish(self, made: Sequence[Row]) -> None:
        self._publisher.offer(
            [
                Fresh(row["outbox_id"], Hint(row["new_id"], row["queue"], row["priority"]))
                for row in made
            ]
        )


def _filters(which: Redrive) -> list[Any]:
    return [which.task, which.queue, which.tag, which.error_code, which.since, which.until]


def _refused(state: Row) -> Refused | None:
    """Why this job cannot be redriven; None when it ended only a moment ago, so that it can."""
    if state["workflow_id"] is not None:
        what = (
            "a workflow" if state["is_workflow"] else f"a step of workflow {state['workflow_id']}"
        )
        return refusal(
            409,
            "part-of-workflow",
            "Workflows are not run again in part",
            f"this job is {what}; submit the workflow anew, with a new idempotency key",
        )
    if state["status"] not in TERMINAL:
        return refusal(
            409,
            "job-not-ended",
            "The job has not ended",
            f"this job is {state['status']}; wait for its end, or cancel it first",
        )
    if state["status"] == "succeeded":
        return refusal(
            409,
            "job-succeeded",
            "The job succeeded",
            "only failed and cancelled jobs are run again; for another result submit it anew, with "
            "a new idempotency key",
        )
    return None
