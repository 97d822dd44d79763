"""What the clients can ask for, as calls and scripts; see _exchange."""

from __future__ import annotations

import base64
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypedDict, TypeVar, cast
from urllib.parse import quote, unquote, urlencode, urlsplit, urlunsplit
from uuid import UUID

import msgspec

from ._exchange import Budget, Call, Pause, Reply, Script, decoded, exchange
from ._waiting import refuse_to_wait
from .ended import DeadCounts, DeadPage, Redrive, RedriveAnswer, StepPage
from .errors import JobFailed, JobWasCancelled, Unreachable, WaitTimeout
from .models import MAX_BATCH, BatchAnswer, BatchItem, Job, JobPage, Step, Submission
from .states import Status

if TYPE_CHECKING:
    from .tasks import Task

# One long poll; shorter than the patience of the proxies that one meets.
POLL = 20.0  # seconds
# A service that answers a long poll at once is not asked more often than this.
SHORTEST_POLL = 0.5
# What an answer may take on its way after the time that was given for waiting is over.
SLACK = 1.0

JobRef: TypeAlias = UUID | str | Job
TaskRef: TypeAlias = "str | Task[..., Any]"
Seconds: TypeAlias = float | timedelta
Item = TypeVar("Item")


class Page(Protocol[Item]):
    """A page of a list; `next` is the cursor of the one after it."""

    items: list[Item]
    next: str | None


class Submitted(Job, dict=True):
    """The job that a submission or a retry made, or that had been made before by the same."""

    @property
    def replayed(self) -> bool:
        """Whether it had been made before, so that this call made nothing new."""
        return bool(self.__dict__.get("replayed", False))


class SubmitOptions(TypedDict, total=False):
    """What can be given with a submission.

    Durations are seconds or timedeltas, times have a zone. `then` makes a chain: the result of
    each step becomes the first argument of the next. Without an `idempotency_key` the client makes
    one for the call, and uses it again when it has to repeat itself.
    """

    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None
    queue: str | None
    priority: int | None
    countdown: Seconds | None
    eta: datetime | None
    expires: Seconds | datetime | None
    max_retries: int | None
    then: Sequence[Step | Mapping[str, Any]]
    tags: Sequence[str]
    meta: Mapping[str, Any] | None
    owner: str | None
    external_ref: str | None
    ignore_result: bool
    idempotency_key: str | None


class Filters(TypedDict, total=False):
    """Which jobs to list: made at `since` or later, before `until`; times have a zone."""

    status: Status | Sequence[Status] | None
    task: TaskRef | None
    queue: str | None
    tag: str | None
    since: datetime | None
    until: datetime | None


class EndedFilters(TypedDict, total=False):
    """Which of the jobs that have ended: `since` and `until` are when they did, with a zone."""

    task: TaskRef | None
    queue: str | None
    tag: str | None
    error_code: str | None
    since: datetime | None
    until: datetime | None


class RetryFilters(EndedFilters, total=False):
    """Which jobs to run again: those that failed, or with status "cancelled" the cancelled ones."""

    status: Literal["failed", "cancelled"]


class Address(msgspec.Struct, frozen=True):
    """Where the service is, and what every request says; `url` holds no credentials."""

    url: str
    headers: dict[str, str]

    def of(self, call: Call) -> str:
        """The whole URL of a call."""
        return f"{self.url}{call.path}" + (f"?{urlencode(call.query)}" if call.query else "")


def address(url: str, tenant: str | None, headers: Mapping[str, str] | None) -> Address:
    """Read a service's URL, which may hold `user:password@` and a path below which the service is.

    Raises:
        ValueError: it is no http or https URL.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("the service's URL is http://host:port or https://host/path, no query")
    credentials, _, place = parts.netloc.rpartition("@")
    given = {"accept": "application/json"}
    if credentials:
        plain = unquote(credentials).encode()
        given["authorization"] = f"Basic {base64.b64encode(plain).decode()}"
    if tenant is not None:
        given["x-tenant-id"] = tenant
    given |= {name.lower(): value for name, value in (headers or {}).items()}
    return Address(urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", "")), given)


def submission(task: TaskRef, options: SubmitOptions) -> Submission:
    """The request that these options make.

    Raises:
        ValueError: a duration, or a step of `then`, is not what it should be.
    """
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name in ("countdown", "expires"):
        if isinstance(given.get(name), timedelta):
            given[name] = given[name].total_seconds()
    for name, made in (("args", list), ("kwargs", dict), ("meta", dict), ("tags", list)):
        if name in given:
            given[name] = made(given[name])
    given["then"] = [
        step if isinstance(step, Step) else msgspec.convert(dict(step), Step)
        for step in given.get("then", ())
    ]
    return Submission(task=_name(task), **given)


def submit(submission: Submission, timeout: float) -> Script[Submitted]:
    """Submit one job. The key is made here, once, so that each repetition carries the same."""
    call = Call("POST", "/v1/jobs", body=msgspec.json.encode(_keyed(submission)))
    return _submitted((yield from exchange(call, Budget(timeout))))


def submit_many(submissions: Sequence[Submission], timeout: float) -> Script[list[BatchItem]]:
    """Submit many, in as few calls as may be; an answer for each, in order."""
    answers: list[BatchItem] = []
    for start in range(0, len(submissions), MAX_BATCH):
        items = [_keyed(one) for one in submissions[start : start + MAX_BATCH]]
        call = Call("POST", "/v1/jobs/batch", body=msgspec.json.encode({"items": items}))
        reply = yield from exchange(call, Budget(timeout))
        answers += decoded(reply, BatchAnswer).items
    return answers


def get(job: JobRef, timeout: float) -> Script[Job]:
    """A job's document."""
    return decoded((yield from exchange(_get(job), Budget(timeout))), Job)


def cancel(job: JobRef, timeout: float) -> Script[Job]:
    """Ask for a job to be cancelled."""
    call = Call("POST", f"{job_path(job)}/cancel", body=b"{}")
    return decoded((yield from exchange(call, Budget(timeout))), Job)


def retry(job: JobRef, timeout: float) -> Script[Submitted]:
    """Run an ended job again. A job is run again once, so this may be repeated as it is."""
    call = Call("POST", f"{job_path(job)}/retry", body=b"{}")
    return _submitted((yield from exchange(call, Budget(timeout))))


def redrive(filters: RetryFilters, limit: int | None, *, dry_run: bool) -> Redrive:
    """The request that these filters make. Its run is named here, once for all of its calls."""
    given: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
    if "task" in given:
        given["task"] = _name(given["task"])
    return Redrive(**given, limit=limit, dry_run=dry_run, run=None if dry_run else uuid.uuid4())


def retry_many(which: Redrive, timeout: float) -> Script[RedriveAnswer]:
    """Run ended jobs again, in as many calls as it takes; or count them. `timeout` is for each."""
    call = Call("POST", "/v1/jobs/retry", body=msgspec.json.encode(which))
    while True:
        answer = decoded((yield from exchange(call, Budget(timeout))), RedriveAnswer)
        if answer.done:
            return answer


def page(
    filters: Filters, cursor: str | None, timeout: float, *, page_size: int
) -> Script[JobPage]:
    """One page of a list of jobs, newest first."""
    call = Call("GET", "/v1/jobs", _query(filters, cursor, page_size))
    return decoded((yield from exchange(call, Budget(timeout))), JobPage)


def dead_page(
    filters: EndedFilters, cursor: str | None, timeout: float, *, page_size: int
) -> Script[DeadPage]:
    """One page of the dead letters, newest first."""
    call = Call("GET", "/v1/dead", _query(filters, cursor, page_size))
    return decoded((yield from exchange(call, Budget(timeout))), DeadPage)


def dead_counts(filters: EndedFilters, timeout: float) -> Script[DeadCounts]:
    """The dead letters by task and error."""
    call = Call("GET", "/v1/dead/counts", _query(filters))
    return decoded((yield from exchange(call, Budget(timeout))), DeadCounts)


def step_page(cursor: str | None, timeout: float, *, page_size: int) -> Script[StepPage]:
    """One page of the steps in doubt."""
    call = Call("GET", "/v1/steps", (("in_doubt", "true"), *_query({}, cursor, page_size)))
    return decoded((yield from exchange(call, Budget(timeout))), StepPage)


def _query(
    filters: Filters | EndedFilters, cursor: str | None = None, page_size: int | None = None
) -> tuple[tuple[str, str], ...]:
    query: list[tuple[str, str]] = []
    if page_size is not None:
        query.append(("limit", str(page_size)))
    for name, value in filters.items():
        if isinstance(value, datetime):
            query.append((name, value.isoformat()))
        elif isinstance(value, Sequence):
            query += [(name, one) for one in ([value] if isinstance(value, str) else value)]
        elif value is not None:
            query.append((name, _name(cast("TaskRef", value))))
    if cursor is not None:
        query.append(("cursor", cursor))
    return tuple(query)


def wait(job: JobRef, seconds: float | None, timeout: float) -> Script[Job]:
    """The job's document once it has ended; outages of the service are sat out meanwhile (CLI-03).

    `seconds` bounds the whole wait. Without it, `timeout` bounds how long the service may be away.

    Raises:
        WaitTimeout: it has not ended by then.
        WaitInsideTask: this is a task's body.
    """
    refuse_to_wait()
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    answered = False
    while True:
        began = time.monotonic()
        left = max(0.0, deadline - began)
        poll = round(min(POLL, left), 3)
        budget = Budget(poll + timeout if seconds is None else left + SLACK)
        try:
            reply = yield from exchange(_get(job, poll), budget)
        except Unreachable as error:
            if answered and seconds is not None:
                raise _late(job, seconds) from error
            raise
        found, answered = decoded(reply, Job), True
        if found.ended:
            return found
        now = time.monotonic()
        if now >= deadline and seconds is not None:
            raise _late(job, seconds)
        if (early := min(SHORTEST_POLL, poll) - (now - began)) > 0:
            yield Pause(early)


def result(job: JobRef, seconds: float | None, timeout: float) -> Script[Any]:
    """What the task returned.

    Raises:
        JobFailed, JobWasCancelled: it returned nothing.
        WaitTimeout: it has not ended yet.
    """
    return outcome((yield from wait(job, seconds, timeout)))


def outcome(job: Job) -> Any:
    """The result of a job that has ended.

    Raises:
        JobFailed, JobWasCancelled
    """
    if job.status == "failed":
        raise JobFailed(f"job {job.job_id} failed: {job.error_code}: {job.error_message}", job)
    if job.status == "cancelled":
        raise JobWasCancelled(f"job {job.job_id} was cancelled", job)
    return job.result


def job_path(job: JobRef) -> str:
    """The path of a job below the service's URL."""
    return f"/v1/jobs/{quote(str(job.job_id if isinstance(job, Job) else job), safe='')}"


def _get(job: JobRef, poll: float = 0.0) -> Call:
    query = (("wait", f"{poll:g}"),) if poll > 0 else ()
    return Call("GET", job_path(job), query, slow=poll)


def _submitted(reply: Reply) -> Submitted:
    job = decoded(reply, Submitted)
    job.__dict__["replayed"] = reply.headers.get("idempotency-replayed", "").lower() == "true"
    return job


def _late(job: JobRef, seconds: float) -> WaitTimeout:
    job_id = job.job_id if isinstance(job, Job) else job
    return WaitTimeout(f"job {job_id} has not ended within {seconds:g} s")


def _keyed(submission: Submission) -> Submission:
    if submission.idempotency_key is not None:
        return submission
    return msgspec.structs.replace(submission, idempotency_key=uuid.uuid4().hex)


def _name(task: TaskRef) -> str:
    return task if isinstance(task, str) else task.name
