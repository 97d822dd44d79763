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
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx
from websockets.asyncio.client import connect

from . import _calls
from ._calls import Filters, JobRef, SubmitOptions, Submitted, TaskRef
from ._carrier import DROPPED, page_of, refusal_of, request_of, words
from ._exchange import Lost, Pause, Reply, Script, Send
from ._sync_client import SyncClient
from .errors import Busy, Unreachable
from .models import BatchItem, Event, Job, Submission
from .watch import CLOSE_TIMEOUT, OPEN_TIMEOUT, Watching

__all__ = ["Client", "Filters", "JobRef", "SubmitOptions", "Submitted", "SyncClient", "TaskRef"]

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
        left = limit
        cursor: str | None = None
        while left is None or left > 0:
            page = await self._follow(page_of(filters, cursor, self._timeout, left))
            for job in page.items[:left]:
                yield job
            left = None if left is None else left - len(page.items)
            if (cursor := page.next) is None:
                return

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
        return await self.result(await self.submit(task, **options), timeout)

    async def cancel(self, job: JobRef) -> Job:
        """Ask for a job to be cancelled; `wait` tells what came of it, since it may just end."""
        return await self._follow(_calls.cancel(job, self._timeout))

    async def watch(self, job: JobRef, after: str | None = None) -> AsyncIterator[Event]:
        """The job's events, live, until the one that ends it.

        `after` is the id of the last event seen, to go on from there. Dropped connections and
        restarts of the service are got over, with nothing lost or repeated; where events cannot be
        had any more there is a `gap`, then a snapshot.

        Raises:
            NotFound, NotAllowed
            Unreachable: the service stayed away for long.
        """
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
