"""What goes over the wire about jobs that ended badly: running them again, dead letters, doubts."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from .models import Zoned
from .states import Status


class Ended(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which of the jobs that have ended: `since` and `until` are when they ended, with a zone."""

    task: str | None = None
    queue: str | None = None
    tag: str | None = None
    error_code: str | None = None
    since: Zoned | None = None
    until: Zoned | None = None


class Redrive(Ended, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request to run ended jobs again, each once, as new jobs; or only to count them.

    `limit` is how many at most, the oldest first. `run` is an id of the caller's own: calls with
    the same one are one run, however often they are repeated.
    """

    status: Literal["failed", "cancelled"] = "failed"
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None
    dry_run: bool = True
    run: UUID | None = None


class RedriveCount(msgspec.Struct):
    """Jobs of one task that ended with one error: `jobs` can be run again, `in_workflows` are parts
    of workflows and cannot. `worker_losses` is how many workers were lost with all of them."""

    task: str
    error_code: str | None
    jobs: int
    in_workflows: int
    worker_losses: int


class RedriveAnswer(msgspec.Struct):
    """What a redrive would do (`dry_run`), or did.

    `matched` is how many can be run again; `retried`, of the whole run, how many were; `job_ids`
    are the first hundred of the new jobs. When `done` is false there is more: the same request
    with this `run` goes on.
    """

    dry_run: bool
    matched: int
    run: UUID | None = None
    retried: int = 0
    done: bool = True
    counts: list[RedriveCount] = []
    job_ids: list[UUID] = []


class DeadLetter(msgspec.Struct):
    """A job that failed for good and was not run again.

    `attempt` counts the bodies that started, `worker_losses` those that took their worker along.
    `workflow_id` is given for a part of a workflow, `retry_of` for a job that ran another again.
    """

    job_id: UUID
    task: str
    queue: str
    attempt: int
    worker_losses: int
    error_code: str
    error_message: str | None
    workflow_id: UUID | None
    retry_of: UUID | None
    created_at: datetime
    completed_at: datetime


class DeadPage(msgspec.Struct):
    """A page of dead letters, newest job first. `next` is the cursor of the page after it."""

    items: list[DeadLetter]
    next: str | None


class DeadCounts(msgspec.Struct):
    """The dead letters by task and error, the most frequent first."""

    total: int
    items: list[RedriveCount]


class StepInDoubt(msgspec.Struct):
    """A step that began, never ended, and whose attempt is over: did the outside take effect?

    `key` is what the step was given as its idempotency key, to ask the outside system with;
    `since` when it began last, `begun` how often, `error` what it raised, if it did.
    """

    job_id: UUID
    task: str
    queue: str
    status: Status
    name: str
    key: str
    since: datetime
    attempt: int
    begun: int
    error: str | None


class StepPage(msgspec.Struct):
    """A page of steps in doubt, newest job first. `next` is the cursor of the page after it."""

    items: list[StepInDoubt]
    next: str | None
