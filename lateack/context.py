"""What a task's body sees of its job, and how it reports back."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec


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

    def __init__(self, job: JobInfo, reporter: Reporter) -> None:
        self._job = job
        self._reporter = reporter

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
        """A token for an outside system: the same on every attempt of this job (DEL-09)."""
        return f"{self._job.job_id}:{name}"

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
