"""What a task's body sees of its job, and how it reports back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeVar, overload
from uuid import UUID

import msgspec

from .effects import Call, Course, Effects, NotDone, course, run, run_sync, unfit_name

if TYPE_CHECKING:
    import asyncpg

P = ParamSpec("P")
R = TypeVar("R")


class JobInfo(msgspec.Struct, frozen=True):
    """The facts of one attempt. `attempt` is 1 for the first body that starts."""

    job_id: UUID
    task: str
    queue: str
    tenant_id: str
    attempt: int
    max_retries: int
    meta: dict[str, Any]
    root_id: UUID | None = None
    # The first of the jobs that redrives made of one; None for the first itself.
    origin_id: UUID | None = None


class Reporter(Protocol):
    """Where a context's reports go. Called from the task's own thread or process."""

    def report(self, progress: float | None, step: str | None, message: str | None) -> None: ...

    def interruption(self) -> BaseException | None:
        """What the body should meet at its next call, if anything."""
        ...


class _Done:
    """An awaitable that is already done, so that one method serves `def` and `async def` tasks."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


_DONE: Final = _Done()


class Context:
    """The job, as its task sees it. Ask for it by annotation: `*, ctx: Context`."""

    def __init__(self, job: JobInfo, reporter: Reporter, effects: Effects) -> None:
        self._job = job
        self._reporter = reporter
        self._effects = effects
        self._step_names: set[str] = set()
        self._in_transaction = self._committed = False
        self._result: Any = None

    @property
    def job_id(self) -> UUID:
        return self._job.job_id

    @property
    def task(self) -> str:
        return self._job.task

    @property
    def queue(self) -> str:
        return self._job.queue

    @property
    def tenant_id(self) -> str:
        return self._job.tenant_id

    @property
    def attempt(self) -> int:
        """1 for the first body that starts, 2 for the second, …"""
        return self._job.attempt

    @property
    def is_last_attempt(self) -> bool:
        return self._job.attempt > self._job.max_retries

    @property
    def meta(self) -> dict[str, Any]:
        """The small JSON object given at submit; every step of a workflow sees the same."""
        return self._job.meta

    @property
    def root_id(self) -> UUID:
        """The workflow this job is a step of, or the job itself."""
        return self._job.root_id or self._job.job_id

    def idempotency_key(self, name: str) -> str:
        """A token for an outside system: the same on every attempt of this job, and of the jobs
        that redrives make of it (DEL-09)."""
        return f"{self._job.origin_id or self._job.job_id}:{name}"

    # -- effects that are taken once ------------------------------------------------------

    @overload
    async def step(
        self,
        name: str,
        function: Callable[P, Awaitable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R: ...

    @overload
    async def step(
        self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    @overload
    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        reconcile: Callable[[str], Any],
        **kwargs: Any,
    ) -> Any: ...

    async def step(
        self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Run `function(*args, **kwargs)` once in the life of this job; for async tasks.

            charge_id = await ctx.step("charge", charge, card, ctx.idempotency_key("charge"))

        Its result is kept under `name`, and later attempts get it instead of running it again.
        It goes through JSON the first time too, so that every attempt sees the same. A step that
        began and has no end, since its worker died or it raised, is in doubt: the next attempt
        calls `reconcile(ctx.idempotency_key(name))`, which asks the outside system and returns
        the step's result, or `NOT_DONE`; raising there fails the attempt. Without `reconcile` it
        runs again: hand the outside system the token, so that it can tell.

        Raises:
            LeaseLost: the job is another attempt's now.
            InvalidResult: the result is no JSON, or has more than 1 MiB (ResultTooLarge).
            ValueError: the name cannot be used, or was used in this attempt already.
        """
        reconcile = kwargs.pop("reconcile", None)
        return await run(self._course(name, function, args, kwargs, reconcile), self._effects)

    def step_sync(
        self,
        name: str,
        function: Callable[..., R],
        /,
        *args: Any,
        reconcile: Callable[[str], R | NotDone] | None = None,
        **kwargs: Any,
    ) -> R:
        """`step` for def tasks, in threads and processes: the function is called plainly."""
        self.check()
        steps = self._course(name, function, args, kwargs, reconcile)
        result: R = run_sync(steps, self._effects)
        return result

    def _course(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        reconcile: Callable[..., Any] | None,
    ) -> Course:
        if reason := unfit_name(name):
            raise ValueError(reason)
        if name in self._step_names:
            # A loop that forgot to number its steps would silently get the first one's result.
            raise ValueError(
                f"step {name!r} was used in this attempt already; every step needs a name of its "
                f"own, in a loop for example f'{name}-{{number}}'"
            )
        self._step_names.add(name)
        return course(name, self.idempotency_key(name), Call(function, args, kwargs), reconcile)

    def transaction(self) -> AbstractAsyncContextManager[asyncpg.Connection]:
        """A transaction in the ledger's database whose commit is also this job's success.

            async with ctx.transaction() as connection:
                await connection.execute("UPDATE accounts SET …")
                ctx.set_result({"booked": True})

        Both are committed, or neither: when the block raises, or when the job is not this
        attempt's any more, everything is rolled back. Afterwards the outcome stands, and whatever
        the body still does cannot change it. Keep it short, and call nobody outside from within.

        Raises:
            LeaseLost: the job is another attempt's now; nothing was written.
            InvalidResult: what was set as the result cannot be kept; nothing was written.
            TransactionLost: the connection broke; the ledger knows whether it was committed.
            TypeError: in a def task, which has no event loop that a connection could live on.
        """
        if self._in_transaction or self._committed:
            raise RuntimeError("the commit of ctx.transaction() ends the job: there is only one")
        return self._inside(self._effects.transaction(lambda: self._result))

    @asynccontextmanager
    async def _inside(
        self, transaction: AbstractAsyncContextManager[asyncpg.Connection]
    ) -> AsyncIterator[asyncpg.Connection]:
        self._in_transaction = True
        self._result = None
        try:
            async with transaction as connection:
                yield connection
            self._committed = True
        finally:
            self._in_transaction = False

    def set_result(self, value: Any) -> None:
        """What the job returns, given inside of `ctx.transaction()`: it is committed with it.

        Raises:
            RuntimeError: outside of it; there, return the value instead.
        """
        if not self._in_transaction:
            raise RuntimeError(
                "ctx.set_result() belongs inside `async with ctx.transaction()`; elsewhere, return "
                "the result"
            )
        self._result = value

    # -- progress -------------------------------------------------------------------------

    def progress(
        self,
        percent: float | None = None,
        *,
        done: float | None = None,
        total: float | None = None,
        step: str | None = None,
        message: str | None = None,
    ) -> _Done:
        """Report progress; never blocks, never fails the job.

        `percent` is 0 to 100 (values outside are cut to that range), or give `done` of `total`.
        Reports are merged to at most five a second; the last one is always delivered. It can be
        awaited or called plainly. In a thread task this is also where a cancel or the soft time
        limit is met.

        Raises:
            JobCancelled, SoftTimeLimitExceeded: in thread tasks.
        """
        self.check()
        if percent is None and done is not None and total:
            percent = 100.0 * done / total
        if percent is not None:
            percent = float(percent)
            # NaN is no progress; a range that is left is cut rather than refused.
            percent = None if percent != percent else min(100.0, max(0.0, percent))
        self._reporter.report(percent, _shortened(step, 200), _shortened(message, 2_000))
        return _DONE

    def check(self) -> None:
        """Meet a pending cancel or soft limit here; for long loops of thread tasks.

        Raises:
            JobCancelled, SoftTimeLimitExceeded: in thread tasks.
        """
        if (interruption := self._reporter.interruption()) is not None:
            raise interruption


def _shortened(text: str | None, limit: int) -> str | None:
    if text is None:
        return None
    text = str(text).encode("utf-8", "replace").decode().replace("\x00", "\ufffd")
    return text if len(text) <= limit else text[: limit - 1] + "…"


INJECTED: Any = None
"""A default for the context parameter, so that a type checker accepts `enqueue()` without it:
`async def report(n: int, *, ctx: Context = INJECTED)`."""
