"""The application object: a name, its tasks, and the way their jobs are submitted."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable
from fnmatch import fnmatchcase
from typing import Any, ParamSpec, TypeVar, overload

from .errors import DeclarationError
from .models import Job, Submission
from .retry import RetryPolicy
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
    tasks get that name none of their own.
    """

    def __init__(
        self,
        name: str,
        *,
        default_queue: str = "default",
        task_routes: dict[str, str] | None = None,
        soft_time_limit: float | None = DEFAULT_SOFT_TIME_LIMIT,
        time_limit: float | None = DEFAULT_TIME_LIMIT,
    ) -> None:
        self.name = name
        self.default_queue = default_queue
        self.task_routes = task_routes or {}
        self.soft_time_limit = soft_time_limit
        self.time_limit = time_limit
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
        expires: float | None = None,
        acks_late: bool = True,
        ignore_result: bool = False,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(self, *bare: Any, **options: Any) -> Any:
        """Declare a task.

        Durations are seconds. `pool` is for `def` tasks: "thread" (the default), or "process",
        which can be killed at its hard limit. Limits that are not given are the app's (300 s
        soft, 600 s hard unless changed); `None` switches one off.

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
            soft = self.soft_time_limit
            soft = soft if soft is None or hard is None else min(soft, float(hard))
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

    def queue_of(self, task: str) -> str:
        """The queue that `task_routes` gives a task of this name."""
        for pattern, queue in self.task_routes.items():
            if fnmatchcase(task, pattern):
                return queue
        return self.default_queue

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
