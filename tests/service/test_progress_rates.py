"""Progress told by real workers to real clients: much of it, little of it, none of it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx
import msgspec
import pytest

from lateack import Client
from lateack.models import Event, Job
from lateack_consumers.worker import work
from lateack_core.ground import Ground
from lateack_core.registry import entries_of
from lateack_core.settings import Settings
from tests.client.networks import Line, line_to

from .conftest import Worker, client, eventually, served, submit
from .progress_tasks import app

decode = msgspec.json.Decoder(Event).decode


@contextlib.asynccontextmanager
async def working(settings: Settings) -> AsyncIterator[None]:
    """A worker of the progress tasks in this process."""
    stop, ready = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(
        work(
            settings,
            app,
            queues=None,
            slots=20,
            name="w",
            app_path="tests.service.progress_tasks:app",
            stop=stop,
            hurry=asyncio.Event(),
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
        await asyncio.wait_for(task, 30)


@pytest.fixture
async def jobs(settings: Settings) -> AsyncIterator[Client]:
    """A client of a service beside a worker."""
    async with working(settings), served(settings) as url, Client(url) as jobs:
        yield jobs


async def watched(jobs: Client, job: Job) -> list[Event]:
    """Every event of a job."""
    async with asyncio.timeout(60):
        return [event async for event in jobs.watch(job.job_id)]


async def writes(ground: Ground) -> int:
    """How often a row of the jobs or of their leases was updated, once it has been counted."""

    async def counted() -> int:
        async with ground.postgres._acquired() as connection:
            return int(
                await connection.fetchval(
                    "SELECT sum(n_tup_upd) FROM pg_stat_user_tables "
                    "WHERE relname IN ('jobs', 'leases')"
                )
            )

    return int(await eventually(counted))


@pytest.mark.parametrize("task", ["p.on_loop", "p.in_thread", "p.in_process"])
async def test_thousands_of_reports_a_second(jobs: Client, ground: Ground, task: str) -> None:
    """PRG-05: merged to five a second, the last one exact, what is out of range cut to it, and the
    database is written to no more often than without any."""
    job = await jobs.submit(task, args=[1.5])
    events = await watched(jobs, job)
    reported = await jobs.result(job.job_id, timeout=10)
    assert reported > 2000
    running = [event for event in events if event.status == "running"]
    took = (running[-1].at - running[0].at).total_seconds()
    assert len(running) <= 5 * took + 5
    assert (running[-1].progress, running[-1].step) == (73.25, "the last one")
    assert events[-1].status == "succeeded"
    assert "gap" not in {event.type for event in events}
    # Cut to the range; what is no number changes nothing.
    odd = {event.step: event.progress for event in running}
    assert [odd.get(step) for step in ("-5", "40", "nan", "1e+300")] == [0.0, 40.0, 40.0, 100.0]
    # Claim and end, and one for each beat; a report costs none.
    assert await writes(ground) <= 5 + 3 * took / 0.4


async def test_very_short_jobs_at_any_moment(jobs: Client) -> None:
    """PRG-01: before, during and after; the end comes within two seconds, nothing is missing."""
    chance = random.Random(1)

    async def story(number: int) -> tuple[list[Event], float]:
        job = await jobs.submit("p.instant", args=[number])
        await asyncio.sleep(chance.uniform(0, 0.3))
        opened = datetime.now(UTC)
        events = await watched(jobs, job)
        ended = (await jobs.get(job.job_id)).completed_at
        assert ended is not None
        return events, (datetime.now(UTC) - max(opened, ended)).total_seconds()

    stories = await asyncio.gather(*(story(number) for number in range(40)))
    for events, _ in stories:
        assert events[0].type == "snapshot"
        assert events[-1].status == "succeeded"
        assert "gap" not in {event.type for event in events}
        ids = [tuple(map(int, event.id.split("-"))) for event in events]
        assert ids == sorted(ids)
    late = sorted(seconds for _, seconds in stories)
    # The last of them may be a busy machine's.
    assert late[len(late) // 2] < 2, late
    assert late[-1] < 10, late


async def test_a_progress_channel_that_refuses_everything(jobs: Client, worker: Worker) -> None:
    """PRG-04: no event can be written or read; the job ends well and its watcher hears of it."""
    job = await jobs.submit("p.slow", args=[1.0], countdown=0.3)
    broker = worker.ground.broker
    await broker._redis.set(broker.progress_key(UUID(str(job.job_id))), "not a stream")
    events = await watched(jobs, job)
    assert (events[-1].status, events[-1].attempt) == ("succeeded", 1)
    assert await jobs.result(job.job_id, timeout=5) == "done"


# -- proxies that close what is silent ----------------------------------------------------


@contextlib.asynccontextmanager
async def behind_a_proxy(
    settings: Settings, worker: Worker, patience: float
) -> AsyncIterator[Line]:
    """A service behind a line that closes what is silent for so long."""
    await worker.ground.ledger.register_tasks(entries_of(app))
    async with served(settings) as url, line_to(url) as line:
        line.patience = patience
        yield line


async def told(worker: Worker, job_id: str, pause: float) -> list[str]:
    """A job's life with silences in it; the ids of its events."""
    claimed = await worker.claim(job_id)
    trail = worker.trail(claimed)
    for n in range(4):
        assert await worker.tell(trail, "progress", "running", progress=float(n))
        await asyncio.sleep(pause)
    await worker.complete(claimed)
    assert await worker.tell(trail, "status", "succeeded", progress=100.0)
    return [f"{claimed.fence}-{n}" for n in range(1, 6)]


async def watch(jobs: Client, job_id: str, ids: list[str]) -> None:
    """Add the id of every event to `ids`."""
    async for event in jobs.watch(job_id):
        assert event.type != "gap"
        ids.append(event.id)


async def sse(http: httpx.AsyncClient, job_id: str, ids: list[str]) -> None:
    """The same as an EventSource does it, however often it has to connect."""
    while True:
        headers = {"Last-Event-ID": ids[-1]} if ids else {}
        with contextlib.suppress(httpx.TransportError):
            async with http.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as reply:
                if reply.status_code == 204:
                    return
                async for line in reply.aiter_lines():
                    assert line != "event: gap"
                    if line.startswith("id: "):
                        ids.append(line[4:])


@contextlib.asynccontextmanager
async def two_watching(url: str) -> AsyncIterator[tuple[str, list[list[str]], list[Any]]]:
    """A new job, what its two watchers have seen so far, and their tasks."""
    async with client(url) as http, Client(url) as jobs, asyncio.timeout(60):
        job_id = (await submit(http, "t.echo"))["job_id"]
        seen: list[list[str]] = [[], []]
        tasks = [
            asyncio.create_task(watch(jobs, job_id, seen[0])),
            asyncio.create_task(sse(http, job_id, seen[1])),
        ]

        async def both() -> bool:
            return all(seen)

        await eventually(both)
        yield job_id, seen, tasks


async def test_signs_of_life_keep_a_silent_stream_open(settings: Settings, worker: Worker) -> None:
    """PRG-06: silent for longer than the proxy allows, by WebSocket and by SSE; nobody has to come
    again."""
    pinging = msgspec.structs.replace(settings, stream_ping=0.3)
    async with (
        behind_a_proxy(pinging, worker, patience=1.5) as line,
        two_watching(line.url) as (job_id, seen, tasks),
    ):
        opened = line.opened
        await asyncio.sleep(2.5)
        ids = await told(worker, job_id, 0.1)
        await tasks[0]
        assert line.opened == opened
        await tasks[1]
        assert seen == [["0-1", *ids]] * 2


async def test_a_stream_that_was_closed_is_resumed(settings: Settings, worker: Worker) -> None:
    """PRG-06: a proxy more impatient than the signs of life; client and EventSource come again by
    themselves and miss nothing."""
    async with (
        behind_a_proxy(settings, worker, patience=0.4) as line,
        two_watching(line.url) as (job_id, seen, tasks),
    ):
        ids = await told(worker, job_id, 1.0)
        await asyncio.gather(*tasks)
        assert line.hung_up >= 4
        assert seen == [["0-1", *ids]] * 2
