"""A worker in this process, and ways to wait for facts in the ledger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from lateack.models import Job, Submission
from lateack_consumers.worker import work
from lateack_core.ground import Ground, open_ground
from lateack_core.registry import entries_of
from lateack_core.settings import Settings
from tests.consumers.tasks_under_test import app

APP_PATH = "tests.consumers.tasks_under_test:app"


class Caller:
    """Submits and looks, straight through the ledger."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground

    async def submit(self, task: str, *args: Any, **options: Any) -> Job:
        name = task if "." in task else f"tests.consumers.tasks_under_test.{task}"
        submission = Submission(task=name, args=list(args), **options)
        return (await self.ground.submissions.accept("default", submission)).job

    async def job(self, job_id: UUID) -> Job:
        return (await self.ground.ledger.get("default", [job_id]))[job_id]

    async def until(self, job_id: UUID, *statuses: str, within: float = 20.0) -> Job:
        """The job, once it is in one of these states (terminal ones when none is named)."""
        wanted = statuses or ("succeeded", "failed", "cancelled")
        deadline = time.monotonic() + within
        while (job := await self.job(job_id)).status not in wanted:
            assert time.monotonic() < deadline, f"still {job.status}, attempt {job.attempt}: {job}"
            await asyncio.sleep(0.03)
        return job


def result_of(job: Job) -> Any:
    return None if job.result is None else msgspec.json.decode(job.result)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def until(condition: Any, within: float = 20.0) -> None:
    """Wait for a fact that nobody announces."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(0.03)


@pytest.fixture
async def caller(ground: Ground) -> Caller:
    ground.start()
    return Caller(ground)


@asynccontextmanager
async def calling(settings: Settings) -> AsyncIterator[Caller]:
    """A caller whose ground runs, with the tasks known."""
    ground = await open_ground(settings, process="test")
    ground.start()
    await ground.ledger.register_tasks(entries_of(app))
    try:
        yield Caller(ground)
    finally:
        await ground.close()


@asynccontextmanager
async def running_worker(
    settings: Settings, *, slots: int = 10, queues: list[str] | None = None
) -> AsyncIterator[None]:
    """A worker in this process, drained at the end."""
    stop, hurry, ready = asyncio.Event(), asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(
        work(
            settings,
            app,
            queues=queues,
            slots=slots,
            name="w",
            app_path=APP_PATH,
            stop=stop,
            hurry=hurry,
            ready=ready.set,
        )
    )
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    try:
        yield
    finally:
        stop.set()
        assert await task == 0


@pytest.fixture
async def worker(settings: Settings, caller: Caller) -> AsyncIterator[None]:
    async with running_worker(settings):
        yield
