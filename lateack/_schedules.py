"""Schedules, as the clients have them: `client.schedules`; see _exchange for what a script is."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict, Unpack
from urllib.parse import quote

import msgspec

from ._exchange import Budget, Call, Script, decoded, exchange
from .models import (
    Days,
    Fire,
    Fires,
    Job,
    Overlap,
    Schedule,
    SchedulePage,
    ScheduleRequest,
    Tick,
    TickOutcome,
    TickPage,
)
from .schedules import Cron, When, seconds, task_name, timing

if TYPE_CHECKING:
    from datetime import timedelta

    from .tasks import Task

PAGE = 200


class ScheduleOptions(TypedDict, total=False):
    """What can be said of a schedule, beside its task and when; see `ScheduleRequest`."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    queue: str | None
    priority: int | None
    max_retries: int | None
    expires: float | timedelta | None
    zone: str
    days: Days
    anchor: datetime | None
    misfire: str
    overlap: Overlap
    paused: bool | None


class Schedules:
    """The schedules of a `Client`.

    await jobs.schedules.put("nightly", "reports.build", "0 3 * * *", zone="Europe/Berlin")
    for fire in await jobs.schedules.next("nightly"):
        print(fire.local, fire.clock_change)
    """

    def __init__(self, follow: Callable[[Script[Any]], Awaitable[Any]], timeout: float) -> None:
        self._follow = follow
        self._timeout = timeout

    async def put(
        self, name: str, task: str | Task[..., Any], when: When, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Make a schedule, or replace all that it says. `when` is a cron expression, seconds, a
        timedelta or a `crontab`; `paused` stays as it is unless given.

        Raises:
            InvalidRequest: the service says what to change.
        """
        return await self.put_request(name, _request(task, when, options))

    async def put_request(self, name: str, request: ScheduleRequest) -> Schedule:
        """Like `put`, from a ready request."""
        found: Schedule = await self._follow(_put(name, request, self._timeout))
        return found

    async def get(self, name: str) -> Schedule:
        """A schedule's document. Raises NotFound."""
        found: Schedule = await self._follow(_one("GET", name, "", self._timeout))
        return found

    async def list(self) -> AsyncIterator[Schedule]:
        """All of them, by name."""
        cursor: str | None = None
        while True:
            page: SchedulePage = await self._follow(_page(cursor, self._timeout))
            for schedule in page.items:
                yield schedule
            if (cursor := page.next) is None:
                return

    async def delete(self, name: str) -> None:
        """Delete it with its ticks. Raises NotFound, and Conflict while the code declares it."""
        await self._follow(_delete(name, self._timeout))

    async def run(self, name: str) -> Job:
        """Run it now. Raises NotFound; Conflict when its task cannot run, or runs may not overlap
        and one is live."""
        job: Job = await self._follow(_run(name, self._timeout))
        return job

    async def pause(self, name: str) -> Schedule:
        """Let its ticks be skipped from now on."""
        found: Schedule = await self._follow(_one("POST", name, "/pause", self._timeout))
        return found

    async def resume(self, name: str) -> Schedule:
        """Let it fire again, from its next tick on."""
        found: Schedule = await self._follow(_one("POST", name, "/resume", self._timeout))
        return found

    async def ticks(
        self, name: str, *, limit: int = 50, outcome: TickOutcome | None = None
    ) -> Sequence[Tick]:
        """What became of its newest ticks, newest first; as many as `limit` (200 at most)."""
        page: TickPage = await self._follow(_ticks(name, limit, outcome, self._timeout))
        return page.items

    async def next(self, name: str, n: int = 10) -> Sequence[Fire]:
        """The times at which it will fire, with changes of the clocks marked."""
        fires: Fires = await self._follow(_next(name, n, self._timeout))
        return fires.items


class SyncSchedules:
    """The schedules of a `SyncClient`: the methods of `Schedules`, plain."""

    def __init__(self, follow: Callable[[Script[Any]], Any], timeout: float) -> None:
        self._follow = follow
        self._timeout = timeout

    def put(
        self, name: str, task: str | Task[..., Any], when: When, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """See `Schedules.put`."""
        return self.put_request(name, _request(task, when, options))

    def put_request(self, name: str, request: ScheduleRequest) -> Schedule:
        """See `Schedules.put_request`."""
        found: Schedule = self._follow(_put(name, request, self._timeout))
        return found

    def get(self, name: str) -> Schedule:
        """See `Schedules.get`."""
        found: Schedule = self._follow(_one("GET", name, "", self._timeout))
        return found

    def list(self) -> Iterator[Schedule]:
        """See `Schedules.list`."""
        cursor: str | None = None
        while True:
            page: SchedulePage = self._follow(_page(cursor, self._timeout))
            yield from page.items
            if (cursor := page.next) is None:
                return

    def delete(self, name: str) -> None:
        """See `Schedules.delete`."""
        self._follow(_delete(name, self._timeout))

    def run(self, name: str) -> Job:
        """See `Schedules.run`."""
        job: Job = self._follow(_run(name, self._timeout))
        return job

    def pause(self, name: str) -> Schedule:
        """See `Schedules.pause`."""
        found: Schedule = self._follow(_one("POST", name, "/pause", self._timeout))
        return found

    def resume(self, name: str) -> Schedule:
        """See `Schedules.resume`."""
        found: Schedule = self._follow(_one("POST", name, "/resume", self._timeout))
        return found

    def ticks(
        self, name: str, *, limit: int = 50, outcome: TickOutcome | None = None
    ) -> Sequence[Tick]:
        """See `Schedules.ticks`."""
        page: TickPage = self._follow(_ticks(name, limit, outcome, self._timeout))
        return page.items

    def next(self, name: str, n: int = 10) -> Sequence[Fire]:
        """See `Schedules.next`."""
        fires: Fires = self._follow(_next(name, n, self._timeout))
        return fires.items


def request_of(schedule: Schedule) -> ScheduleRequest:
    """The request that says what a schedule says, to be changed and put again."""
    names = [name for name in ScheduleRequest.__struct_fields__ if name != "paused"]
    return ScheduleRequest(**{name: getattr(schedule, name) for name in names})


def _request(task: str | Task[..., Any], when: When, options: ScheduleOptions) -> ScheduleRequest:
    given: dict[str, Any] = {**timing(when), **options}
    given["args"] = list(given.get("args", ()))
    given["kwargs"] = dict(given.get("kwargs", {}))
    given["expires"] = seconds(given.get("expires"))
    if isinstance(when, Cron):
        given["days"] = when.days
    return ScheduleRequest(task=task_name(task), **given)


def _path(name: str, more: str = "") -> str:
    return f"/v1/schedules/{quote(name, safe='')}{more}"


def _put(name: str, request: ScheduleRequest, timeout: float) -> Script[Schedule]:
    call = Call("PUT", _path(name), body=msgspec.json.encode(request))
    return decoded((yield from exchange(call, Budget(timeout))), Schedule)


def _one(method: str, name: str, more: str, timeout: float) -> Script[Schedule]:
    call = Call(method, _path(name, more), body=None if method == "GET" else b"{}")
    return decoded((yield from exchange(call, Budget(timeout))), Schedule)


def _page(cursor: str | None, timeout: float) -> Script[SchedulePage]:
    query = (("limit", str(PAGE)), *((("cursor", cursor),) if cursor is not None else ()))
    call = Call("GET", "/v1/schedules", query)
    return decoded((yield from exchange(call, Budget(timeout))), SchedulePage)


def _delete(name: str, timeout: float) -> Script[None]:
    yield from exchange(Call("DELETE", _path(name)), Budget(timeout))


def _run(name: str, timeout: float) -> Script[Job]:
    """Run it. The key is made here, once, so that each repetition carries the same."""
    body = msgspec.json.encode({"idempotency_key": uuid.uuid4().hex})
    call = Call("POST", _path(name, "/run"), body=body)
    return decoded((yield from exchange(call, Budget(timeout))), Job)


def _ticks(name: str, limit: int, outcome: TickOutcome | None, timeout: float) -> Script[TickPage]:
    query = (("limit", str(limit)), *((("outcome", outcome),) if outcome is not None else ()))
    call = Call("GET", _path(name, "/ticks"), query)
    return decoded((yield from exchange(call, Budget(timeout))), TickPage)


def _next(name: str, n: int, timeout: float) -> Script[Fires]:
    call = Call("GET", _path(name, "/next"), (("n", str(n)),))
    return decoded((yield from exchange(call, Budget(timeout))), Fires)
