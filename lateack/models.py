"""What goes over the wire: the one definition for service, worker, client and command line.

Times are aware datetimes (RFC 3339 on the wire), durations are seconds, ids are UUIDs.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from .states import TERMINAL, Status

EventType = Literal["snapshot", "status", "progress", "log", "gap"]

# An argument list over this many bytes is refused with 413; pass a reference instead.
MAX_ARGUMENT_BYTES = 64 * 1024
# A result over this many bytes ends the job with ResultTooLarge.
MAX_RESULT_BYTES = 1024 * 1024
MAX_BATCH = 10_000
MAX_STEPS = 1_000


class Step(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One later step of a chain.

    The result of the step before becomes the first positional argument, unless `immutable`.
    """

    task: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    immutable: bool = False
    queue: str | None = None
    priority: int | None = None
    max_retries: int | None = None


class Submission(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A request to run a task.

    `countdown` (seconds) and `eta` (a time with a zone) exclude each other; `expires` is seconds
    from now, or a time with a zone: a job that has not started by then ends `failed`/`Expired`.
    `priority` is 0 to 9, higher runs first. `then` makes a chain of this step and those.
    """

    task: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    queue: str | None = None
    priority: int | None = None
    countdown: float | None = None
    eta: datetime | None = None
    expires: float | datetime | None = None
    max_retries: int | None = None
    then: list[Step] = []
    tags: list[str] = []
    meta: dict[str, Any] = {}
    owner: str | None = None
    external_ref: str | None = None
    ignore_result: bool = False
    idempotency_key: str | None = None


class StepOf(msgspec.Struct, omit_defaults=True):
    """One step in a workflow's document, in the order of the chain."""

    job_id: UUID
    task: str
    status: Status


class Job(msgspec.Struct, omit_defaults=False):
    """A job, everywhere the same document.

    `progress` is 0 to 100 or null. `attempt` counts task bodies that started. `steps` is given
    for a workflow's own row only.
    """

    job_id: UUID
    task: str
    queue: str
    status: Status
    priority: int
    progress: float | None
    step: str | None
    attempt: int
    max_retries: int
    result: Any
    result_location: str | None
    error_code: str | None
    error_message: str | None
    error_info: dict[str, Any] | None
    tags: list[str]
    meta: dict[str, Any]
    owner: str | None
    external_ref: str | None
    parent_id: UUID | None
    retry_of: UUID | None
    cancel_requested: bool
    created_at: datetime
    run_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    expires_at: datetime | None
    steps: list[StepOf] | msgspec.UnsetType | None = msgspec.UNSET

    @property
    def id(self) -> UUID:
        return self.job_id

    @property
    def ended(self) -> bool:
        """Whether the job has its one outcome."""
        return self.status in TERMINAL


class JobPage(msgspec.Struct):
    """A page of jobs, newest first. `next` is the cursor of the page after it, or null."""

    items: list[Job]
    next: str | None


class Event(msgspec.Struct, omit_defaults=False):
    """One event of a job's life.

    `id` is `<fence>-<seq>`: give the last one seen as `after` to go on from there. A `snapshot`
    replaces all that was known; a `gap` says that events were missed and that a snapshot follows.
    """

    id: str
    job_id: UUID
    type: EventType
    status: Status
    progress: float | None
    step: str | None
    message: str | None
    attempt: int
    at: datetime

    @property
    def ended(self) -> bool:
        """Whether this is the last event of the job."""
        return self.status in TERMINAL and self.type in ("status", "snapshot")


class Refusal(msgspec.Struct, omit_defaults=True):
    """An RFC 9457 problem document. `type` is stable; `detail` says what to change."""

    type: str
    title: str
    status: int
    detail: str
    instance: str | None = None
    retry_after: float | None = None
    errors: list[str] | None = None


class BatchItem(msgspec.Struct, omit_defaults=True):
    """What became of one item of a batch: `job` when accepted or replayed, else `problem`."""

    accepted: bool
    replayed: bool = False
    job: Job | None = None
    problem: Refusal | None = None


class BatchAnswer(msgspec.Struct):
    """One entry for each item of the batch, in the order given."""

    items: list[BatchItem]
    accepted: int
    replayed: int
    refused: int
