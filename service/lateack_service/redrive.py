"""Running jobs that ended badly again, one and many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from litestar import Request, Response, post
from litestar.openapi.spec import Operation

from lateack.ended import Redrive
from lateack_core.redrive import Redrives

from .bodies import MAX_BODY, decode, read_json
from .given import GroundGiven, JobIdGiven, TenantGiven
from .jobs import identifier
from .parameters import without_nul
from .problems import json_response, no_such_job
from .schemas import body_of

_encode = msgspec.json.Encoder().encode
_redrive = msgspec.json.Decoder(Redrive)


@dataclass
class RetryManyOperation(Operation):
    """Which jobs to run again."""

    def __post_init__(self) -> None:
        self.request_body = body_of(Redrive)


@post("/v1/jobs/{job_id:str}/retry", summary="Run an ended job again", status_code=202)
async def retry(ground: GroundGiven, tenant: TenantGiven, job_id: JobIdGiven) -> Response[bytes]:
    """202 with the new job's document; 200 when this job had been retried before, with the job that
    was made then. Its `retry_of` is this job, which stays as it ended.

    A job that failed or was cancelled is run again once, ever: when the new one fails too, retry
    that one. The new job starts with a fresh budget of attempts and a fresh latest start, keeps
    the finished steps and the tokens of the old one, and takes over its idempotency key. 409 when
    the job has not ended, succeeded, or is a part of a workflow.
    """
    accepted = await Redrives(ground).one(tenant, identifier(job_id))
    if accepted is None:
        raise no_such_job()
    headers = {"Location": f"/v1/jobs/{accepted.job.job_id}"}
    if accepted.replayed:
        headers["Idempotency-Replayed"] = "true"
    status = 200 if accepted.replayed else 202
    return json_response(_encode(accepted.job), status=status, headers=headers)


@post(
    "/v1/jobs/retry",
    summary="Run many ended jobs again, or count them",
    status_code=200,
    operation_class=RetryManyOperation,
)
async def retry_many(
    request: Request[Any, Any, Any], ground: GroundGiven, tenant: TenantGiven
) -> Response[bytes]:
    """`dry_run`, the default, only counts: what would be run again, by task and error.

    With `dry_run: false` each job that matches is run again as a new one, oldest first, as many as
    can be in a few seconds; while `done` is false, send the same with the answer's `run`. Jobs
    that were retried before do not match, nor what ends after the run began. A run that broke off
    can be called again, or another one started: no job is run again twice.
    """
    which = decode(await read_json(request, MAX_BODY), _redrive)
    without_nul(which)
    redrives = Redrives(ground)
    if which.dry_run:
        answer = await redrives.count(tenant, which)
    else:
        answer = await redrives.many(tenant, which)
    return json_response(_encode(answer))
