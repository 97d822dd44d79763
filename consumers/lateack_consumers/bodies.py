"""Running a task's body where it belongs: on the loop, or in a thread.

(Processes have a file of their own: process_pool.py.)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from lateack.context import Context, JobInfo
from lateack.errors import JobCancelled, SoftTimeLimitExceeded

from .active import Active, Reason
from .effects import Effector, LocalEffects
from .interruptible import Interruptible


class LocalReporter:
    """Takes the reports of a body that runs in this process, on any of its threads."""

    def __init__(self, active: Active) -> None:
        self._active = active
        self._pending: BaseException | None = None

    def report(self, progress: float | None, step: str | None, message: str | None) -> None:
        active = self._active
        if progress is not None:
            active.progress = progress
        if step is not None:
            active.step = step
        active.message = message
        active.unreported = True

    def interruption(self) -> BaseException | None:
        pending = self._pending
        if isinstance(pending, SoftTimeLimitExceeded):
            # Met once: afterwards the body may clean up with calls of its own.
            self._pending = None
        return pending

    def leave(self, error: BaseException) -> None:
        """Let the body meet `error` at its next call."""
        self._pending = error


def info_of(active: Active, meta: dict[str, Any]) -> JobInfo:
    """The facts that a context carries."""
    job = active.job
    return JobInfo(
        job_id=job.job_id,
        task=job.task,
        queue=job.queue,
        tenant_id=job.tenant_id,
        attempt=job.attempt,
        max_retries=job.max_retries,
        meta=meta,
        root_id=job.root_id,
        origin_id=job.origin_id,
    )


async def run_on_loop(
    active: Active,
    effector: Effector,
    args: list[Any],
    kwargs: dict[str, Any],
    meta: dict[str, Any],
) -> Any:
    """Run an async task's body here. Interrupted by an exception raised where it waits."""
    kwargs = with_context(active, effector, kwargs, meta, LocalReporter(active))
    body: Interruptible[Any] = Interruptible(active.task.function(*args, **kwargs))
    current = asyncio.current_task()

    def reach(reason: Reason) -> None:
        if reason is Reason.SOFT_LIMIT:
            body.interrupt(SoftTimeLimitExceeded(active.soft_limit))
        elif current is not None:
            current.cancel()

    active.begin(reach)
    return await body


class Threads:
    """Threads for `def` tasks. A body that outlives its job keeps its thread; they are counted."""

    def __init__(self) -> None:
        self.abandoned = 0

    async def run(
        self,
        active: Active,
        effector: Effector,
        args: list[Any],
        kwargs: dict[str, Any],
        meta: dict[str, Any],
    ) -> Any:
        """Run a `def` task's body. It meets an interruption at its next call of the context."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        reporter = LocalReporter(active)
        kwargs = with_context(active, effector, kwargs, meta, reporter)

        def reach(reason: Reason) -> None:
            if reason is Reason.SOFT_LIMIT:
                reporter.leave(SoftTimeLimitExceeded(active.soft_limit))
                return
            reporter.leave(JobCancelled(reason.value))
            if not active.ours and not done.done():
                self.abandoned += 1
                done.cancel()

        def finish(deliver: Callable[[], None]) -> None:
            if done.cancelled():
                self.abandoned -= 1
            elif not done.done():
                deliver()

        def target() -> None:
            try:
                value = active.task.function(*args, **kwargs)
            except BaseException as error:
                failed = _as_exception(error)
                _tell(loop, finish, lambda: done.set_exception(failed))
            else:
                _tell(loop, finish, lambda: done.set_result(value))

        active.begin(reach)
        # A thread a job: it can be left behind without taking a pool's place with it.
        threading.Thread(
            target=target, name=f"{active.job.task} {active.job_id}", daemon=True
        ).start()
        return await done


def with_context(
    active: Active,
    effector: Effector,
    kwargs: dict[str, Any],
    meta: dict[str, Any],
    reporter: LocalReporter,
) -> dict[str, Any]:
    """The keyword arguments with the context among them, when the task asks for one."""
    name = active.task.context_name
    if name is None:
        return kwargs
    effects = LocalEffects(active, effector)
    return kwargs | {name: Context(info_of(active, meta), reporter, effects)}


class StoppedItself(Exception):
    """A body raised something that would have ended the worker, such as SystemExit."""


def _as_exception(error: BaseException) -> BaseException:
    # A future refuses StopIteration; SystemExit would end the loop that receives it.
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = StoppedItself(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _tell(
    loop: asyncio.AbstractEventLoop,
    finish: Callable[[Callable[[], None]], None],
    deliver: Callable[[], None],
) -> None:
    try:
        loop.call_soon_threadsafe(finish, deliver)
    except RuntimeError:
        # The loop is closed: the worker has gone and nobody waits.
        return
