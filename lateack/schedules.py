"""Declaring periodic jobs: what `@app.periodic` and Celery's `beat_schedule` come to.

A declaration is held against what can be seen here: names, numbers, JSON. Whether a cron expression
can be read, a zone exists or a task is known is for the scheduler to say, which reports it with the
schedule and goes on with the others; so one bad line does not keep an app from starting.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from .arguments import unfit_value
from .errors import DeclarationError
from .models import MAX_ARGUMENT_BYTES, Days, ScheduleRequest
from .names import queue_problem, schedule_problem, task_problem, tenant_problem

if TYPE_CHECKING:
    from .tasks import Task

SHORTEST_INTERVAL = 1.0  # seconds
# A number of seconds beyond this is a mistake in a unit, not a plan.
LONGEST_INTERVAL = 10 * 366 * 86_400.0
# Catching up with more ticks than this is what nobody means.
MOST_CAUGHT_UP = 1000
MAX_EXPRESSION = 200

_MISFIRE = re.compile(r"skip|once|all\(([1-9][0-9]{0,3})\)")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS = ("", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# Options of a beat entry that say how a message travels, which is ours to know.
_TRANSPORT = frozenset(
    {"compression", "delivery_mode", "exchange", "ignore_result", "retry", "retry_policy"}
    | {"routing_key", "serializer"}
)


class Cron(msgspec.Struct, frozen=True):
    """A cron expression of five fields; `days` as in `ScheduleRequest`."""

    expression: str
    days: Days = "either"


class Declaration(msgspec.Struct, frozen=True):
    """A schedule as the code declares it."""

    tenant: str
    name: str
    request: ScheduleRequest


When: TypeAlias = "str | float | timedelta | Cron"


def crontab(
    minute: int | str | Iterable[int] = "*",
    hour: int | str | Iterable[int] = "*",
    day_of_week: int | str | Iterable[int] = "*",
    day_of_month: int | str | Iterable[int] = "*",
    month_of_year: int | str | Iterable[int] = "*",
) -> Cron:
    """Celery's crontab, with Celery's meaning: numbers, names, lists, sets, ranges that wrap round
    ("fri-mon"), steps; a day has to match the day of the week and the day of the month.

        crontab(minute=0, hour="*/3")
        crontab(0, 8, day_of_week="mon-fri")
    """
    fields = (
        _field(minute, (), 0, 59),
        _field(hour, (), 0, 23),
        _field(day_of_month, (), 1, 31),
        _field(month_of_year, _MONTHS, 1, 12),
        _field(day_of_week, _DAYS, 0, 6),
    )
    return Cron(" ".join(fields), "both")


def timing(when: Any) -> dict[str, Any]:
    """The fields of a request that say when.

    Raises:
        DeclarationError: it is nothing that says when.
    """
    if isinstance(when, str):
        return {"cron": " ".join(when.split())}
    if isinstance(when, Cron):
        return {"cron": when.expression, "days": when.days}
    if isinstance(when, timedelta):
        return {"interval": when.total_seconds()}
    if isinstance(when, int | float) and not isinstance(when, bool):
        return {"interval": float(when)}
    if hasattr(when, "_orig_minute"):
        # A crontab of Celery itself.
        found = crontab(
            when._orig_minute,
            when._orig_hour,
            when._orig_day_of_week,
            when._orig_day_of_month,
            when._orig_month_of_year,
        )
        return {"cron": found.expression, "days": found.days}
    if isinstance(every := getattr(when, "run_every", None), timedelta):
        # A schedule of Celery itself.
        return {"interval": every.total_seconds()}
    raise DeclarationError(
        f"{when!r} does not say when: give a cron expression, seconds, a timedelta or a crontab"
    )


def declaration(name: str, tenant: str, request: ScheduleRequest) -> Declaration:
    """A declaration that can be written down.

    Raises:
        DeclarationError: it cannot; the message says what to change.
    """
    reason = schedule_problem(name) or tenant_problem(tenant) or request_problem(request)
    if reason:
        raise DeclarationError(f"schedule {name[:150]!r}: {reason}")
    return Declaration(tenant, name, request)


def request_problem(request: ScheduleRequest) -> str | None:
    """Why a request cannot be a schedule, as far as can be told without a parser and a ledger."""
    if (request.cron is None) == (request.interval is None):
        return "give either cron or interval"
    if request.cron is not None and len(request.cron) > MAX_EXPRESSION:
        return f"cron has {MAX_EXPRESSION} characters at most"
    every, expires = request.interval, request.expires
    if every is not None and not SHORTEST_INTERVAL <= every <= LONGEST_INTERVAL:
        return f"interval is seconds, from {SHORTEST_INTERVAL:g} to {LONGEST_INTERVAL:.0f}"
    if request.anchor is not None and every is None:
        return "anchor is for an interval; a cron expression has none"
    if request.anchor is not None and not 1970 <= request.anchor.year <= 2200:
        return "anchor is between the years 1970 and 2200"
    if expires is not None and not 0 < expires <= LONGEST_INTERVAL:
        return f"expires is seconds, more than 0 and {LONGEST_INTERVAL:.0f} at most"
    if len(request.zone) > MAX_EXPRESSION or unfit_value([request.zone, request.cron]):
        return "zone is the name of an IANA zone, such as Europe/Berlin"
    return misfire_problem(request.misfire) or _job_problem(request)


def misfire_problem(misfire: str) -> str | None:
    """Why `misfire` cannot be a misfire policy, or None when it can."""
    found = _MISFIRE.fullmatch(misfire)
    if found and int(found[1] or 0) <= MOST_CAUGHT_UP:
        return None
    return f'misfire is "skip", "once" or "all(n)", with n from 1 to {MOST_CAUGHT_UP}'


def caught_up(misfire: str) -> int:
    """How many of the ticks that were missed a misfire policy makes jobs for."""
    if misfire in ("skip", "once"):
        return int(misfire == "once")
    return int(misfire[len("all(") : -1])


def of_beat_entry(name: str, entry: Mapping[str, Any], *, zone: str, tenant: str) -> Declaration:
    """An entry of Celery's `beat_schedule`.

    `options` may hold queue, priority (higher runs first), expires and max_retries, and what says
    how a message travels, which is passed over.

    Raises:
        DeclarationError: it cannot be taken over; the message says why.
    """
    unknown = entry.keys() - {"task", "schedule", "args", "kwargs", "options", "relative"}
    if unknown or not {"task", "schedule"} <= entry.keys():
        raise DeclarationError(
            f"schedule {name!r}: an entry has task and schedule, and may have args, kwargs and "
            f"options; this one has {', '.join(sorted(map(str, entry)))}"
        )
    options = {k: v for k, v in (entry.get("options") or {}).items() if k not in _TRANSPORT}
    expires = options.pop("expires", None)
    if isinstance(expires, datetime):
        raise DeclarationError(f"schedule {name!r}: expires is seconds after each tick, not a time")
    given = {field: options.pop(field, None) for field in ("queue", "priority", "max_retries")}
    if options:
        raise DeclarationError(
            f"schedule {name!r}: the options {', '.join(sorted(options))} mean nothing here"
        )
    request = ScheduleRequest(
        task=task_name(entry["task"]),
        args=list(entry.get("args") or ()),
        kwargs=dict(entry.get("kwargs") or {}),
        expires=seconds(expires),
        zone=zone,
        **timing(entry["schedule"]),
        **given,
    )
    return declaration(name, tenant, request)


def task_name(task: str | Task[..., Any]) -> str:
    """The name of a task that is given as itself or by its name."""
    return task if isinstance(task, str) else task.name


def seconds(duration: float | timedelta | None) -> float | None:
    """A duration as seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def _job_problem(request: ScheduleRequest) -> str | None:
    if reason := task_problem(request.task):
        return f"task {request.task[:100]!r}: {reason}"
    if request.queue is not None and (reason := queue_problem(request.queue)):
        return f"queue {request.queue[:100]!r}: {reason}"
    if request.priority is not None and not 0 <= request.priority <= 9:
        return f"priority is 0 to 9, got {request.priority}"
    if request.max_retries is not None and not 0 <= request.max_retries <= 100_000:
        return f"max_retries is 0 to 100000, got {request.max_retries}"
    for field, value in (("args", request.args), ("kwargs", request.kwargs)):
        if reason := unfit_value(value):
            return f"{field} {reason}"
    try:
        size = len(msgspec.json.encode([request.args, request.kwargs]))
    except TypeError as error:
        return f"args and kwargs have to be JSON: {error}"
    if size > MAX_ARGUMENT_BYTES:
        return f"args and kwargs may have {MAX_ARGUMENT_BYTES} bytes of JSON"
    return None


def _field(value: int | str | Iterable[int], names: tuple[str, ...], first: int, last: int) -> str:
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        text = "".join(value.split())
        return ",".join(_part(part, names, first, last) for part in text.split(","))
    return ",".join(str(one) for one in sorted(value))


def _part(text: str, names: tuple[str, ...], first: int, last: int) -> str:
    """One term of a field in cron's own words; what is not understood is left as it is."""
    span, _, step = text.partition("/")
    ends = [_number(end, names) for end in span.split("-")]
    if len(ends) != 2 or not all(end.isdecimal() for end in ends):
        return "-".join(ends) + (f"/{step}" if step else "")
    low, high = int(ends[0]), int(ends[1])
    if low <= high:
        return f"{low}-{high}" + (f"/{step}" if step else "")
    # Celery's ranges wrap round, cron's do not.
    wrapped = [*range(low, last + 1), *range(first, high + 1)]
    return ",".join(str(one) for one in wrapped[:: int(step) if step.isdecimal() else 1])


def _number(text: str, names: tuple[str, ...]) -> str:
    short = text[:3].lower()
    return str(names.index(short)) if text.isalpha() and short in names else text
