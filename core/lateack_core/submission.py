"""Accepting jobs: the one way in, for the HTTP service and for tasks that enqueue tasks.

validate → idempotency → capacity → one transaction with the outbox row → publish at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from lateack.models import Job, Submission
from lateack.names import tenant_problem

from .admission import Caps, Full, seconds_until_free
from .group_commit import GroupCommit
from .identifiers import uuid7
from .jobs import Ledger
from .outbox import Fresh, Publisher
from .plan import Plan, columns_of
from .postgres import Blocked, LedgerUnavailable, Postgres, Row, Transaction
from .registry import Registry
from .stream import Hint
from .validation import Checked, CheckedStep, Refused, check, invalid, refusal

WORKFLOW_TASK = "lateack.chain"
# Of a batch; enough to fill two statements, and little enough not to hold up the loop.
AT_ONCE = 1000


class NewJob(NamedTuple):
    """A job, or with several steps a workflow, to insert."""

    job_id: UUID
    tenant_id: str
    checked: Checked
    plan: Plan | None = None

    @property
    def queue(self) -> str:
        return self.checked.first.queue

    @property
    def is_workflow(self) -> bool:
        return self.plan is not None


class Created(NamedTuple):
    """An inserted job, with the outbox rows that are to be published at once."""

    created_at: datetime
    run_at: datetime
    fresh: list[Fresh]


class Known(NamedTuple):
    """A job that has this key already."""

    job_id: UUID
    fingerprint: bytes


Answer = Created | Known | Full
Found = Mapping[tuple[str, str | None], Known]


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
        self._caps = Caps(caps or {})
        self._outbox_delay = outbox_delay
        self._jobs: GroupCommit[NewJob, Answer] = GroupCommit(self._write, lanes=2)
        # A workflow is a statement of its own.
        self._workflows: GroupCommit[NewJob, Answer] = GroupCommit(self._write, most=1, lanes=4)
        self._capped: GroupCommit[NewJob, Answer] = GroupCommit(self._write_within_caps)

    async def accept(self, tenant_id: str, submission: Submission) -> Accepted:
        """Write one job, or find the one that its key stands for.

        Raises:
            Refused: it must change, its key is taken, or the queue is full.
            LedgerUnavailable: whether it was written is not known; send it again with its key.
        """
        if reason := tenant_problem(tenant_id):
            raise invalid(reason)
        checked = await check(submission, self._registry)
        new = _new(tenant_id, checked)
        answer = await self._patiently(self._gate_of(new), new)
        if isinstance(answer, Full):
            raise await self._busy(answer)
        if isinstance(answer, Known):
            return await self._replay(tenant_id, checked, answer)
        self._publisher.offer(answer.fresh)
        if new.is_workflow:
            document = (await self._ledger.get(tenant_id, [new.job_id]))[new.job_id]
        else:
            document = _new_document(new, submission, answer)
        return Accepted(document, replayed=False)

    async def accept_many(
        self, tenant_id: str, submissions: Sequence[Submission]
    ) -> list[Accepted | Exception]:
        """Write many; what one item meets does not touch another. Answers in the order given."""
        # Deliberately not all-or-nothing: the answer says which were accepted (SUB-07).
        outcomes: list[Any] = []
        for start in range(0, len(submissions), AT_ONCE):
            some = submissions[start : start + AT_ONCE]
            found = await asyncio.gather(
                *(self.accept(tenant_id, submission) for submission in some), return_exceptions=True
            )
            outcomes += found
            if all(isinstance(outcome, LedgerUnavailable) for outcome in found):
                # The rest would be told the same, after waiting as long again and again.
                outcomes += [found[0]] * (len(submissions) - len(outcomes))
                break
        return outcomes

    def _gate_of(self, new: NewJob) -> GroupCommit[NewJob, Answer]:
        # Jobs that become runnable later count, but are never refused.
        at_once = not new.checked.delay and not new.checked.eta
        if at_once and self._caps.cover(new.queue):
            return self._capped
        return self._workflows if new.is_workflow else self._jobs

    async def _patiently(self, gate: GroupCommit[NewJob, Answer], new: NewJob) -> Answer:
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

    async def _write(self, jobs: list[NewJob]) -> list[Answer]:
        made = await self._insert(self._ledger.postgres, jobs)
        known = await _known(self._ledger.postgres, [j for j in jobs if j.job_id not in made])
        return [_answer(job, made, known) for job in jobs]

    async def _write_within_caps(self, jobs: list[NewJob]) -> list[Answer]:
        """Count and insert under one lock a cap, so that a cap is exact among all processes."""
        fulls: dict[UUID, Full] = {}
        admitted: list[NewJob] = []
        async with self._ledger.postgres.transaction(lock_timeout=3000) as transaction:
            scopes = await self._caps.lock(transaction, {job.queue for job in jobs})
            # Replays come before capacity: a known key is answered though the queue is full.
            known = await _known(transaction, jobs)
            places = await self._caps.count(transaction, scopes)
            for job in jobs:
                if (job.tenant_id, job.checked.key) in known:
                    continue
                if full := places.take(job.queue):
                    fulls[job.job_id] = full
                else:
                    admitted.append(job)
            made = await self._insert(transaction, admitted)
        late = await _known(self._ledger.postgres, [j for j in admitted if j.job_id not in made])
        return [
            fulls[job.job_id] if job.job_id in fulls else _answer(job, made, {**known, **late})
            for job in jobs
        ]

    async def _insert(
        self, where: Postgres | Transaction, jobs: Sequence[NewJob]
    ) -> dict[UUID, Created]:
        """Insert those whose key is new, with their outbox rows."""
        plain = [job for job in jobs if not job.is_workflow]
        made: dict[UUID, Created] = {}
        if plain:
            rows = await where.fetch("create_jobs", *_columns(plain), self._outbox_delay)
            by_id = {row["id"]: row for row in rows}
            for job in plain:
                if (row := by_id.get(job.job_id)) is not None:
                    made[job.job_id] = _created([row], job.checked.first)
        for job in jobs:
            if job.is_workflow:
                rows = await where.fetch("create_workflow", *workflow_rows(job), self._outbox_delay)
                if rows:
                    made[job.job_id] = _created(rows, job.checked.first)
        return made

    # -- answers --------------------------------------------------------------------------

    async def _busy(self, full: Full) -> Refused:
        rate = await self._ledger.drain_rate(full.queue or None)
        where = f"queue {full.queue}" if full.queue else "the service"
        return refusal(
            503,
            "queue-full",
            "The queue is full",
            f"{where} has {full.pending} pending jobs, {full.cap} is its cap; try again later",
            retry_after=seconds_until_free(full, rate),
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


async def _known(where: Postgres | Transaction, jobs: Sequence[NewJob]) -> Found:
    keyed = [job for job in jobs if job.checked.key is not None]
    if not keyed:
        return {}
    rows = await where.fetch(
        "find_by_keys", [job.tenant_id for job in keyed], [job.checked.key for job in keyed]
    )
    return {(r["tenant_id"], r["key"]): Known(r["job_id"], r["fingerprint"]) for r in rows}


def _columns(jobs: Sequence[NewJob]) -> list[list[Any]]:
    firsts = [job.checked.first for job in jobs]
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


def _new(tenant_id: str, checked: Checked) -> NewJob:
    if len(checked.parts) == 1 and isinstance(checked.parts[0], CheckedStep):
        return NewJob(uuid7(), tenant_id, checked)
    plan = Plan(checked.parts)
    return NewJob(plan.own.row_id, tenant_id, checked, plan)


def workflow_rows(new: NewJob) -> list[Any]:
    """The parameters of create_workflow, without its last."""
    checked, first, plan = new.checked, new.checked.first, new.plan
    assert plan is not None
    return [
        new.job_id, new.tenant_id, checked.key, checked.fingerprint, WORKFLOW_TASK,
        first.queue, first.priority, checked.rare or "{}", checked.delay, checked.eta,
        *columns_of(plan, first.queue, first.priority),
    ]  # fmt: skip


def _created(rows: Sequence[Row], first: CheckedStep) -> Created:
    """What was inserted: a job's row, or those of a workflow's steps that wait for nothing."""
    fresh = [
        Fresh(
            row["outbox_id"],
            Hint(row["id"], row.get("queue", first.queue), row.get("priority", first.priority)),
        )
        for row in rows
        if row["runnable"]
    ]
    return Created(rows[0]["created_at"], rows[0]["run_at"], fresh)


def _answer(job: NewJob, made: Mapping[UUID, Created], known: Found) -> Answer:
    if created := made.get(job.job_id):
        return created
    if found := known.get((job.tenant_id, job.checked.key)):
        return found
    # Its key was there when the row was inserted and is gone now: the job was pruned in between.
    raise Blocked("the key vanished between two statements")


def _new_document(new: NewJob, submission: Submission, created: Created) -> Job:
    """The document of a job that was just inserted, without asking the ledger for it again."""
    step = new.checked.first
    expires = submission.expires if submission.expires is not None else step.task.expires
    if isinstance(expires, (int, float)):
        expires = created.created_at + timedelta(seconds=expires)
    return Job(
        job_id=new.job_id,
        task=step.task.name,
        queue=step.queue,
        status="pending" if created.fresh else "scheduled",
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
        expires_at=expires,
    )
