"""Accepting jobs: the one way in, for the HTTP service and for tasks that enqueue tasks.

validate → idempotency → capacity → one transaction with the outbox row → publish at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from lateack.models import Job, Submission
from lateack.names import tenant_problem

from .group_commit import GroupCommit
from .identifiers import uuid7
from .jobs import Ledger
from .outbox import Fresh, Publisher
from .postgres import Blocked, Row, Transaction
from .registry import Registry
from .stream import Hint
from .validation import Checked, Refused, check, invalid, refusal

WORKFLOW_TASK = "lateack.chain"


class NewJob(NamedTuple):
    """A job to insert."""

    job_id: UUID
    tenant_id: str
    checked: Checked


class Created(NamedTuple):
    """An inserted job."""

    outbox_id: int
    created_at: datetime
    run_at: datetime
    runnable: bool


class Known(NamedTuple):
    """A job that has this key already."""

    job_id: UUID
    fingerprint: bytes


class Full(NamedTuple):
    """A queue that takes no more; "" stands for all queues together."""

    queue: str
    pending: int
    cap: int


@dataclass(frozen=True)
class Accepted:
    """An accepted job; `replayed` when its key was known and nothing new was made."""

    job: Job
    replayed: bool


class Submissions:
    """The way in. Gathers concurrent submissions of this process into single statements."""

    def __init__(
        self,
        ledger: Ledger,
        registry: Registry,
        publisher: Publisher,
        *,
        caps: Mapping[str, int] | None = None,
        outbox_delay: float = 2.0,
    ) -> None:
        self._ledger = ledger
        self._registry = registry
        self._publisher = publisher
        self._caps = dict(caps or {})
        self._outbox_delay = outbox_delay
        self._open: GroupCommit[NewJob, Created | Known | Full] = GroupCommit(self._write, lanes=2)
        self._capped: GroupCommit[NewJob, Created | Known | Full] = GroupCommit(
            self._write_within_caps
        )

    async def accept(self, tenant_id: str, submission: Submission) -> Accepted:
        """Write one job, or find the one that its key stands for.

        Raises:
            Refused: it must change, its key is taken, or the queue is full.
            LedgerUnavailable: whether it was written is not known; send it again with its key.
        """
        if reason := tenant_problem(tenant_id):
            raise invalid(reason)
        checked = await check(submission, self._registry)
        if len(checked.steps) > 1:
            return await self._accept_workflow(tenant_id, submission, checked)
        new = NewJob(uuid7(), tenant_id, checked)
        gate = self._capped if self._is_capped(checked) else self._open
        answer = await self._patiently(gate, new)
        if isinstance(answer, Full):
            raise await self._busy(answer)
        if isinstance(answer, Known):
            return await self._replay(tenant_id, checked, answer)
        if answer.runnable:
            step = checked.steps[0]
            self._publisher.offer(
                [Fresh(answer.outbox_id, Hint(new.job_id, step.queue, step.priority))]
            )
        return Accepted(_new_document(new, submission, answer), replayed=False)

    async def accept_many(
        self, tenant_id: str, submissions: Sequence[Submission]
    ) -> list[Accepted | Exception]:
        """Write many; what one item meets does not touch another. Answers in the order given."""
        # Deliberately not all-or-nothing: the answer says which were accepted (SUB-07).
        return await asyncio.gather(  # type: ignore[return-value]
            *(self.accept(tenant_id, submission) for submission in submissions),
            return_exceptions=True,
        )

    async def _patiently(
        self, gate: GroupCommit[NewJob, Created | Known | Full], new: NewJob
    ) -> Created | Known | Full:
        """Wait a little for another transaction that holds the same key, then give up."""
        for _ in range(10):
            try:
                return await gate.put(new)
            except Blocked:
                await asyncio.sleep(0.05)
        raise refusal(
            503,
            "key-in-flight",
            "The key is being used",
            "another transaction that is still open submitted this idempotency key; try again",
            retry_after=1.0,
        )

    # -- writing --------------------------------------------------------------------------

    async def _write(self, jobs: list[NewJob]) -> list[Created | Known | Full]:
        rows = await self._ledger.postgres.fetch("create_jobs", *_columns(jobs), self._outbox_delay)
        known = await self._find_known(jobs, rows)
        return [_answer(job, rows_by_id, known) for rows_by_id in [_by_id(rows)] for job in jobs]

    async def _write_within_caps(self, jobs: list[NewJob]) -> list[Created | Known | Full]:
        """Count and insert under one lock a cap, so that a cap is exact among all processes."""
        queues = {job.checked.steps[0].queue for job in jobs}
        scopes = sorted(scope for scope in self._caps if scope == "" or scope in queues)
        fulls: dict[UUID, Full] = {}
        async with self._ledger.postgres.transaction(lock_timeout=3000) as transaction:
            await transaction.fetch("lock_caps", scopes)
            # Replays come before capacity: a known key is answered though the queue is full.
            known = await _known(transaction, jobs)
            places = await self._free_places(transaction, scopes)
            admitted = []
            for job in jobs:
                if (job.tenant_id, job.checked.key) in known:
                    continue
                if full := _take_place(places, job.checked.steps[0].queue):
                    fulls[job.job_id] = full
                else:
                    admitted.append(job)
            rows = (
                await transaction.fetch("create_jobs", *_columns(admitted), self._outbox_delay)
                if admitted
                else []
            )
        late = await self._find_known(admitted, rows)
        by_id = _by_id(rows)
        return [
            fulls[job.job_id] if job.job_id in fulls else _answer(job, by_id, known | late)
            for job in jobs
        ]

    async def _free_places(
        self, transaction: Transaction, scopes: Sequence[str]
    ) -> dict[str, tuple[int, int]]:
        """For each cap in force: (pending now, cap)."""
        wanted = None if "" in scopes else list(scopes)
        counts = {
            r["queue"]: r["pending"] for r in await transaction.fetch("count_pending", wanted)
        }
        return {
            scope: (
                sum(counts.values()) if scope == "" else counts.get(scope, 0),
                self._caps[scope],
            )
            for scope in scopes
        }

    async def _find_known(
        self, jobs: Sequence[NewJob], rows: Sequence[Row]
    ) -> dict[tuple[str, str | None], Known]:
        made = {row["id"] for row in rows}
        missing = [job for job in jobs if job.job_id not in made]
        return await _known(self._ledger.postgres, missing) if missing else {}

    # -- answers --------------------------------------------------------------------------

    def _is_capped(self, checked: Checked) -> bool:
        # Jobs that become runnable later count, but are never refused.
        if not self._caps or checked.delay or checked.eta:
            return False
        return "" in self._caps or checked.steps[0].queue in self._caps

    async def _busy(self, full: Full) -> Refused:
        rate = await self._ledger.drain_rate(full.queue or None)
        wait = (full.pending + 1 - full.cap) / rate if rate > 0 else 30.0
        where = f"queue {full.queue}" if full.queue else "the service"
        return refusal(
            503,
            "queue-full",
            "The queue is full",
            f"{where} has {full.pending} pending jobs, {full.cap} is its cap; try again later",
            retry_after=float(min(60, max(1, round(wait)))),
        )

    async def _replay(self, tenant_id: str, checked: Checked, known: Known) -> Accepted:
        if known.fingerprint != checked.fingerprint:
            raise refusal(
                409,
                "key-conflict",
                "The key was used with other content",
                "this idempotency key belongs to a job with other content; use a new key, or send "
                "exactly what was sent first",
            )
        job = (await self._ledger.get(tenant_id, [known.job_id])).get(known.job_id)
        if job is None:
            raise refusal(
                409,
                "key-expired",
                "The key's job is gone",
                "the job of this idempotency key has been pruned; use a new key",
            )
        return Accepted(job, replayed=True)

    async def _accept_workflow(
        self, tenant_id: str, submission: Submission, checked: Checked
    ) -> Accepted:
        steps, count = checked.steps, len(checked.steps)
        ids, joins = [uuid7() for _ in steps], [uuid7() for _ in steps]
        # The last of its ids: who ends a step locks the workflow's row after it, and who cancels
        # the workflow locks all of them in the order of their ids.
        own_id = uuid7()
        rows: list[Row] = []
        for attempt in range(10):
            try:
                rows = await self._ledger.postgres.fetch(
                    "create_workflow",
                    own_id, tenant_id, checked.key, checked.fingerprint, WORKFLOW_TASK,
                    steps[0].queue, steps[0].priority, checked.rare or "{}",
                    checked.delay, checked.eta,
                    joins, [1] * count, [False] * count,
                    ids, [s.task.name for s in steps], [s.queue for s in steps],
                    [s.priority for s in steps], [s.args for s in steps], [s.kwargs for s in steps],
                    [s.max_retries for s in steps], [None, *joins[:-1]], joins, list(range(count)),
                    [s.immutable for s in steps], joins[-1], self._outbox_delay,
                )  # fmt: skip
                break
            except Blocked:
                await asyncio.sleep(0.05 * (attempt + 1))
        if not rows:
            known = await _known(self._ledger.postgres, [NewJob(own_id, tenant_id, checked)])
            if not known:
                raise refusal(
                    503, "key-in-flight", "The key is being used", "try again", retry_after=1.0
                )
            return await self._replay(tenant_id, checked, next(iter(known.values())))
        self._publisher.offer(
            [
                Fresh(row["outbox_id"], Hint(row["id"], row["queue"], row["priority"]))
                for row in rows
                if row["runnable"]
            ]
        )
        return Accepted((await self._ledger.get(tenant_id, [own_id]))[own_id], replayed=False)


async def _known(where: Any, jobs: Sequence[NewJob]) -> dict[tuple[str, str | None], Known]:
    keyed = [job for job in jobs if job.checked.key is not None]
    if not keyed:
        return {}
    rows = await where.fetch(
        "find_by_keys", [job.tenant_id for job in keyed], [job.checked.key for job in keyed]
    )
    return {(r["tenant_id"], r["key"]): Known(r["job_id"], r["fingerprint"]) for r in rows}


def _columns(jobs: Sequence[NewJob]) -> list[list[Any]]:
    firsts = [job.checked.steps[0] for job in jobs]
    return [
        [job.job_id for job in jobs],
        [job.tenant_id for job in jobs],
        [job.checked.key for job in jobs],
        [job.checked.fingerprint for job in jobs],
        [step.task.name for step in firsts],
        [step.queue for step in firsts],
        [step.priority for step in firsts],
        [step.args for step in firsts],
        [step.kwargs for step in firsts],
        [step.max_retries for step in firsts],
        [job.checked.delay for job in jobs],
        [job.checked.eta for job in jobs],
        [job.checked.rare for job in jobs],
    ]


def _by_id(rows: Sequence[Row]) -> dict[UUID, Created]:
    return {
        row["id"]: Created(row["outbox_id"], row["created_at"], row["run_at"], row["runnable"])
        for row in rows
    }


def _answer(
    job: NewJob, made: Mapping[UUID, Created], known: Mapping[tuple[str, str | None], Known]
) -> Created | Known | Full:
    if created := made.get(job.job_id):
        return created
    if found := known.get((job.tenant_id, job.checked.key)):
        return found
    # Its key was there when the row was inserted and is gone now: the job was pruned in between.
    raise Blocked("the key vanished between two statements")


def _take_place(places: dict[str, tuple[int, int]], queue: str) -> Full | None:
    """Take a place under every cap that covers the queue, or say which one is full."""
    scopes = [scope for scope in ("", queue) if scope in places]
    for scope in scopes:
        pending, cap = places[scope]
        if pending >= cap:
            return Full(scope, pending, cap)
    for scope in scopes:
        pending, cap = places[scope]
        places[scope] = (pending + 1, cap)
    return None


def _new_document(new: NewJob, submission: Submission, created: Created) -> Job:
    """The document of a job that was just inserted, without asking the ledger for it again."""
    step = new.checked.steps[0]
    expires = submission.expires
    return Job(
        job_id=new.job_id,
        task=step.task.name,
        queue=step.queue,
        status="pending" if created.runnable else "scheduled",
        priority=step.priority,
        progress=None,
        step=None,
        attempt=0,
        max_retries=step.max_retries,
        result=None,
        result_location=None,
        error_code=None,
        error_message=None,
        error_info=None,
        tags=submission.tags,
        meta=submission.meta,
        owner=submission.owner,
        external_ref=submission.external_ref,
        parent_id=None,
        retry_of=None,
        cancel_requested=False,
        created_at=created.created_at,
        run_at=created.run_at,
        started_at=None,
        completed_at=None,
        expires_at=expires if isinstance(expires, datetime) else None,
    )
