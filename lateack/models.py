"""What goes over the wire: the one definition for service, worker, client and command line.

Times are aware datetimes (RFC 3339 on the wire), durations are seconds, ids are UUIDs.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from .states import TERMINAL, Status

EventType = Literal["snapshot", "status", "progress", "log", "gap"]

# An argument list over this many bytes is refused with 413; pass a reference instead.
MAX_ARGUMENT_BYTES = 64 * 1024
# A result over this many bytes ends the job with ResultTooLarge.
MAX_RESULT_BYTES = 1024 * 1024
MAX_BATCH = 10_000
MAX_STEPS = 5_000

OnFailure = Literal["fail_fast", "collect"]


class Step(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One part of a workflow: a `task`, or a `group` of parts side by side, or a `chain` of them.

    The result of the part before becomes the first positional argument, unless `immutable`; that
    of a group is the list of its members' results, in their order. When a member fails,
    `fail_fast` cancels the others and fails what comes after; with `collect` all of them end, and
    a member that failed stands in the list as `{job_id, status, error_code, error_message}`.
    """

    task: str = ""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    immutable: bool = False
    queue: str | None = None
    priority: int | None = None
    max_retries: int | None = None
    group: list[Step] | None = None
    chain: list[Step] | None = None
    on_failure: OnFailure = "fail_fast"


class Submission(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A request to run a `task`, or a `group` of parts side by side.

    `countdown` (seconds) and `eta` (a time with a zone) exclude each other; `expires` is seconds
    from now, or a time with a zone: a job that has not started by then ends `failed`/`Expired`.
    `priority` is 0 to 9, higher runs first. `then` makes a chain of this part and those.
    """

    task: str = ""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    queue: str | None = None
    priority: int | None = None
    countdown: float | None = None
    eta: datetime | None = None
    expires: float | datetime | None = None
    max_retries: int | None = None
    group: list[Step] | None = None
    on_failure: OnFailure = "fail_fast"
    then: list[Step] = []
    tags: list[str] = []
    meta: dict[str, Any] = {}
    owner: str | None = None
    external_ref: str | None = None
    ignore_result: bool = False
    idempotency_key: str | None = None


class StepOf(msgspec.Struct, omit_defaults=True):
    """One step in a workflow's document, in the order in which they were written."""

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


Zoned = Annotated[datetime, msgspec.Meta(tz=True)]


Overlap = Literal["allow", "skip"]
Days = Literal["either", "both"]
TickOutcome = Literal["fired", "late", "skipped", "missed", "manual"]


class ScheduleRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a schedule says: which task, when, and by which rules.

    Either `cron` (five fields, read in `zone`, an IANA name) or `interval` (seconds, at least 1,
    counted from `anchor`, which is 1970-01-01T00:00:00Z unless given). `days` says whether the day
    of the month or the day of the week has to match, or both, when a cron expression names both.

    `misfire` is what becomes of ticks that nobody was there to fire: "skip", "once" (one job for
    all of them), or "all(n)" (a job for each, the newest n). `overlap` "skip" fires no tick while a
    job of the schedule is waiting or running. `expires` is seconds after a tick within which its
    job has to start. `paused` is left as it is when it is not given.
    """

    task: str
    cron: str | None = None
    interval: float | None = None
    anchor: Zoned | None = None
    zone: str = "UTC"
    days: Days = "either"
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    queue: str | None = None
    priority: int | None = None
    max_retries: int | None = None
    expires: float | None = None
    misfire: str = "once"
    overlap: Overlap = "allow"
    paused: bool | None = None


class Schedule(msgspec.Struct, kw_only=True):
    """A schedule, everywhere the same document.

    `origin` is "code" for one that an app declares (`app`), else "api". `edited` tells that it was
    changed since the code spoke, `retired` that the code declares it no longer. `next_due` is null
    when nothing is to come, and `problem` then says why; with a `next_due`, `problem` is what keeps
    its ticks from firing. `last` is its newest tick.
    """

    name: str
    task: str
    cron: str | None
    interval: float | None
    anchor: datetime | None
    zone: str
    days: Days
    args: list[Any]
    kwargs: dict[str, Any]
    queue: str | None
    priority: int | None
    max_retries: int | None
    expires: float | None
    misfire: str
    overlap: Overlap
    paused: bool
    origin: Literal["code", "api"]
    app: str | None
    edited: bool
    retired: bool
    next_due: datetime | None
    problem: str | None
    last: Tick | None
    created_at: datetime
    updated_at: datetime


class Tick(msgspec.Struct, kw_only=True):
    """What became of one tick.

    fired    on time; `late` some seconds late, or caught up with (`reason` "catch_up")
    skipped  on purpose: "paused", "overlap", "unknown_task", "invalid_arguments"
    missed   nobody was there to fire it: "misfire", by its policy; "expired", too late to start
    manual   no tick, but a run by hand

    With `until` the row stands for all ticks from `due_at` until then, that one not included.
    `job_status` is the state of its job by now, null when there is none any more.
    """

    due_at: datetime
    until: datetime | None
    outcome: TickOutcome
    reason: str | None
    job_id: UUID | None
    job_status: Status | None
    decided_at: datetime


class Fire(msgspec.Struct, kw_only=True):
    """A time at which a schedule will fire: `local` is what clocks show there then, with their
    offset; `clock_change` says what a change of the clocks does to it, null when there is none."""

    due_at: datetime
    local: str
    clock_change: str | None


class SchedulePage(msgspec.Struct):
    """A page of schedules, by name. `next` is the cursor of the page after it, or null."""

    items: list[Schedule]
    next: str | None


class TickPage(msgspec.Struct):
    """A page of ticks, newest first. `next` is the cursor of the page after it, or null."""

    items: list[Tick]
    next: str | None


class Fires(msgspec.Struct):
    """The times at which a schedule will fire, soonest first."""

    items: list[Fire]
