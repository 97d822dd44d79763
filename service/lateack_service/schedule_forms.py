"""What is asked of schedules: queries and bodies, read strictly and described in OpenAPI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
from litestar.openapi.spec import Operation

from lateack.models import ScheduleRequest, TickOutcome, Zoned

from .parameters import described
from .schemas import body_of

PageSize = Annotated[int, msgspec.Meta(ge=1, le=200)]


class ScheduleQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which page of schedules."""

    limit: PageSize = 50
    cursor: str | None = None


class TickQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which ticks, and which page of them."""

    outcome: TickOutcome | None = None
    limit: PageSize = 50
    cursor: Zoned | None = None


class NextQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How many of the coming fire times."""

    n: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10


class RunRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a run by hand, which need not be given."""

    idempotency_key: str | None = None


@dataclass
class ListOperation(Operation):
    """A page of schedules."""

    def __post_init__(self) -> None:
        self.parameters = described(ScheduleQuery)


@dataclass
class TicksOperation(Operation):
    """A page of ticks."""

    def __post_init__(self) -> None:
        self.parameters = [*(self.parameters or []), *described(TickQuery)]


@dataclass
class NextOperation(Operation):
    """The coming fire times."""

    def __post_init__(self) -> None:
        self.parameters = [*(self.parameters or []), *described(NextQuery)]


@dataclass
class PutOperation(Operation):
    """What a schedule says."""

    def __post_init__(self) -> None:
        self.request_body = body_of(ScheduleRequest)
