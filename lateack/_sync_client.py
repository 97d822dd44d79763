"""The synchronous client; see client.py, which has the words for each method."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx
from websockets.sync.client import connect

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
from ._schedules import SyncSchedules
from ._waiting import refuse_to_wait
from .ended import DeadCounts, DeadLetter, DeadPage, RedriveAnswer, StepInDoubt, StepPage
from .errors import Busy, Unreachable
from .models import BatchItem, Event, Job, JobPage, Submission
from .watch import CLOSE_TIMEOUT, OPEN_TIMEOUT, Watching

T = TypeVar("T")


class SyncClient:
    """The service, from code without asyncio: the methods of `Client`, plain.

    Threads may share one.

        with SyncClient() as jobs:
            job = jobs.submit("reports.build", kwargs={"report_id": 42})
            print(jobs.result(job, timeout=60))
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
        self._http = httpx.Client(headers=self._address.headers)

    @property
    def schedules(self) -> SyncSchedules:
        """Its periodic jobs: put, get, list, run, pause, resume, delete, ticks, next."""
        return SyncSchedules(self._follow, self._timeout)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._address.url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def submit(self, task: TaskRef, **options: Unpack[SubmitOptions]) -> Submitted:
        """See `Client.submit`."""
        return self.submit_request(_calls.submission(task, options))

    def submit_request(self, submission: Submission) -> Submitted:
        """See `Client.submit_request`."""
        return self._follow(_calls.submit(submission, self._timeout))

    def submit_many(self, submissions: Sequence[Submission]) -> list[BatchItem]:
        """See `Client.submit_many`."""
        return self._follow(_calls.submit_many(submissions, self._timeout))

    def get(self, job: JobRef) -> Job:
        """See `Client.get`."""
        return self._follow(_calls.get(job, self._timeout))

    def list(self, *, limit: int | None = None, **filters: Unpack[Filters]) -> Iterator[Job]:
        """See `Client.list`."""

        def page(cursor: str | None, size: int) -> Script[JobPage]:
            return _calls.page(filters, cursor, self._timeout, page_size=size)

        return self._each(page, limit)

    def wait(self, job: JobRef, timeout: float | None = None) -> Job:
        """See `Client.wait`."""
        return self._follow(_calls.wait(job, timeout, self._timeout))

    def result(self, job: JobRef, timeout: float | None = None) -> Any:
        """See `Client.result`."""
        return self._follow(_calls.result(job, timeout, self._timeout))

    def run(
        self, task: TaskRef, *, timeout: float | None = None, **options: Unpack[SubmitOptions]
    ) -> Any:
        """See `Client.run`."""
        refuse_to_wait()
        return self.result(self.submit(task, **options), timeout)

    def cancel(self, job: JobRef) -> Job:
        """See `Client.cancel`."""
        return self._follow(_calls.cancel(job, self._timeout))

    def retry(self, job: JobRef) -> Submitted:
        """See `Client.retry`."""
        return self._follow(_calls.retry(job, self._timeout))

    def retry_many(
        self, *, dry_run: bool = True, limit: int | None = None, **filters: Unpack[RetryFilters]
    ) -> RedriveAnswer:
        """See `Client.retry_many`."""
        which = _calls.redrive(filters, limit, dry_run=dry_run)
        return self._follow(_calls.retry_many(which, self._timeout))

    def dead(
        self, *, limit: int | None = None, **filters: Unpack[EndedFilters]
    ) -> Iterator[DeadLetter]:
        """See `Client.dead`."""

        def page(cursor: str | None, size: int) -> Script[DeadPage]:
            return _calls.dead_page(filters, cursor, self._timeout, page_size=size)

        return self._each(page, limit)

    def dead_counts(self, **filters: Unpack[EndedFilters]) -> DeadCounts:
        """See `Client.dead_counts`."""
        return self._follow(_calls.dead_counts(filters, self._timeout))

    def steps_in_doubt(self, *, limit: int | None = None) -> Iterator[StepInDoubt]:
        """See `Client.steps_in_doubt`."""

        def page(cursor: str | None, size: int) -> Script[StepPage]:
            return _calls.step_page(cursor, self._timeout, page_size=size)

        return self._each(page, limit)

    def watch(self, job: JobRef, after: str | None = None) -> Iterator[Event]:
        """See `Client.watch`."""
        refuse_to_wait()
        watching = Watching(job, after, timeout=self._timeout)
        while not watching.ended:
            reason, refusal = "the connection was closed", None
            try:
                with connect(
                    watching.url(self._address),
                    additional_headers=self._address.headers,
                    open_timeout=OPEN_TIMEOUT,
                    close_timeout=CLOSE_TIMEOUT,
                ) as socket:
                    for frame in socket:
                        if (event := watching.take(frame)) is not None:
                            yield event
                        if watching.ended:
                            return
            except DROPPED as error:
                reason, refusal = words(error), refusal_of(error)
            if not watching.brought and (last := self._last_word(job, watching)) is not None:
                yield last
                return
            time.sleep(watching.pause(reason, refusal))

    def _last_word(self, job: JobRef, watching: Watching) -> Event | None:
        try:
            found = self.get(job)
        except (Unreachable, Busy):
            if watching.forgiving:
                return None
            raise
        return watching.end_with(found) if found.ended else None

    def _each(
        self, page: Callable[[str | None, int], Script[Page[Item]]], limit: int | None
    ) -> Iterator[Item]:
        left, cursor = limit, None
        while left is None or left > 0:
            size = PAGE_SIZE if left is None else min(PAGE_SIZE, left)
            found: Page[Item] = self._follow(page(cursor, size))
            yield from found.items[:left]
            left = None if left is None else left - len(found.items)
            if (cursor := found.next) is None:
                return

    def _follow(self, script: Script[T]) -> T:
        outcome: Reply | Lost | None = None
        while True:
            try:
                step = script.send(outcome)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(step, Pause):
                time.sleep(step.seconds)
                outcome = None
            else:
                outcome = self._send(step)

    def _send(self, step: Send) -> Reply | Lost:
        request = request_of(self._http, self._address.of(step.call), step)
        end = time.monotonic() + step.timeout
        body = bytearray()
        try:
            answer = self._http.send(request, stream=True)
            try:
                for part in answer.iter_bytes():
                    body += part
                    # httpx bounds each read, not their sum.
                    if time.monotonic() > end:
                        return Lost(f"it took longer than {step.timeout:.1f} s")
            finally:
                answer.close()
        except httpx.HTTPError as error:
            return Lost(words(error))
        return Reply(answer.status_code, answer.headers, bytes(body))
