"""Declaring tasks: what `@app.task` keeps of a function, and what can be done with it."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar

import msgspec

from ._waiting import as_body
from .arguments import Parameter, check_reserved, misfit, parameters_of
from .context import Context
from .errors import DeclarationError
from .models import Job, Step, Submission
from .names import queue_problem, task_problem
from .retry import RetryPolicy

if TYPE_CHECKING:
    from .app import App
    from .workflow import Signature

P = ParamSpec("P")
R = TypeVar("R")

Pool = Literal["loop", "thread", "process"]

# Defaults of seed 003: a task that hangs ends by itself. `None` is a choice one writes down.
DEFAULT_SOFT_TIME_LIMIT = 300.0
DEFAULT_TIME_LIMIT = 600.0
DEFAULT_PRIORITY = 5


class TaskOptions(msgspec.Struct, frozen=True):
    """What was declared for a task, durations in seconds, memory in MiB."""

    queue: str
    priority: int
    pool: Pool
    acks_late: bool
    soft_time_limit: float | None
    time_limit: float | None
    expires: float | None
    ignore_result: bool
    retry: RetryPolicy
    # Not given, the worker's setting holds; None is no limit.
    memory_limit: float | msgspec.UnsetType | None = msgspec.UNSET


class Task(Generic[P, R]):
    """A function that can be run as a job. Calling it runs the function, here and now."""

    def __init__(self, app: App, function: Callable[P, R], name: str, options: TaskOptions) -> None:
        if reason := task_problem(name):
            raise DeclarationError(f"task {name!r}: {reason}")
        if reason := queue_problem(options.queue):
            raise DeclarationError(f"task {name}: {reason}")
        if not 0 <= options.priority <= 9:
            raise DeclarationError(f"task {name}: priority is 0 to 9, got {options.priority}")
        soft, hard = options.soft_time_limit, options.time_limit
        if soft is not None and hard is not None and soft > hard:
            raise DeclarationError(
                f"task {name}: soft_time_limit ({soft:g} s) is above time_limit ({hard:g} s)"
            )
        if isinstance(memory := options.memory_limit, int | float):
            if options.pool != "process":
                raise DeclarationError(
                    f'task {name}: only a process can be held to memory_limit; use pool="process"'
                )
            if not memory > 0:
                raise DeclarationError(f"task {name}: memory_limit is MiB, more than 0")
        self.app = app
        # What workers call; calling the task itself is calling the plain function.
        self.function = as_body(function, name)
        self._plain = function
        self.name = name
        self.declared = options
        self.is_async = inspect.iscoroutinefunction(function)
        if self.is_async != (options.pool == "loop"):
            raise DeclarationError(
                f"task {name}: async tasks run on the event loop; only def tasks take pool="
            )
        self.context_name = context_parameter(function)
        self.parameters: tuple[Parameter, ...] = parameters_of(function, hidden=self.context_name)
        check_reserved(self.parameters, name)
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._plain(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Submit a job of this task; returns its document as soon as it is accepted."""
        return await self.options().enqueue(*args, **kwargs)

    def options(
        self,
        *,
        queue: str | None = None,
        priority: int | None = None,
        countdown: float | None = None,
        eta: datetime | None = None,
        expires: float | datetime | None = None,
        max_retries: int | None = None,
        tags: list[str] | None = None,
        meta: dict[str, Any] | None = None,
        owner: str | None = None,
        external_ref: str | None = None,
        idempotency_key: str | None = None,
    ) -> BoundTask[P, R]:
        """A copy of this task with options for one submission; seconds or aware times."""
        return BoundTask(
            self,
            Submission(
                task=self.name,
                queue=queue,
                priority=priority,
                countdown=countdown,
                eta=eta,
                expires=expires,
                max_retries=max_retries,
                tags=tags or [],
                meta=meta or {},
                owner=owner,
                external_ref=external_ref,
                idempotency_key=idempotency_key,
            ),
        )

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """A step for a chain; the result of the step before comes first among its arguments."""
        from .workflow import Signature

        return Signature(Step(task=self.name, args=list(args), kwargs=kwargs), self.app)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """A step that takes its own arguments only (Celery's immutable signature)."""
        from .workflow import Signature

        step = Step(task=self.name, args=list(args), kwargs=kwargs, immutable=True)
        return Signature(step, self.app)


class BoundTask(Generic[P, R]):
    """A task together with the options of one submission."""

    def __init__(self, task: Task[P, R], submission: Submission) -> None:
        self._task = task
        self._submission = submission

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Submit the job; returns its document as soon as it is accepted.

        Raises:
            TypeError: the arguments do not fit the task's signature.
        """
        if reason := misfit(self._task.parameters, args, kwargs):
            raise TypeError(f"{self._task.name}() {reason}")
        submission = msgspec.structs.replace(self._submission, args=list(args), kwargs=dict(kwargs))
        return await self._task.app.submit(submission)


def context_parameter(function: Callable[..., Any]) -> str | None:
    """The name of the parameter annotated with `Context`, or None when there is none."""
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError):
        # A name that exists for type checkers only; the annotation's own text has to do.
        hints = dict(getattr(function, "__annotations__", {}))
    for name, hint in hints.items():
        if name != "return" and (hint is Context or hint in ("Context", "lateack.Context")):
            kind = inspect.signature(function).parameters[name].kind
            if kind is not inspect.Parameter.KEYWORD_ONLY:
                raise DeclarationError(
                    f"{function.__qualname__}: declare the context after a star: "
                    f"`*, {name}: Context`"
                )
            return name
    return None


def default_name(function: Callable[..., Any]) -> str:
    """`module.function`; a module run as a script goes by its file's name."""
    module = function.__module__
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        module = Path(file).stem if file else "main"
    return f"{module}.{function.__name__}"
