"""Schedules over HTTP: made, edited, paused, run and deleted while everything runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from litestar import Request, Response, delete, get, post, put
from litestar.params import FromPath

from lateack.models import (
    Fires,
    Job,
    Schedule,
    SchedulePage,
    ScheduleRequest,
    Submission,
    TickPage,
)
from lateack.names import key_problem, schedule_problem
from lateack.schedules import request_problem
from lateack_core.ground import Ground
from lateack_core.postgres import Blocked, Duplicate
from lateack_core.recurrence import Unplannable, coming, following
from lateack_core.schedules import Run, Schedules, timing_of
from lateack_core.validation import Refused, check, invalid, refusal

from .bodies import MAX_BODY, decode, read_json
from .given import GroundGiven, TenantGiven
from .idempotency import key_of
from .parameters import parameters
from .problems import bad_request, json_response
from .schedule_forms import (
    ListOperation,
    NextOperation,
    NextQuery,
    PutOperation,
    RunRequest,
    ScheduleQuery,
    TickQuery,
    TicksOperation,
)

_encode = msgspec.json.Encoder().encode
_request = msgspec.json.Decoder(ScheduleRequest)
_run_request = msgspec.json.Decoder(RunRequest)

AnyRequest = Request[Any, Any, Any]
NameGiven = FromPath[str]

HINDRANCES = {
    "unknown_task": "no worker ever registered its task",
    "invalid_arguments": "its arguments do not fit its task",
    "overlap": "a job of it is waiting or running, and overlap is skip",
}


@get("/v1/schedules", summary="Your schedules, by name", operation_class=ListOperation)
async def list_schedules(
    request: AnyRequest, ground: GroundGiven, tenant: TenantGiven
) -> Response[bytes]:
    """`problem` says what keeps one from firing; `cursor` is the `next` of the page before."""
    asked = parameters(request, ScheduleQuery)
    found = await _of(ground).page(tenant, after=asked.cursor, most=asked.limit + 1)
    following_ = found[asked.limit - 1].name if len(found) > asked.limit else None
    return json_response(_encode(SchedulePage(found[: asked.limit], following_)))


@get("/v1/schedules/{name:str}", summary="One schedule")
async def show_schedule(
    request: AnyRequest, ground: GroundGiven, tenant: TenantGiven, name: NameGiven
) -> Response[bytes]:
    """The document, with its newest tick and the one to come."""
    return json_response(_encode(await _find(ground, tenant, name)))


@put("/v1/schedules/{name:str}", summary="Make or change a schedule", operation_class=PutOperation)
async def put_schedule(
    request: AnyRequest, ground: GroundGiven, tenant: TenantGiven, name: NameGiven
) -> Response[bytes]:
    """201 when it is new, else 200: it then says this, and nothing of what it said before.

    One that the code declares is edited; the edit holds until the declaration itself changes. 422
    when its expression cannot be read or names a date that never comes, when its zone or its task
    is unknown, or when the arguments do not fit.
    """
    if reason := schedule_problem(name):
        raise bad_request(f"schedule {name[:150]!r}: {reason}")
    wanted = decode(await read_json(request, MAX_BODY), _request)
    if reason := request_problem(wanted):
        raise invalid(reason)
    await check(_submission(wanted), ground.registry)
    schedules = _of(ground)
    try:
        next_due = following(timing_of(wanted), await schedules.now())
    except Unplannable as error:
        raise _unplannable(error) from None
    created = await schedules.put(tenant, name, wanted, next_due)
    return json_response(_encode(await _find(ground, tenant, name)), status=201 if created else 200)


@delete("/v1/schedules/{name:str}", summary="Delete a schedule", status_code=204)
async def delete_schedule(
    request: AnyRequest, ground: GroundGiven, tenant: TenantGiven, name: NameGiven
) -> None:
    """Its ticks go with it; jobs that it made stay. 409 for one that the code declares: it would
    come back with the next start of a worker. Remove it there, or pause it."""
    found = None if schedule_problem(name) else await _of(ground).delete(tenant, name)
    if found is None:
        raise _no_such_schedule()
    deleted, app = found
    if not deleted:
        raise refusal(
            409,
            "schedule-declared",
            "The code declares it",
            f"app {app} declares this schedule; remove it there, or pause it",
        )


@post("/v1/schedules/{name:str}/run", summary="Run a schedule now", status_code=202)
async def run_schedule(
    request: AnyRequest, ground: GroundGiven, tenant: TenantGiven, name: NameGiven
) -> Response[bytes]:
    """202 with the job's document, whatever the time, paused or not; its ticks stay as they are.

    With an `Idempotency-Key`, or an `idempotency_key` in the body, a repeat answers 200 with the
    first job. 409 when a job of the schedule is live and runs may not overlap, or when its task
    cannot run.
    """
    await _find(ground, tenant, name)
    key = await _run_key(request)
    for _ in range(5):
        job = None if key is None else await _known_run(ground, tenant, name, key)
        if job is not None:
            return _accepted(job, replayed=True)
        try:
            run = await _of(ground).run(tenant, name, key)
        except Duplicate:
            # The same key at the same moment: look who was first.
            continue
        if run is None:
            raise await _why_no_run(ground, tenant, name)
        if run.job_id is None and key is not None:
            # What is in the way may be the job of this very key.
            job = await _known_run(ground, tenant, name, key)
        if job is not None:
            return _accepted(job, replayed=True)
        return _accepted(await _job(ground, tenant, run), replayed=False)
    raise Blocked("the key is being used")


@post("/v1/schedules/{name:str}/pause", summary="Pause a schedule", status_code=200)
async def pause_schedule(
    request: AnyRequest, ground: GroundGiven, tenant: TenantGiven, name: NameGiven
) -> Response[bytes]:
    """Its ticks are recorded as skipped until it is resumed. No deploy resumes it."""
    return await _set_paused(ground, tenant, name, paused=True)


@post("/v1/schedules/{name:str}/resume", summary="Resume a schedule", status_code=200)
async def resume_schedule(
    request: AnyRequest, ground: GroundGiven, tenant: TenantGiven, name: NameGiven
) -> Response[bytes]:
    """It fires from its next tick on; what was skipped is not caught up with."""
    return await _set_paused(ground, tenant, name, paused=False)


@get(
    "/v1/schedules/{name:str}/ticks",
    summary="What became of its ticks, newest first",
    operation_class=TicksOperation,
)
async def list_ticks(
    request: AnyRequest, ground: GroundGiven, tenant: TenantGiven, name: NameGiven
) -> Response[bytes]:
    """fired, late, skipped, missed, manual; and why. `cursor` is the `next` of the page before."""
    asked = parameters(request, TickQuery)
    await _find(ground, tenant, name)
    found = await _of(ground).ticks(
        tenant,
        name,
        before=asked.cursor,
        outcomes=None if asked.outcome is None else [asked.outcome],
        most=asked.limit + 1,
    )
    cut = found[asked.limit - 1].due_at if len(found) > asked.limit else None
    return json_response(_encode(TickPage(found[: asked.limit], _stamp(cut))))


@get(
    "/v1/schedules/{name:str}/next",
    summary="Its coming fire times",
    operation_class=NextOperation,
)
async def next_fires(
    request: AnyRequest, ground: GroundGiven, tenant: TenantGiven, name: NameGiven
) -> Response[bytes]:
    """The next `n`, from now on, by the ledger's clock, with changes of the clocks marked. They are
    those of a schedule that is not paused. 409 when there are none."""
    asked = parameters(request, NextQuery)
    schedule = await _find(ground, tenant, name)
    if schedule.retired:
        raise _retired()
    request_ = ScheduleRequest(
        task=schedule.task,
        cron=schedule.cron,
        interval=schedule.interval,
        anchor=schedule.anchor,
        zone=schedule.zone,
        days=schedule.days,
    )
    try:
        fires = coming(timing_of(request_), await _of(ground).now(), asked.n)
    except Unplannable as error:
        raise refusal(409, "no-next-tick", "Nothing is to come", str(error)) from None
    return json_response(_encode(Fires(fires)))


HANDLERS = [
    list_schedules,
    show_schedule,
    put_schedule,
    delete_schedule,
    run_schedule,
    pause_schedule,
    resume_schedule,
    list_ticks,
    next_fires,
]


def _of(ground: Ground) -> Schedules:
    return Schedules(ground.postgres)


async def _find(ground: Ground, tenant: str, name: str) -> Schedule:
    # What cannot be a name is the name of none: some texts PostgreSQL cannot even compare.
    found = None if schedule_problem(name) else await _of(ground).get(tenant, name)
    if found is None:
        raise _no_such_schedule()
    return found


async def _set_paused(ground: Ground, tenant: str, name: str, *, paused: bool) -> Response[bytes]:
    if schedule_problem(name) or not await _of(ground).pause(tenant, name, paused=paused):
        raise _no_such_schedule()
    return json_response(_encode(await _find(ground, tenant, name)))


async def _run_key(request: AnyRequest) -> str | None:
    """The idempotency key of a run, from its header or its body."""
    key = key_of(request)
    if request.headers.get("content-length", "0") != "0":
        given = decode(await read_json(request, MAX_BODY), _run_request).idempotency_key
        if key is not None and given not in (None, key):
            raise bad_request("Idempotency-Key and idempotency_key differ; give one of them")
        key = key or given
    if key is not None and (reason := key_problem(key)):
        raise invalid(reason)
    return key


async def _known_run(ground: Ground, tenant: str, name: str, key: str) -> Job | None:
    """The job that this key made before, if any.

    Raises:
        Refused: the key belongs to something else.
    """
    rows = await ground.postgres.fetch("find_by_keys", [tenant], [key])
    if not rows:
        return None
    job = (await ground.ledger.get(tenant, [rows[0]["job_id"]])).get(rows[0]["job_id"])
    if job is None or job.meta.get("schedule") != name:
        raise refusal(
            409,
            "key-conflict",
            "The key was used for something else",
            "this idempotency key belongs to another job; use a new key",
        )
    return job


async def _job(ground: Ground, tenant: str, run: Run) -> Job:
    if run.job_id is None:
        why = HINDRANCES[run.hindrance or ""]
        raise refusal(409, f"schedule-{run.hindrance}".replace("_", "-"), "It cannot run now", why)
    return (await ground.ledger.get(tenant, [run.job_id]))[run.job_id]


async def _why_no_run(ground: Ground, tenant: str, name: str) -> Refused:
    await _find(ground, tenant, name)
    return _retired()


def _accepted(job: Job, *, replayed: bool) -> Response[bytes]:
    headers = {"Location": f"/v1/jobs/{job.job_id}"}
    if replayed:
        headers["Idempotency-Replayed"] = "true"
    return json_response(_encode(job), status=200 if replayed else 202, headers=headers)


def _submission(wanted: ScheduleRequest) -> Submission:
    return Submission(
        task=wanted.task,
        args=wanted.args,
        kwargs=wanted.kwargs,
        queue=wanted.queue,
        priority=wanted.priority,
        max_retries=wanted.max_retries,
    )


def _stamp(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat().replace("+00:00", "Z")


def _no_such_schedule() -> Refused:
    """Unknown and foreign are the same answer (I9)."""
    detail = "there is no such schedule, or it is not yours"
    return refusal(404, "schedule-not-found", "No such schedule", detail)


def _retired() -> Refused:
    detail = "the code declares this schedule no longer; put it anew to keep it, or delete it"
    return refusal(409, "schedule-retired", "The schedule is retired", detail)


def _unplannable(error: Unplannable) -> Refused:
    return refusal(422, "invalid-schedule", "It cannot be told when this fires", str(error))
