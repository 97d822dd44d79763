"""Jobs over HTTP: submit, look, wait, cancel."""

from __future__ import annotations

import hashlib
import math
import time
from datetime import UTC, datetime
from typing import Annotated, Any, get_args
from uuid import UUID

import msgspec
from litestar import Request, Response, get, post
from litestar.params import FromQuery, QueryParameter

from lateack.models import MAX_BATCH, BatchAnswer, BatchItem, Job, JobPage, Submission
from lateack.states import Status
from lateack_core.ground import Ground
from lateack_core.postgres import LedgerUnavailable
from lateack_core.progress import announce
from lateack_core.submission import Accepted
from lateack_core.validation import Refused, invalid

from .bodies import MAX_BATCH_BODY, MAX_BODY, decode, read_json
from .given import GroundGiven, HubGiven, JobIdGiven, TenantGiven
from .idempotency import key_of, with_key
from .problems import bad_request, json_response, no_such_job, refusal_of
from .progress import Hub
from .schemas import BatchOperation, SubmitOperation

LONGEST_WAIT = 60.0
MOST_A_PAGE = 200
FILTERS = (
    *("status", "task", "queue", "tag", "since", "until"),
    *("limit", "cursor"),
)

_encode = msgspec.json.Encoder().encode
_submission = msgspec.json.Decoder(Submission)


class Batch(msgspec.Struct, forbid_unknown_fields=True):
    """Many submissions; each item is read on its own, so that one cannot spoil the others."""

    items: list[msgspec.Raw]


_batch = msgspec.json.Decoder(Batch)

AnyRequest = Request[Any, Any, Any]


@post("/v1/jobs", summary="Submit a job", status_code=202, operation_class=SubmitOperation)
async def submit(request: AnyRequest, ground: GroundGiven, tenant: TenantGiven) -> Response[bytes]:
    """202 with the job's document; 200 when its idempotency key was known, and nothing was made."""
    key = key_of(request)
    submission = decode(await read_json(request, MAX_BODY), _submission)
    accepted = await ground.submissions.accept(tenant, with_key(submission, key))
    headers = {"Location": f"/v1/jobs/{accepted.job.job_id}"}
    if accepted.replayed:
        headers["Idempotency-Replayed"] = "true"
    return _document(accepted.job, status=200 if accepted.replayed else 202, headers=headers)


@post("/v1/jobs/batch", summary="Submit many jobs", status_code=202, operation_class=BatchOperation)
async def submit_batch(
    request: AnyRequest, ground: GroundGiven, tenant: TenantGiven
) -> Response[bytes]:
    """`{"items": [submission, …]}`; the answer says of each what became of it, in the order given.

    It is not all or nothing: what one item meets does not touch another. 202 when something was
    accepted, else 200.
    """
    if key_of(request) is not None:
        raise bad_request("a batch takes no Idempotency-Key; give each item its idempotency_key")
    raw = decode(await read_json(request, MAX_BATCH_BODY), _batch).items
    if len(raw) > MAX_BATCH:
        raise invalid(f"a batch has {MAX_BATCH} items at most, this one has {len(raw)}")
    read = [_read_item(item, index) for index, item in enumerate(raw)]
    sound = [item for item in read if isinstance(item, Submission)]
    outcomes = await ground.submissions.accept_many(tenant, sound)
    if outcomes and all(isinstance(outcome, LedgerUnavailable) for outcome in outcomes):
        raise outcomes[0]  # type: ignore[misc]
    following = iter(outcomes)
    items = [_item(next(following) if isinstance(item, Submission) else item) for item in read]
    answer = BatchAnswer(
        items=items,
        accepted=sum(item.accepted and not item.replayed for item in items),
        replayed=sum(item.replayed for item in items),
        refused=sum(not item.accepted for item in items),
    )
    return json_response(_encode(answer), status=202 if answer.accepted else 200)


@get("/v1/jobs/{job_id:str}", summary="One job")
async def show(
    request: AnyRequest,
    ground: GroundGiven,
    hub: HubGiven,
    tenant: TenantGiven,
    job_id: JobIdGiven,
    wait: Annotated[float | None, QueryParameter(description="seconds, 60 at most")] = None,
) -> Response[bytes]:
    """The document. With `wait` it comes when the job has ended, or after so many seconds."""
    _only(request, "wait")
    if wait is not None and not 0 <= wait <= LONGEST_WAIT:
        raise bad_request(f"wait is seconds, from 0 to {LONGEST_WAIT:.0f}")
    number = identifier(job_id)
    job = await find(ground, tenant, number)
    if wait and not job.ended:
        job = await _wait_for_end(ground, hub, tenant, number, wait)
    return _document(job, request=request)


@get("/v1/jobs", summary="Your jobs, newest first")
async def list_jobs(
    request: AnyRequest,
    ground: GroundGiven,
    tenant: TenantGiven,
    statuses: Annotated[list[str] | None, QueryParameter(name="status")] = None,
    task: FromQuery[str | None] = None,
    queue: FromQuery[str | None] = None,
    tag: FromQuery[str | None] = None,
    since: FromQuery[datetime | None] = None,
    until: FromQuery[datetime | None] = None,
    limit: FromQuery[int] = 50,
    cursor: FromQuery[str | None] = None,
) -> Response[bytes]:
    """A page without results. `status` may be given several times; `since` and `until`
    are times of creation, with a zone; `cursor` is the `next` of the page before."""
    _only(request, *FILTERS)
    wanted = _statuses(statuses)
    _zoned("since", since)
    _zoned("until", until)
    if not 1 <= limit <= MOST_A_PAGE:
        raise bad_request(f"limit is 1 to {MOST_A_PAGE}")
    if any("\x00" in text for text in (task, queue, tag) if text):
        raise bad_request("a filter holds a NUL character")
    jobs = await ground.ledger.page(
        tenant,
        before=None if cursor is None else _cursor(cursor),
        statuses=wanted,
        task=task,
        queue=queue,
        tag=tag,
        since=since,
        until=until,
        most=limit + 1,
    )
    following = str(jobs[limit - 1].job_id) if len(jobs) > limit else None
    return json_response(_encode(JobPage(jobs[:limit], following)))


@post("/v1/jobs/{job_id:str}/cancel", summary="Cancel a job", status_code=202)
async def cancel(
    request: AnyRequest,
    ground: GroundGiven,
    hub: HubGiven,
    tenant: TenantGiven,
    job_id: JobIdGiven,
) -> Response[bytes]:
    """202 with the document; 200 when the job had ended already and is left as it is.

    A job that nobody runs ends now. One that runs is asked to stop; its state says when it did.
    """
    number = identifier(job_id)
    if (job := await find(ground, tenant, number)).ended:
        return _document(job)
    moves = await ground.ledger.cancel(tenant, [number])
    # Only a move that raised the fence may speak; a running job's owner speaks for itself.
    ended = [move for move in moves if move.completed_at is not None]
    hub.in_background(announce(ground.broker, ended))
    return _document(await find(ground, tenant, number), status=202 if moves else 200)


@get("/v1/jobs/{job_id:str}/attempts", summary="How its attempts ended")
async def attempts(
    request: AnyRequest, ground: GroundGiven, tenant: TenantGiven, job_id: JobIdGiven
) -> Response[bytes]:
    """Oldest first. A first attempt that succeeded leaves none, and one that runs is not listed."""
    number = identifier(job_id)
    rows = await ground.ledger.attempts(tenant, number)
    if not rows:
        await find(ground, tenant, number)
    # Which worker it was is the operator's to know.
    hidden = ("worker_id", "fence")
    items = [{k: v for k, v in row.items() if k not in hidden} for row in rows]
    return json_response(_encode({"items": items}))


def identifier(text: str) -> UUID:
    """A job's id. Raises Refused, the 404 of an unknown job, when it is none."""
    try:
        number = UUID(text)
    except ValueError:
        raise no_such_job() from None
    if str(number) != text.lower():
        raise no_such_job()
    return number


async def find(ground: Ground, tenant: str, job_id: UUID) -> Job:
    """A tenant's job. Raises Refused when it is unknown or foreign, LedgerUnavailable."""
    job = (await ground.ledger.get(tenant, [job_id])).get(job_id)
    if job is None:
        raise no_such_job()
    return job


async def _wait_for_end(ground: Ground, hub: Hub, tenant: str, job_id: UUID, seconds: float) -> Job:
    deadline = time.monotonic() + seconds
    async with hub.listening(job_id) as sink:
        while True:
            # Looked at after the hub listens, so that no end falls in between.
            job = await find(ground, tenant, job_id)
            left = deadline - time.monotonic()
            if job.ended or left <= 0 or sink.over is not None:
                return job
            await sink.end(left)


def _document(
    job: Job,
    *,
    status: int = 200,
    headers: dict[str, str] | None = None,
    request: AnyRequest | None = None,
) -> Response[bytes]:
    body = _encode(job)
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"ETag": tag, **(headers or {})}
    if not job.ended:
        headers["Retry-After"] = str(_look_again(job))
    if request is not None and _is_known(request, tag):
        return json_response(b"", status=304, headers=headers)
    return json_response(body, status=status, headers=headers)


def _is_known(request: AnyRequest, tag: str) -> bool:
    given = request.headers.get("if-none-match", "")
    return given.strip() == "*" or tag in {
        part.strip().removeprefix("W/") for part in given.split(",")
    }


def _look_again(job: Job) -> int:
    """Seconds after which asking again may tell something new."""
    if job.status in ("scheduled", "retrying"):
        until = (job.run_at - datetime.now(UTC)).total_seconds()
        return min(60, max(1, math.ceil(until)))
    return 1


def _read_item(raw: msgspec.Raw, index: int) -> Submission | Refused:
    try:
        return decode(bytes(raw), _submission, f"item {index}: ")
    except Refused as error:
        return error


def _item(outcome: Accepted | Exception) -> BatchItem:
    if isinstance(outcome, Accepted):
        return BatchItem(True, replayed=outcome.replayed, job=outcome.job)
    return BatchItem(False, problem=refusal_of(outcome))


def _only(request: AnyRequest, *known: str) -> None:
    # A misspelt filter that is passed over would answer another question than was asked.
    if unknown := sorted(set(request.query_params) - set(known)):
        raise bad_request(f"unknown parameter {', '.join(unknown)}; known are {', '.join(known)}")


def _statuses(given: list[str] | None) -> list[str] | None:
    if not given:
        return None
    wanted = [part for text in given for part in text.split(",")]
    if unknown := sorted(set(wanted) - set(get_args(Status))):
        raise bad_request(f"status {', '.join(unknown)!r} is none of {', '.join(get_args(Status))}")
    return wanted


def _zoned(name: str, value: datetime | None) -> None:
    if value is not None and value.tzinfo is None:
        raise bad_request(f"{name} needs a zone, such as 2030-01-31T08:00:00Z")


def _cursor(text: str) -> UUID:
    try:
        return identifier(text)
    except Refused:
        raise bad_request("cursor is the `next` of the page before") from None
