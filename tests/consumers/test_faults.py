"""Workers killed, frozen, blocked and stopped for real; brokers and databases that go away.

Each test ends by looking at the effects on disk and at the one outcome in the ledger.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from lateack_cli.embedded import EmbeddedServers
from lateack_core.ground import open_ground
from lateack_core.jobs import Success
from lateack_core.registry import entries_of
from lateack_core.settings import Settings
from lateack_core.stream import Entry
from tests.consumers.conftest import Caller, lines, until
from tests.consumers.processes import Process, worker_process
from tests.consumers.tasks_under_test import app


def starts(path: Path) -> list[str]:
    return [line for line in lines(path) if line.startswith("start")]


async def told_to_hurry(worker: Process) -> None:
    """SIGTERM twice; one at a time, since the kernel merges what is still pending."""
    worker.signal(signal.SIGTERM)
    await until(lambda: "draining" in worker.log.read_text())
    worker.signal(signal.SIGTERM)


async def test_a_killed_workers_job_is_finished_by_another(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """DEL-01, I2, I10: SIGKILL in the middle; attempt 2 elsewhere, within a lease plus a scan."""
    effects = tmp_path / "effects"
    async with worker_process(settings, tmp_path / "a.log") as first:
        job = await caller.submit("slow", str(effects), 1.0)
        await until(lambda: starts(effects))
        await first.kill()
        async with worker_process(settings, tmp_path / "b.log"):
            # One lease plus one scan, and the pauses of a busy machine on top.
            ended = await caller.until(
                job.job_id, within=settings.lease + settings.reclaim_idle + 8
            )
    assert (ended.status, ended.attempt) == ("succeeded", 2)
    assert [line.split()[0] for line in lines(effects)] == ["start", "start", "end"]
    outcomes = [a["outcome"] for a in await caller.ground.ledger.attempts("default", job.job_id)]
    assert outcomes == ["lost", "succeeded"]


async def test_a_blocked_worker_keeps_its_job(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """I3, REC-01: three leases of a synchronous call on the loop; nobody else takes the job."""
    effects = tmp_path / "effects"
    async with (
        worker_process(settings, tmp_path / "a.log") as first,
        worker_process(settings, tmp_path / "b.log"),
    ):
        job = await caller.submit("blocking", str(effects), 3 * settings.lease)
        ended = await caller.until(job.job_id, within=30)
        assert (ended.status, ended.attempt) == ("succeeded", 1)
        assert len(lines(effects)) == 2
        first.signal(signal.SIGCONT)
    logs = (tmp_path / "a.log").read_text() + (tmp_path / "b.log").read_text()
    # The watchdog names the task that blocks.
    assert "the event loop has been blocked" in logs
    assert "tasks_under_test.blocking" in logs


async def test_a_frozen_workers_late_word_changes_nothing(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """REC-02, I2: SIGSTOP for three leases, then SIGCONT; only the second attempt decides."""
    effects = tmp_path / "effects"
    async with worker_process(settings, tmp_path / "a.log") as first:
        job = await caller.submit("slow", str(effects), 1.0)
        await until(lambda: starts(effects))
        first.signal(signal.SIGSTOP)
        async with worker_process(settings, tmp_path / "b.log") as second:
            ended = await caller.until(job.job_id, within=30)
            assert (ended.status, ended.attempt) == ("succeeded", 2)
            first.signal(signal.SIGCONT)
            # The first one wakes, runs its body on, and is told that the job is not its any more.
            await until(
                lambda: "no longer ours" in first.log.read_text() or len(lines(effects)) == 4
            )
            assert await caller.job(job.job_id) == ended
            first.signal(signal.SIGTERM)
            second.signal(signal.SIGTERM)
            assert await first.wait() == 0
            assert await second.wait() == 0
    assert await caller.job(job.job_id) == ended


async def test_hundreds_of_abandoned_jobs_are_rerun_once_each(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """DEL-04: a dead worker's jobs, and several workers that take over at the same instant."""
    effects = tmp_path / "effects"
    async with worker_process(settings, tmp_path / "a.log", slots=200) as first:
        jobs = [await caller.submit("slow", str(effects), 0.3, max_retries=5) for _ in range(200)]
        await until(lambda: len(starts(effects)) > 50)
        await first.kill()
    async with AsyncExitStack() as stack:
        for number in range(3):
            await stack.enter_async_context(
                worker_process(settings, tmp_path / f"{number}.log", slots=100)
            )
        ended = [await caller.until(job.job_id, within=40) for job in jobs]
    assert {job.status for job in ended} == {"succeeded"}
    assert max(job.attempt for job in ended) == 2
    # Bodies that were begun twice are those that the dead worker had begun.
    assert sum(job.attempt for job in ended) >= len(starts(effects))


async def test_a_stopped_worker_finishes_what_it_has(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """SHD-01, SHD-04, SHD-06: SIGTERM; the job ends on attempt 1, the exit code is 0, no traces."""
    effects = tmp_path / "effects"
    async with worker_process(settings, tmp_path / "a.log") as worker:
        job = await caller.submit("slow", str(effects), 2.0)
        await until(lambda: starts(effects))
        worker.signal(signal.SIGTERM)
        assert await worker.wait() == 0
    ended = await caller.job(job.job_id)
    assert (ended.status, ended.attempt) == ("succeeded", 1)
    assert "Traceback" not in worker.log.read_text()
    assert await caller.ground.broker.depth("q") == (0, 0)


async def test_a_stopped_worker_hands_long_jobs_back(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """SHD-03, I10: longer than the grace; back to the queue, no attempt used, goes on elsewhere."""
    effects = tmp_path / "effects"
    async with worker_process(settings, tmp_path / "a.log") as worker:
        job = await caller.submit("slow", str(effects), 3.0)
        await until(lambda: starts(effects))
        await told_to_hurry(worker)
        assert await worker.wait() == 0
    waiting = await caller.job(job.job_id)
    assert (waiting.status, waiting.attempt) == ("pending", 0)
    async with worker_process(settings, tmp_path / "b.log"):
        ended = await caller.until(job.job_id, within=30)
    assert (ended.status, ended.attempt) == ("succeeded", 1)


async def test_a_worker_with_a_stubborn_body_still_exits(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """SHD-05: a body that ignores its cancellation is left behind by name, its job goes back."""
    async with worker_process(settings, tmp_path / "a.log") as worker:
        job = await caller.submit("stubborn")
        await caller.until(job.job_id, "running")
        await told_to_hurry(worker)
        assert await worker.wait(15) == 0
    assert "left behind" in worker.log.read_text()
    waiting = await caller.job(job.job_id)
    assert (waiting.status, waiting.attempt) == ("pending", 0)


async def test_a_loop_that_is_brought_down_costs_the_neighbours_no_outcome(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """I1, I2: as after a kill, the others run again elsewhere, also beside one that is stubborn."""
    effects = tmp_path / "effects"
    async with worker_process(settings, tmp_path / "a.log") as first:
        job = await caller.submit("slow", str(effects), 2.0)
        await caller.submit("stubborn")
        await until(lambda: starts(effects))
        await caller.submit("brings_down_the_loop", max_retries=0)
        assert await first.wait() == 70
        async with worker_process(settings, tmp_path / "b.log", more=("-B",)) as second:
            ended = await caller.until(job.job_id, within=30)
            await second.kill()
    assert (ended.status, ended.attempt) == ("succeeded", 2)


async def test_at_most_once_is_not_run_again(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """acks_late=False: a crash ends the job as WorkerLost, it never starts again."""
    effects = tmp_path / "effects"
    async with worker_process(settings, tmp_path / "a.log") as first:
        job = await caller.submit("at_most_once", str(effects), 30.0)
        await until(lambda: starts(effects))
        await first.kill()
    async with worker_process(settings, tmp_path / "b.log", more=("-B",)):
        ended = await caller.until(job.job_id, within=30)
    assert (ended.status, ended.error_code) == ("failed", "WorkerLost")
    assert len(starts(effects)) == 1


async def test_a_lost_acknowledgement_does_not_run_the_job_again(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """DEL-03: the result is stored, the entry is still pending with a consumer that died."""
    effects = tmp_path / "effects"
    broker, ledger = caller.ground.broker, caller.ground.ledger
    await ledger.register_tasks(entries_of(app))
    job = await caller.submit("slow", str(effects), 0.1)
    for stream in broker.streams("q"):
        await broker.ensure_group(stream)
    entries: list[Entry] = []
    while not entries:
        entries = await broker.read(broker.streams("q"), "dead", 10)
    claimed = await ledger.claim(
        [job.job_id], job.job_id, lease=5, tasks=["tests.consumers.tasks_under_test.slow"]
    )
    await ledger.complete([Success(claimed[0].owned, '"by the dead"')])
    async with worker_process(settings, tmp_path / "a.log"):
        for _ in range(1000):
            if await broker.depth("q") == (0, 0):
                break
            await asyncio.sleep(0.02)
        assert await broker.depth("q") == (0, 0)
    assert starts(effects) == []


@pytest.fixture
async def own_caller(own_settings: Settings) -> object:
    ground = await open_ground(own_settings, process="test")
    ground.start()
    yield Caller(ground)
    await ground.close()


async def test_the_broker_goes_away_and_comes_back(
    own_servers: EmbeddedServers, own_settings: Settings, own_caller: Caller, tmp_path: Path
) -> None:
    """I7, BRK-06: while it is down jobs are accepted, and run when it is back."""
    caller = own_caller
    async with worker_process(own_settings, tmp_path / "a.log") as worker:
        assert (await caller.until((await caller.submit("add", 1, 1)).job_id)).status == "succeeded"
        running = await caller.submit("slow", str(tmp_path / "e"), 1.5)
        await until(lambda: starts(tmp_path / "e"))
        await own_servers.broker.kill()
        waiting = [await caller.submit("add", 1, n) for n in range(20)]
        # What runs is finished though the broker is away.
        assert (await caller.until(running.job_id)).attempt == 1
        await own_servers.broker.start()
        ended = [await caller.until(job.job_id, within=30) for job in waiting]
        assert {job.status for job in ended} == {"succeeded"}
        assert {job.attempt for job in ended} == {1}
        assert worker.returncode is None


async def test_the_broker_is_flushed(
    own_servers: EmbeddedServers, own_settings: Settings, own_caller: Caller, tmp_path: Path
) -> None:
    """I7, BRK-01: pending, running and delayed jobs all end once, with no restart."""
    caller = own_caller
    async with worker_process(own_settings, tmp_path / "a.log", slots=2, more=("-B",)):
        long = [await caller.submit("slow", str(tmp_path / "e"), 2.0) for _ in range(2)]
        await until(lambda: len(starts(tmp_path / "e")) == 2)
        waiting = [await caller.submit("add", 1, n) for n in range(30)]
        delayed = await caller.submit("add", 1, 1, countdown=1.0)
        for _ in range(300):
            if sum(await caller.ground.broker.depth("q")) >= 32:
                break
            await asyncio.sleep(0.02)
        await caller.ground.broker._redis.flushall()
        ended = [await caller.until(job.job_id, within=40) for job in [*long, *waiting, delayed]]
    assert {job.status for job in ended} == {"succeeded"}
    assert {job.attempt for job in ended} == {1}
    assert len(starts(tmp_path / "e")) == 2


async def test_the_database_is_restarted(
    own_servers: EmbeddedServers, own_settings: Settings, own_caller: Caller, tmp_path: Path
) -> None:
    """DBS-02, DBS-03, I10: a job that ends meanwhile keeps its result; the slot lives."""
    caller = own_caller
    async with worker_process(own_settings, tmp_path / "a.log", slots=1) as worker:
        job = await caller.submit("slow", str(tmp_path / "e"), 1.0)
        await until(lambda: starts(tmp_path / "e"))
        await own_servers.postgres.kill()
        await until(lambda: len(lines(tmp_path / "e")) == 2)
        await own_servers.postgres.start()
        ended = await caller.until(job.job_id, within=15)
        assert (ended.status, ended.attempt) == ("succeeded", 1)
        again = await caller.until((await caller.submit("add", 1, 1)).job_id, within=15)
        assert again.status == "succeeded"
        assert worker.returncode is None
    assert len(starts(tmp_path / "e")) == 1
