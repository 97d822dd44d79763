"""What waits for an operator: dead letters, and steps in doubt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from litestar import Request, Response, get
from litestar.openapi.spec import Operation

from lateack.ended import DeadCounts, DeadPage, Ended, Redrive, StepPage
from lateack_core.dead import dead_letters, steps_in_doubt
from lateack_core.redrive import Redrives

from .given import GroundGiven, TenantGiven
from .parameters import described, parameters
from .problems import bad_request, json_response

_encode = msgspec.json.Encoder().encode

PageSize = Annotated[int, msgspec.Meta(ge=1, le=200)]
AnyRequest = Request[Any, Any, Any]


class DeadQuery(Ended, kw_only=True):
    """Which dead letters, and which page of them."""

    limit: PageSize = 50
    cursor: UUID | None = None


class StepQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which steps. Only those in doubt are listed, and it has to be said."""

    in_doubt: Literal["true"]
    limit: PageSize = 50
    cursor: str | None = None


@dataclass
class DeadOperation(Operation):
    """A page of dead letters."""

    def __post_init__(self) -> None:
        self.parameters = described(DeadQuery)


@dataclass
class DeadCountsOperation(Operation):
    """Dead letters, counted."""

    def __post_init__(self) -> None:
        self.parameters = described(Ended)


@dataclass
class StepOperation(Operation):
    """A page of steps."""

    def __post_init__(self) -> None:
        self.parameters = described(StepQuery)


@get("/v1/dead", summary="Your dead letters, newest first", operation_class=DeadOperation)
async def list_dead(
    request: AnyRequest, ground: GroundGiven, tenant: TenantGiven
) -> Response[bytes]:
    """Jobs that failed and were not run again. `since` and `until` are when they ended, with a
    zone; `cursor` is the `next` of the page before. What failed only because an earlier step of its
    workflow did is listed with `error_code=UpstreamFailed`."""
    asked = parameters(request, DeadQuery)
    items = await dead_letters(
        ground.ledger, tenant, asked, before=asked.cursor, most=asked.limit + 1
    )
    following = str(items[asked.limit - 1].job_id) if len(items) > asked.limit else None
    return json_response(_encode(DeadPage(items[: asked.limit], following)))


@get(
    "/v1/dead/counts",
    summary="Your dead letters, counted",
    operation_class=DeadCountsOperation,
)
async def count_dead(
    request: AnyRequest, ground: GroundGiven, tenant: TenantGiven
) -> Response[bytes]:
    """By task and error, the most frequent first; the filters are those of the list."""
    asked = parameters(request, Ended)
    which = Redrive(**msgspec.structs.asdict(asked))
    counts = (await Redrives(ground).count(tenant, which)).counts
    total = sum(count.jobs + count.in_workflows for count in counts)
    return json_response(_encode(DeadCounts(total, counts)))


@get("/v1/steps", summary="Your steps in doubt", operation_class=StepOperation)
async def list_steps(
    request: AnyRequest, ground: GroundGiven, tenant: TenantGiven
) -> Response[bytes]:
    """With `in_doubt=true`: steps that began, never ended, and whose attempt is over, of the newest
    job first. Whether the outside took effect is not known here; ask it with the step's `key`."""
    asked = parameters(request, StepQuery)
    before = None if asked.cursor is None else _step_cursor(asked.cursor)
    items = await steps_in_doubt(ground.ledger, tenant, before=before, most=asked.limit + 1)
    following = None
    if len(items) > asked.limit:
        last = items[asked.limit - 1]
        following = f"{last.job_id}:{last.name}"
    return json_response(_encode(StepPage(items[: asked.limit], following)))


def _step_cursor(text: str) -> tuple[UUID, str]:
    job_id, colon, name = text.partition(":")
    try:
        if colon:
            return UUID(job_id), name
    except ValueError:
        pass
    raise bad_request("cursor is the `next` of the page before")
