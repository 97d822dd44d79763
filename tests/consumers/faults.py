"""What the fault tests share: the tasks' notes, the broker's own books, workers of fault_tasks."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import httpx

from lateack.models import Job
from lateack_core.jobs import Ledger
from lateack_core.registry import entries_of
from lateack_core.settings import Settings
from lateack_core.stream import Broker
from tests.consumers import fault_tasks
from tests.consumers.conftest import Caller, lines
from tests.consumers.processes import Process, lateack, worker_process

APP_PATH = fault_tasks.APP_PATH


class Note(NamedTuple):
    """A line that a body wrote."""

    word: str
    job_id: UUID
    attempt: int
    pid: int


def notes(path: Path, word: str | None = None) -> list[Note]:
    """What bodies have noted so far."""
    found = [line.split() for line in lines(path)]
    all_of_them = [Note(w, UUID(job), int(attempt), int(pid)) for w, job, attempt, pid in found]
    return [note for note in all_of_them if word in (None, note.word)]


def worker(
    settings: Settings,
    log: Path,
    *,
    slots: int = 10,
    more: tuple[str, ...] = (),
    app_path: str = APP_PATH,
    **environ: str,
) -> AbstractAsyncContextManager[Process]:
    """A worker process with the tasks of fault_tasks."""
    return worker_process(settings, log, slots=slots, more=more, app_path=app_path, **environ)


@asynccontextmanager
async def kept_alive(
    settings: Settings, folder: Path, *, slots: int = 10, more: tuple[str, ...] = (), **environ: str
) -> AsyncIterator[list[Process]]:
    """A worker that is started again whenever it ends, as any supervisor does; all there were."""
    started: list[Process] = []

    async def supervise() -> None:
        while True:
            log = folder / f"kept-{len(started)}.log"
            async with worker(settings, log, slots=slots, more=more, **environ) as running:
                started.append(running)
                await running.wait(600)

    task = asyncio.create_task(supervise())
    try:
        yield started
    finally:
        task.cancel()
        await asyncio.wait({task})


async def know_the_tasks(ledger: Ledger) -> None:
    """Register every task, so that jobs are accepted with no worker there."""
    apps = (fault_tasks.app, fault_tasks.old, fault_tasks.new, fault_tasks.limited)
    await ledger.register_tasks(
        list({e["name"]: e for app in apps for e in entries_of(app)}.values())
    )


async def eventually(fact: Callable[[], Awaitable[object]], within: float = 20.0) -> None:
    """Wait for a fact that has to be asked for."""
    deadline = time.monotonic() + within
    while not await fact():
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(0.05)


async def all_ended(caller: Caller, jobs: list[Job], within: float = 40.0) -> list[Job]:
    """The jobs, once all have ended."""
    ids, deadline = [job.job_id for job in jobs], time.monotonic() + within
    while True:
        found = await caller.ground.ledger.get("default", ids)
        left = [job for job in found.values() if not job.ended]
        if not left:
            return [found[job_id] for job_id in ids]
        assert time.monotonic() < deadline, f"{len(left)} have not ended, such as {left[0]}"
        await asyncio.sleep(0.1)


async def cleared(broker: Broker, within: float = 20.0) -> None:
    """Wait until the queue's streams hold nothing any more, read or unread."""

    async def empty() -> bool:
        return await broker.depth("q") == (0, 0)

    await eventually(empty, within)


async def outcomes(caller: Caller, job: Job) -> list[tuple[int, str, str | None]]:
    """How a job's attempts ended: (attempt, outcome, error code) of each."""
    rows = await caller.ground.ledger.attempts("default", job.job_id)
    return [(row["attempt"], row["outcome"], row["error_code"]) for row in rows]


@asynccontextmanager
async def serving(
    settings: Settings, log: Path, *more: str, **environ: str
) -> AsyncIterator[tuple[str, Process]]:
    """An API process, and its URL."""
    words = ("serve", "-A", APP_PATH, "--port", "0", *more)
    async with lateack(settings, log, *words, **environ) as process:
        yield await told(process, r"listening at (\S+)"), process


async def told(process: Process, pattern: str) -> str:
    """What a process has logged."""

    async def said() -> bool:
        assert process.returncode is None, process.log.read_text()
        return re.search(pattern, process.log.read_text()) is not None

    await eventually(said)
    found = re.search(pattern, process.log.read_text())
    assert found
    return found[1]


def asker() -> httpx.AsyncClient:
    """A client that makes a connection for each question: what listens is what answers."""
    return httpx.AsyncClient(
        timeout=10, trust_env=False, verify=False, headers={"connection": "close"}
    )


async def reasons(address: str) -> list[str]:
    """Why a process says that it is not ready; empty when it is."""
    async with asker() as http:
        reply = await http.get(f"{address}/readyz")
    found: list[str] = reply.json()["reasons"]
    assert (reply.status_code == 200) == (not found)
    return found


async def until_ready(address: str, within: float = 30.0) -> None:
    """Wait until a process says that it is ready."""

    async def ready() -> bool:
        return not await reasons(address)

    await eventually(ready, within)
