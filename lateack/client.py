"""Callers of the service, async and sync: the same methods, told by the same scripts.

    async with Client("http://127.0.0.1:8000") as jobs:
        job = await jobs.submit("reports.build", kwargs={"report_id": 42})
        async for event in jobs.watch(job):
            print(event.status, event.progress)
        print(await jobs.result(job))

Each raises what the tree in `lateack.errors` names. `timeout` is the budget of a call in seconds,
retries included; only what is safe to repeat is repeated, and a submission carries the same
idempotency key each time, so that it makes one job however often it travels.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx
from websockets.asyncio.client import connect

from . import _calls
from ._calls import (
    EndedFilters,
    Filters,
    Item,
    JobRef,
    Page,
    RetryFilters,
    SubmitOptions,
    Submitted,
    TaskRef,
)
from ._carrier import DROPPED, PAGE_SIZE, refusal_of, request_of, words
from ._exchange import Lost, Pause, Reply, Script, Send
from ._schedules import Schedules
from ._sync_client import SyncClient
from ._waiting import refuse_to_wait
from .ended import DeadCounts, DeadLetter, DeadPage, RedriveAnswer, StepInDoubt, StepPage
from .errors import Busy, Unreachable
from .models import BatchItem, Event, Job, JobPage, Submission
from .watch import CLOSE_TIMEOUT, OPEN_TIMEOUT, Watching

__all__ = [
    "Client",
    "EndedFilters",
    "Filters",
    "JobRef",
    "RetryFilters",
    "SubmitOptions",
    "Submitted",
    "SyncClient",
    "TaskRef",
]

T = TypeVar("T")


class Client:
    """The service, from asyncio.

    `tenant` goes out as X-Tenant-ID; `headers` are added to each request. The URL may hold
    `user:password@` and a path. Use it as a context manager, or call `close()`.

        async with Client(tenant="acme") as jobs:
            total = await jobs.run("sums.add", args=[1, 2], timeout=60)
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        tenant: str | None = None,
        timeout: float = 30.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._address = _calls.address(url, tenant, headers)
        self._timeout = timeout
        self._http = httpx.AsyncClient(headers=self._address.headers)

    @property
    def schedules(self) -> Schedules:
        """Its periodic jobs: put, get, list, run, pause, resume, delete, ticks, next."""
        return Schedules(self._follow, self._timeout)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._address.url}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def submit(self, task: TaskRef, **options: Unpack[SubmitOptions]) -> Submitted:
        """Submit a job; returns its document as soon as it is accepted.

        `task` is a name, or a task of an app. `replayed` of the answer tells whether its
        `idempotency_key` was known, so that nothing new was made.

            job = await jobs.submit("mail.send", args=["a@b.example"], countdown=60,
                                    idempotency_key="welcome:42")

        Raises:
            InvalidRequest: the service says what to change.
            Conflict: the key was used with other content.
            Busy: the queue is full, for longer than the budget.
            Unreachable: whether it was accepted is not known; with a key of your own you may ask
                again, at any time, and it makes one job.
        """
        return await self.submit_request(_calls.submission(task, options))

    async def submit_request(self, submission: Submission) -> Submitted:
        """Like `submit`, from a ready request."""
        return await self._follow(_calls.submit(submission, self._timeout))

    async def submit_many(self, submissions: Sequence[Submission]) -> list[BatchItem]:
        """Submit many; what became of each, in order. Those refused raise nothing.

        answers = await jobs.submit_many([Submission("mail.send", args=[a]) for a in people])
        refused = [answer.problem for answer in answers if not answer.accepted]
        """
        return await self._follow(_calls.submit_many(submissions, self._timeout))

    async def get(self, job: JobRef) -> Job:
        """A job's document as it is now.

        Raises:
            NotFound: there is no such job, or it is another tenant's.
        """
        return await self._follow(_calls.get(job, self._timeout))

    async def list(
        self, *, limit: int | None = None, **filters: Unpack[Filters]
    ) -> AsyncIterator[Job]:
        """Jobs, newest first, without their results.

        `limit` is the most to yield; pages are fetched as they are needed.

            async for job in jobs.list(status="failed", queue="mail"):
                print(job.job_id, job.error_code)
        """

        def page(cursor: str | None, size: int) -> Script[JobPage]:
            return _calls.page(filters, cursor, self._timeout, page_size=size)

        async for job in self._each(page, limit):
            yield job

    async def wait(self, job: JobRef, timeout: float | None = None) -> Job:
        """The job's document once it has ended, in whichever of the terminal states.

        `timeout` is seconds for the whole wait; restarts of the service are sat out within it.

        Raises:
            WaitTimeout: it has not ended by then; the job goes on.
            Unreachable: the service gave no answer.
        """
        return await self._follow(_calls.wait(job, timeout, self._timeout))

    async def result(self, job: JobRef, timeout: float | None = None) -> Any:
        """What the task returned, waited for.

            rows = await jobs.result(job, timeout=60)

        Raises:
            JobFailed, JobWasCancelled: it returned nothing; `error.job` is the job's document.
            WaitTimeout: it has not ended within `timeout` seconds.
        """
        return await self._follow(_calls.result(job, timeout, self._timeout))

    async def run(
        self, task: TaskRef, *, timeout: float | None = None, **options: Unpack[SubmitOptions]
    ) -> Any:
        """Submit and wait: the task's result. Raises what `submit` and `result` raise."""
        refuse_to_wait()
        return await self.result(await self.submit(task, **options), timeout)

    async def cancel(self, job: JobRef) -> Job:
        """Ask for a job to be cancelled; `wait` tells what came of it, since it may just end."""
        return await self._follow(_calls.cancel(job, self._timeout))

    async def retry(self, job: JobRef) -> Submitted:
        """Run a job that failed or was cancelled again, as a new job; returns that one.

        A job is run again once, ever: `replayed` tells that somebody had retried it before, and the
        answer is the job of that time. When that has failed too, retry it in turn.

            again = await jobs.retry(job)
            print(await jobs.result(again, timeout=60))

        Raises:
            Conflict: it has not ended, it succeeded, or it is a part of a workflow.
            NotFound
        """
        return await self._follow(_calls.retry(job, self._timeout))

    async def retry_many(
        self, *, dry_run: bool = True, limit: int | None = None, **filters: Unpack[RetryFilters]
    ) -> RedriveAnswer:
        """Run all jobs that match again, each once, as new jobs; with `dry_run` only count them.

        Jobs that were retried before do not match, nor what fails meanwhile. `limit` is how many at
        most, the oldest first. What broke off can be called again.

            found = await jobs.retry_many(task="mail.send", error_code="WorkerLost")
            if found.matched < 1000:
                await jobs.retry_many(task="mail.send", error_code="WorkerLost", dry_run=False)
        """
        which = _calls.redrive(filters, limit, dry_run=dry_run)
        return await self._follow(_calls.retry_many(which, self._timeout))

    async def dead(
        self, *, limit: int | None = None, **filters: Unpack[EndedFilters]
    ) -> AsyncIterator[DeadLetter]:
        """Jobs that failed for good and were not run again, newest first."""

        def page(cursor: str | None, size: int) -> Script[DeadPage]:
            return _calls.dead_page(filters, cursor, self._timeout, page_size=size)

        async for letter in self._each(page, limit):
            yield letter

    async def dead_counts(self, **filters: Unpack[EndedFilters]) -> DeadCounts:
        """The dead letters by task and error."""
        return await self._follow(_calls.dead_counts(filters, self._timeout))

    async def steps_in_doubt(self, *, limit: int | None = None) -> AsyncIterator[StepInDoubt]:
        """Steps that began, never ended, and whose attempt is over: whether the outside took
        effect is to be found out there, with the step's `key`."""

        def page(cursor: str | None, size: int) -> Script[StepPage]:
            return _calls.step_page(cursor, self._timeout, page_size=size)

        async for step in self._each(page, limit):
            yield step

    async def watch(self, job: JobRef, after: str | None = None) -> AsyncIterator[Event]:
        """The job's events, live, until the one that ends it.

        `after` is the id of the last event seen, to go on from there. Dropped connections and
        restarts of the service are got over, with nothing lost or repeated; where events cannot be
        had any more there is a `gap`, then a snapshot.

        Raises:
            NotFound, NotAllowed
            Unreachable: the service stayed away for long.
        """
        refuse_to_wait()
        watching = Watching(job, after, timeout=self._timeout)
        while not watching.ended:
            reason, refusal = "the connection was closed", None
            try:
                async with connect(
                    watching.url(self._address),
                    additional_headers=self._address.headers,
                    open_timeout=OPEN_TIMEOUT,
                    close_timeout=CLOSE_TIMEOUT,
                ) as socket:
                    async for frame in socket:
                        if (event := watching.take(frame)) is not None:
                            yield event
                        if watching.ended:
                            return
            except DROPPED as error:
                reason, refusal = words(error), refusal_of(error)
            if not watching.brought and (last := await self._last_word(job, watching)) is not None:
                yield last
                return
            await asyncio.sleep(watching.pause(reason, refusal))

    async def _last_word(self, job: JobRef, watching: Watching) -> Event | None:
        """Why a connection brought nothing: the end of the job, or an error that is raised."""
        try:
            found = await self.get(job)
        except (Unreachable, Busy):
            if watching.forgiving:
                return None
            raise
        return watching.end_with(found) if found.ended else None

    async def _each(
        self, page: Callable[[str | None, int], Script[Page[Item]]], limit: int | None
    ) -> AsyncIterator[Item]:
        left, cursor = limit, None
        while left is None or left > 0:
            size = PAGE_SIZE if left is None else min(PAGE_SIZE, left)
            found: Page[Item] = await self._follow(page(cursor, size))
            for item in found.items[:left]:
                yield item
            left = None if left is None else left - len(found.items)
            if (cursor := found.next) is None:
                return

    async def _follow(self, script: Script[T]) -> T:
        outcome: Reply | Lost | None = None
        while True:
            try:
                step = script.send(outcome)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
                outcome = None
            else:
                outcome = await self._send(step)

    async def _send(self, step: Send) -> Reply | Lost:
        request = request_of(self._http, self._address.of(step.call), step)
        try:
            async with asyncio.timeout(step.timeout):
                answer = await self._http.send(request)
        except TimeoutError:
            return Lost(f"it took longer than {step.timeout:.1f} s")
        except httpx.HTTPError as error:
            return Lost(words(error))
        return Reply(answer.status_code, answer.headers, answer.content)
