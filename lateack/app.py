"""The application object: a name, its tasks, and the way their jobs are submitted."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, ParamSpec, TypeVar, overload

import msgspec

from .arguments import misfit
from .errors import DeclarationError
from .models import Job, Overlap, ScheduleRequest, Submission
from .retry import RetryPolicy
from .schedules import Declaration, When, declaration, of_beat_entry, seconds, timing
from .tasks import (
    DEFAULT_PRIORITY,
    DEFAULT_SOFT_TIME_LIMIT,
    DEFAULT_TIME_LIMIT,
    Pool,
    Task,
    TaskOptions,
    default_name,
)

P = ParamSpec("P")
R = TypeVar("R")

Transport = Callable[[Submission], Awaitable[Job]]


class App:
    """Tasks under one name. A worker is started with `-A module:app`.

    `task_routes` maps globs over task names to queues, first match wins, as in Celery; a queue
    named at the task comes before it. `soft_time_limit` and `time_limit` (seconds) are what
    tasks get that name none of their own. `timezone` is the IANA zone of its schedules that name
    none, as in Celery.
    """

    def __init__(
        self,
        name: str,
        *,
        default_queue: str = "default",
        task_routes: dict[str, str] | None = None,
        soft_time_limit: float | None = DEFAULT_SOFT_TIME_LIMIT,
        time_limit: float | None = DEFAULT_TIME_LIMIT,
        timezone: str = "UTC",
    ) -> None:
        self.name = name
        self.default_queue = default_queue
        self.task_routes = task_routes or {}
        self.soft_time_limit = soft_time_limit
        self.time_limit = time_limit
        self.timezone = timezone
        self._periodic: list[Declaration] = []
        self._beat: dict[str, Mapping[str, Any]] = {}
        self.tasks: dict[str, Task[..., Any]] = {}
        self._transport: Transport | None = None

    def __repr__(self) -> str:
        return f"<App {self.name}: {len(self.tasks)} tasks>"

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        pool: Pool | None = None,
        autoretry_for: tuple[type[BaseException], ...] = (),
        dont_autoretry_for: tuple[type[BaseException], ...] = (),
        max_retries: int = 3,
        default_retry_delay: float = 180.0,
        retry_backoff: bool | float = False,
        retry_backoff_max: float = 600.0,
        retry_jitter: bool = True,
        soft_time_limit: float | None = ...,
        time_limit: float | None = ...,
        memory_limit: float | None = ...,
        expires: float | None = None,
        acks_late: bool = True,
        ignore_result: bool = False,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(self, *bare: Any, **options: Any) -> Any:
        """Declare a task.

        Durations are seconds. `pool` is for `def` tasks: "thread" (the default), or "process",
        which can be killed at its hard limit. Limits that are not given are the app's (300 s
        soft, 600 s hard unless changed); `None` switches one off. A longer hard limit, or none,
        moves the soft one with it.

        `memory_limit` is for process tasks: MiB that the body may use, what it starts included.
        Its process is killed above that (memory is looked at twice a second), and the job ends
        `failed` as MemoryLimitExceeded: it would use as much the next time. Without it, the
        worker's LATEACK_PROCESS_MEMORY_LIMIT holds.

        Raises:
            DeclarationError: the declaration cannot work; the message says what to change.
        """
        if bare:
            return self._declare(bare[0], {})
        return lambda function: self._declare(function, options)

    def _declare(self, function: Callable[P, R], given: dict[str, Any]) -> Task[P, R]:
        name = given.pop("name", None) or default_name(function)
        soft = given.pop("soft_time_limit", ...)
        hard = given.pop("time_limit", ...)
        if hard is ...:
            # A soft limit above the default hard one carries the hard one with it.
            hard = (
                self.time_limit
                if soft is ... or soft is None
                else max(self.time_limit or 0.0, float(soft) + 30.0)
            )
        if soft is ...:
            soft = self._soft_for(hard)
        on_loop = inspect.iscoroutinefunction(function)
        try:
            options = TaskOptions(
                queue=given.pop("queue", None) or self.queue_of(name),
                priority=given.pop("priority", DEFAULT_PRIORITY),
                pool=given.pop("pool", None) or ("loop" if on_loop else "thread"),
                acks_late=given.pop("acks_late", True),
                soft_time_limit=soft,
                time_limit=hard,
                expires=given.pop("expires", None),
                ignore_result=given.pop("ignore_result", False),
                memory_limit=given.pop("memory_limit", msgspec.UNSET),
                retry=RetryPolicy(**given),
            )
        except TypeError as error:
            raise DeclarationError(f"task {name}: {error}") from None
        if name in self.tasks:
            raise DeclarationError(
                f"two tasks are called {name}: {self.tasks[name].function.__qualname__} and "
                f"{function.__qualname__}; give one of them name="
            )
        task = Task(self, function, name, options)
        self.tasks[name] = task
        return task

    def _soft_for(self, hard: float | None) -> float | None:
        """The soft limit of a task that names none: the app's, or as long before its hard one when
        that is longer, since who asks for an hour does not expect to be interrupted after minutes.
        """
        soft, usual = self.soft_time_limit, self.time_limit
        if soft is None:
            return None
        if hard is None:
            return soft if usual is None else None
        if usual is None or hard <= usual:
            return min(soft, hard)
        return hard - max(0.0, usual - soft)

    def queue_of(self, task: str) -> str:
        """The queue that `task_routes` gives a task of this name."""
        for pattern, queue in self.task_routes.items():
            if fnmatchcase(task, pattern):
                return queue
        return self.default_queue

    def periodic(
        self,
        when: When,
        /,
        *,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        queue: str | None = None,
        priority: int | None = None,
        max_retries: int | None = None,
        expires: float | timedelta | None = None,
        zone: str | None = None,
        anchor: datetime | None = None,
        misfire: str = "once",
        overlap: Overlap = "allow",
        paused: bool = False,
        tenant: str = "default",
    ) -> Callable[[Callable[P, R]], Task[P, R]]:
        """Run a task again and again: `when` is a cron expression, seconds, a timedelta, or a
        `crontab`. It stands above `@app.task`, or on a function that then becomes a task.

            @app.periodic("0 3 * * *", zone="Europe/Berlin", misfire="once")
            @app.task(queue="reports")
            async def nightly() -> None: ...

        Without a `name` the schedule is called like its task. docs/schedules.md has the rules: of
        clock changes, of missed ticks, and of who wins when somebody edits it over HTTP.

        Raises:
            DeclarationError: it cannot be written down as it is; the message says what to change.
        """

        def declare(function: Callable[P, R]) -> Task[P, R]:
            task = function if isinstance(function, Task) else self._declare(function, {})
            called = name or task.name
            if reason := misfit(task.parameters, args, kwargs or {}):
                raise DeclarationError(f"schedule {called}: {task.name} {reason}")
            request = ScheduleRequest(
                task=task.name,
                args=list(args),
                kwargs=dict(kwargs or {}),
                queue=queue,
                priority=priority,
                max_retries=max_retries,
                expires=seconds(expires),
                zone=zone or self.timezone,
                anchor=anchor,
                misfire=misfire,
                overlap=overlap,
                paused=paused,
                **timing(when),
            )
            self._periodic.append(declaration(called, tenant, request))
            _refuse_doubles(self.schedules)
            return task

        return declare

    @property
    def beat_schedule(self) -> dict[str, Mapping[str, Any]]:
        """Schedules in the form of Celery's setting of that name, to be assigned as it is.

        Raises:
            DeclarationError: (on assignment) an entry cannot be taken over, or its name is that of
                another schedule.
        """
        return self._beat

    @beat_schedule.setter
    def beat_schedule(self, entries: dict[str, Mapping[str, Any]]) -> None:
        self._beat = entries
        # Seen where it is written, not when it is registered.
        _refuse_doubles(self.schedules)

    @property
    def schedules(self) -> list[Declaration]:
        """Every schedule that this app declares."""
        beat = [
            of_beat_entry(name, entry, zone=self.timezone, tenant="default")
            for name, entry in self._beat.items()
        ]
        return [*self._periodic, *beat]

    @property
    def queues(self) -> list[str]:
        """Every queue that a task of this app names, in order of declaration."""
        return list(dict.fromkeys(task.declared.queue for task in self.tasks.values()))

    def use_transport(self, transport: Transport | None) -> None:
        """How `.enqueue()` submits: HTTP by default; a worker sets its own way to the ledger."""
        self._transport = transport

    async def submit(self, submission: Submission) -> Job:
        """Submit through the transport; `LATEACK_URL` names the service (loopback by default)."""
        if self._transport is not None:
            return await self._transport(submission)
        from .client import Client

        async with Client(os.environ.get("LATEACK_URL", "http://127.0.0.1:8000")) as client:
            return await client.submit_request(submission)


def _refuse_doubles(declarations: Sequence[Declaration]) -> None:
    names = [(one.tenant, one.name) for one in declarations]
    for name in names:
        if names.count(name) > 1:
            raise DeclarationError(f"two schedules are called {name[1]}; give one of them name=")
