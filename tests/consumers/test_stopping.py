"""Stopping: what a worker has in hand is finished, begun elsewhere or handed back, and it ends."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import msgspec

from lateack.models import Job
from lateack_cli.embedded import EmbeddedServers
from lateack_core.ground import open_ground
from lateack_core.settings import Settings
from tests.consumers.conftest import Caller, until
from tests.consumers.faults import (
    APP_PATH,
    all_ended,
    asker,
    cleared,
    know_the_tasks,
    notes,
    outcomes,
    serving,
    told,
    until_ready,
    worker,
)
from tests.consumers.processes import lateack


async def test_what_can_finish_finishes_and_never_runs_again(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """SHD-01: in each kind of body; all is recorded and acknowledged when the worker has ended, and
    one that is started afterwards finds nothing to do."""
    effects = tmp_path / "effects"
    settings = msgspec.structs.replace(settings, grace=20.0)
    async with worker(settings, tmp_path / "a.log", slots=20) as stopped:
        jobs = [
            await caller.submit(task, str(effects), 1.5)
            for task in ("f.held", "f.in_thread", "f.in_process")
            for _ in range(2)
        ]
        await until(lambda: len(notes(effects, "start")) == 6)
        stopped.signal(signal.SIGTERM)
        assert await stopped.wait() == 0
    ended = [await caller.job(job.job_id) for job in jobs]
    assert {(job.status, job.attempt) for job in ended} == {("succeeded", 1)}
    assert await caller.ground.broker.depth("q") == (0, 0)
    async with worker(settings, tmp_path / "b.log", more=("-B",)):
        await caller.until((await caller.submit("f.nothing")).job_id)
    assert Counter(note.word for note in notes(effects)) == {"start": 6, "end": 6}


async def test_what_has_not_begun_begins_elsewhere(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """SHD-02: more jobs than free processes in a worker that has a long grace; it is asked to stop,
    and what waits in it begins on another worker while it still finishes the rest."""
    effects, release = tmp_path / "effects", tmp_path / "release"
    settings = msgspec.structs.replace(settings, grace=60.0, processes=2)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(worker(settings, tmp_path / "a.log", slots=4))
        jobs = [await caller.submit("f.until_told", str(effects), str(release)) for _ in range(4)]
        for job in jobs:
            await caller.until(job.job_id, "running")
        await until(lambda: len(notes(effects)) == 2)
        second = await stack.enter_async_context(worker(settings, tmp_path / "b.log", slots=8))
        # Its processes are there already: what is measured is how soon the jobs come.
        warm = [await caller.submit("f.in_process", str(tmp_path / "w"), 0.3) for _ in range(2)]
        await all_ended(caller, warm)
        first.signal(signal.SIGTERM)
        # Within a couple of seconds, and a busy machine's pauses.
        await until(lambda: len(notes(effects, "start")) == 4, within=2 + 4)
        assert first.returncode is None
        release.touch()
        assert await first.wait() == 0
        ended = await all_ended(caller, jobs)
        assert second.returncode is None
    assert {(job.status, job.attempt) for job in ended} == {("succeeded", 1)}
    assert set(Counter(note.job_id for note in notes(effects, "start")).values()) == {1}


async def test_what_outlasts_the_grace_goes_on_elsewhere(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """SHD-03, I10: in each kind of body; handed back as interrupted, no attempt used, and none
    looks as if a user had cancelled it."""
    effects = tmp_path / "effects"
    settings = msgspec.structs.replace(settings, grace=1.0)
    async with worker(settings, tmp_path / "a.log") as first:
        jobs = [
            await caller.submit(task, str(effects), 3.0, max_retries=0)
            for task in ("f.held", "f.walks", "f.in_thread", "f.in_process")
        ]
        await until(lambda: len(notes(effects, "start")) == 4)
        first.signal(signal.SIGTERM)
        async with worker(settings, tmp_path / "b.log"):
            assert await first.wait() == 0
            ended = await all_ended(caller, jobs)
    assert {(job.status, job.attempt, job.cancel_requested) for job in ended} == {
        ("succeeded", 1, False)
    }
    for job in jobs:
        history = await outcomes(caller, job)
        assert history[0] == (1, "handed_back", None)
        assert {outcome for _, outcome, _ in history[1:]} <= {"succeeded"}
    assert Counter(note.word for note in notes(effects)) == {"start": 8, "end": 4}


async def test_a_last_job_keeps_its_lease_while_the_worker_stops(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """SHD-04, I3: four leases long after the request, with a reaper and another worker around."""
    effects = tmp_path / "effects"
    settings = msgspec.structs.replace(settings, grace=60.0)
    async with (
        worker(settings, tmp_path / "a.log", more=("-B",)) as first,
        worker(settings, tmp_path / "b.log", more=("-B",)) as second,
    ):
        jobs = [await caller.submit("f.held", str(effects), 4 * settings.lease) for _ in range(8)]
        await until(lambda: len(notes(effects)) == 8)
        # Whoever has it; the other one stays.
        mine = [note for note in notes(effects) if note.pid == first.pid]
        stopped = first if mine else second
        stopped.signal(signal.SIGTERM)
        assert await stopped.wait() == 0
        ended = await all_ended(caller, jobs)
        assert "Traceback" not in stopped.log.read_text()
    assert {(job.status, job.attempt) for job in ended} == {("succeeded", 1)}
    assert Counter(note.word for note in notes(effects)) == {"start": 8, "end": 8}


async def test_processes_end_though_their_servers_are_away(
    own_servers: EmbeddedServers, own_settings: Settings, tmp_path: Path
) -> None:
    """SHD-05: broker and database are gone; worker, scheduler and API end shortly after the grace,
    and the worker says which job it leaves behind."""
    settings = msgspec.structs.replace(own_settings, grace=1.0)
    effects = tmp_path / "effects"
    async with AsyncExitStack() as stack:
        ground = await open_ground(settings, process="test")
        stack.push_async_callback(ground.close)
        ground.start()
        api = await stack.enter_async_context(serving(settings, tmp_path / "api.log"))
        scheduler = await stack.enter_async_context(
            lateack(settings, tmp_path / "s.log", "scheduler")
        )
        await told(scheduler, "(leading)")
        running = await stack.enter_async_context(worker(settings, tmp_path / "w.log"))
        job = await Caller(ground).submit("f.held", str(effects), 60.0)
        await until(lambda: notes(effects))
        await own_servers.broker.kill()
        await own_servers.postgres.kill()
        for process in (running, scheduler, api[1]):
            process.signal(signal.SIGTERM)
        # A grace of one second, a clean-up of two, connections that close in five.
        codes = await asyncio.gather(*(p.wait(20) for p in (running, scheduler, api[1])))
    assert codes[1:] == [0, 0]
    said = (tmp_path / "w.log").read_text()
    assert "left behind" in said
    assert str(job.job_id) in said


async def test_readiness_turns_negative_first(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """SHD-06: each process says that it is not ready before it stops to answer; it ends with 0 and
    with no stack trace."""
    await know_the_tasks(caller.ground.ledger)
    async with AsyncExitStack() as stack:
        url, api = await stack.enter_async_context(serving(settings, tmp_path / "api.log"))
        processes = {url: api}
        for verb, words in (("worker", ("-A", APP_PATH, "-Q", "q", "-B")), ("scheduler", ())):
            process = await stack.enter_async_context(
                lateack(settings, tmp_path / verb, verb, *words, LATEACK_HEALTH="127.0.0.1:0")
            )
            processes[await told(process, r"health is told at (\S+)")] = process
        for address, process in processes.items():
            await until_ready(address)
            process.signal(signal.SIGTERM)
            seen = await _answers_until_the_end(address)
            assert await process.wait() == 0
            # Once negative it stays so, and it is negative before the end.
            assert 503 in seen
            assert seen == sorted(seen)
            assert "Traceback" not in process.log.read_text()


async def _answers_until_the_end(address: str) -> list[int]:
    seen: list[int] = []
    with contextlib.suppress(httpx.HTTPError):
        async with asker() as http:
            while True:
                seen.append((await http.get(f"{address}/readyz")).status_code)
                await asyncio.sleep(0.01)
    return seen


async def test_polite_stops_under_load_cost_no_attempt(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """SHD-02, I10: asked to stop at any moment, with jobs on their way to it; none is lost with it,
    and none waits for a lease to run out."""
    effects, draw = tmp_path / "effects", random.Random(5)
    await know_the_tasks(caller.ground.ledger)
    stopping = asyncio.Event()
    jobs: list[Job] = []

    async def load() -> None:
        while not stopping.is_set():
            more = [caller.submit("f.held", str(effects), 0.02, max_retries=0) for _ in range(10)]
            jobs.extend(await asyncio.gather(*more))
            await asyncio.sleep(0.05)

    loading = asyncio.create_task(load())
    for number in range(6):
        async with worker(settings, tmp_path / f"{number}.log", slots=10) as stopped:
            await asyncio.sleep(draw.uniform(0.05, 0.6))
            stopped.signal(signal.SIGTERM)
            assert await stopped.wait() == 0
        assert "left behind" not in stopped.log.read_text()
    stopping.set()
    await loading
    async with worker(settings, tmp_path / "last.log", slots=50, more=("-B",)):
        ended = await all_ended(caller, jobs)
        await cleared(caller.ground.broker)
    assert {(job.status, job.attempt) for job in ended} == {("succeeded", 1)}
    assert set(Counter(note.job_id for note in notes(effects, "start")).values()) == {1}
