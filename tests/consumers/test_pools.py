"""Bodies in processes: killed by their limits, replaced by age, waiting without cost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lateack import App, DeclarationError
from lateack.models import Job, Submission
from lateack_cli.embedded import EmbeddedServers
from lateack_core.ground import Ground, open_ground
from lateack_core.settings import Settings
from tests.consumers.conftest import Caller, lines, result_of, until
from tests.consumers.processes import Process, lateack, worker_process

ONE = {"processes": 1}


class Pool(Caller):
    """Submits the tasks of pool_tasks."""

    async def submit(self, task: str, *args: Any, **options: Any) -> Job:
        submission = Submission(
            task=f"tests.consumers.pool_tasks.{task}", args=list(args), **options
        )
        return (await self.ground.submissions.accept("default", submission)).job

    async def run(self, task: str, *args: Any, **options: Any) -> Job:
        """Submit a job and wait for its end."""
        return await self.until((await self.submit(task, *args, **options)).job_id, within=40)

    async def outcomes(self, job: Job) -> list[str]:
        return [a["outcome"] for a in await self.ground.ledger.attempts("default", job.job_id)]


@pytest.fixture
async def pool(ground: Ground) -> Pool:
    ground.start()
    return Pool(ground)


@asynccontextmanager
async def pool_worker(
    settings: Settings, log: Path, *more: str, slots: int = 10, **changed: Any
) -> AsyncIterator[Process]:
    """A worker with these settings changed, from the moment it is ready."""
    settings = msgspec.structs.replace(settings, **changed)
    words = ("worker", "-A", "tests.consumers.pool_tasks:app", "-c", str(slots), *more)
    async with lateack(settings, log, *words) as process:
        await until(lambda: process.returncode is not None or "ready: " in log.read_text())
        assert process.returncode is None, log.read_text()
        yield process


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# -- memory ---------------------------------------------------------------------------------


async def test_a_body_above_its_memory_limit_is_killed(
    settings: Settings, pool: Pool, tmp_path: Path
) -> None:
    """I1: it fails at once, whatever it retries on, and is on record; nobody else notices."""
    effects, neighbour = tmp_path / "effects", tmp_path / "neighbour"
    async with pool_worker(settings, tmp_path / "log", processes=2):
        beside = await pool.submit("waits", str(neighbour), 3.0)
        await until(lambda: lines(neighbour))
        ended = await pool.run("hoards", str(effects), 300)
        assert (ended.status, ended.error_code) == ("failed", "MemoryLimitExceeded")
        assert "150 MiB are allowed" in str(ended.error_message)
        assert ended.error_info is not None
        assert ended.error_info["memory_limit"] == 150
        assert ended.error_info["memory_used"] > 150
        assert await pool.outcomes(ended) == ["failed"]
        assert len(lines(effects)) == 1
        await until(lambda: not is_running(int(lines(effects)[0].split()[2])))
        within = await pool.run("hoards", str(effects), 60)
        assert (within.status, within.attempt) == ("succeeded", 1)
        ended = await pool.until(beside.job_id)
        assert (ended.status, ended.attempt) == ("succeeded", 1)


async def test_what_a_body_starts_counts_and_ends_with_it(
    settings: Settings, pool: Pool, tmp_path: Path
) -> None:
    """I1: memory that a body uses in a process of its own making is used by the body."""
    effects = tmp_path / "effects"
    async with pool_worker(settings, tmp_path / "log"):
        ended = await pool.run("hoards_elsewhere", str(effects), 300)
        assert (ended.status, ended.error_code) == ("failed", "MemoryLimitExceeded")
        await until(lambda: not is_running(int(lines(effects)[0])))


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="not known here")
async def test_copies_that_share_memory_are_counted_once(
    settings: Settings, pool: Pool, tmp_path: Path
) -> None:
    """I1: four processes of 100 MiB that share all of it are not 400 MiB."""
    async with pool_worker(settings, tmp_path / "log"):
        ended = await pool.run("shares", 100, 3)
    assert (ended.status, ended.error_message) == ("succeeded", None)


async def test_the_workers_limit_is_for_tasks_that_name_none(
    settings: Settings, pool: Pool, tmp_path: Path
) -> None:
    """I1: LATEACK_PROCESS_MEMORY_LIMIT; a task's own limit, also none at all, comes before it."""
    async with pool_worker(settings, tmp_path / "log", process_memory_limit=150):
        by_default = await pool.submit("hoards_by_default", 300)
        freely = await pool.run("hoards_freely", 300)
        assert freely.status == "succeeded"
        assert (await pool.until(by_default.job_id)).error_code == "MemoryLimitExceeded"


async def test_a_job_does_not_pay_for_what_others_left(
    settings: Settings, pool: Pool, tmp_path: Path
) -> None:
    """I2: each keeps 80 MiB of 120 in the same child; three would not fit, and none fails."""
    async with pool_worker(settings, tmp_path / "log", **ONE):
        ended = [await pool.run("keeps_within", 80) for _ in range(4)]
    assert [job.status for job in ended] == ["succeeded"] * 4
    # What they left is bounded: a child in which there is more than the limit is replaced.
    assert sorted(Counter(result_of(job) for job in ended).values()) == [2, 2]


def test_only_processes_can_be_held_to_a_memory_limit() -> None:
    """I1: a limit that nobody would enforce is refused where it is declared."""
    app = App("refused")
    with pytest.raises(DeclarationError, match='pool="process"'):

        @app.task(memory_limit=100)
        def in_a_thread() -> None: ...

    with pytest.raises(DeclarationError, match="more than 0"):

        @app.task(pool="process", memory_limit=0)
        def none_at_all() -> None: ...


# -- children that are replaced -------------------------------------------------------------


async def test_a_child_is_replaced_after_so_many_jobs(
    settings: Settings, pool: Pool, tmp_path: Path
) -> None:
    """I10: --max-tasks-per-child; between jobs, so it costs none of them an attempt."""
    async with pool_worker(settings, tmp_path / "log", "--max-tasks-per-child", "2", **ONE):
        jobs = [await pool.submit("pid") for _ in range(7)]
        ended = [await pool.until(job.job_id) for job in jobs]
        assert {(job.status, job.attempt) for job in ended} == {("succeeded", 1)}
        served = Counter(result_of(job) for job in ended)
        assert sorted(served.values()) == [1, 2, 2, 2]
        (last,) = [pid for pid, count in served.items() if count == 1]
        await until(lambda: [pid for pid in served if is_running(pid)] == [last])


async def test_a_child_that_has_grown_is_replaced(
    settings: Settings, pool: Pool, tmp_path: Path
) -> None:
    """I10: --max-memory-per-child; the job that made it grow is not interrupted."""
    async with pool_worker(settings, tmp_path / "log", "--max-memory-per-child", "150", **ONE):
        first, second, third = [await pool.run("keeps", mib) for mib in (10, 200, 10)]
        assert {job.status for job in (first, second, third)} == {"succeeded"}
        assert {job.attempt for job in (first, second, third)} == {1}
        assert result_of(first) == result_of(second) != result_of(third)
        await until(lambda: not is_running(result_of(first)))


async def test_what_a_body_leaves_running_is_left_alone(
    settings: Settings, pool: Pool, tmp_path: Path
) -> None:
    """SHD-01: after a normal end nobody knows better than the body what it started and why."""
    async with pool_worker(settings, tmp_path / "log", "--max-tasks-per-child", "1", **ONE) as w:
        left = result_of(await pool.run("leaves_something_running"))
        try:
            assert (await pool.run("pid")).status == "succeeded"
            w.signal(signal.SIGTERM)
            assert await w.wait() == 0
            assert is_running(left)
        finally:
            os.kill(left, signal.SIGKILL)


# -- limits that hold whatever the body does ------------------------------------------------


async def test_a_body_that_ignores_every_signal_ends_at_its_hard_limit(
    settings: Settings, pool: Pool, tmp_path: Path
) -> None:
    """I1: also when a copy of it holds all that it held; the only child's next job runs."""
    effects = tmp_path / "effects"
    async with pool_worker(settings, tmp_path / "log", **ONE):
        ended = await pool.run("will_not_end", str(effects))
        assert (ended.status, ended.error_code) == ("failed", "TimeLimitExceeded")
        after = await pool.run("pid")
        assert (after.status, after.attempt) == ("succeeded", 1)
        body, copy = map(int, lines(effects)[0].split())
        await until(lambda: not is_running(body) and not is_running(copy))


async def test_the_watchdog_names_who_blocks_the_loop(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """DEL-08: one of several running tasks blocks; its name, its job and its line are told."""
    effects = tmp_path / "effects"
    async with worker_process(settings, tmp_path / "log") as worker:
        others = [await caller.submit("slow", str(effects), 4.0) for _ in range(3)]
        await until(lambda: len(lines(effects)) == 3)
        blocking = await caller.submit("blocking", str(effects), 4.0)
        await until(lambda: "the event loop has been blocked" in worker.log.read_text())
        for job in (*others, blocking):
            assert (await caller.until(job.job_id)).attempt == 1
    said = worker.log.read_text().partition("the event loop has been blocked")[2]
    named = said.partition("\n")[0]
    assert f"It is blocked by tests.consumers.tasks_under_test.blocking, job {blocking.job_id}" in (
        named
    )
    assert "slow" not in named
    assert "time.sleep(seconds)" in said


# -- waiting for a free child ---------------------------------------------------------------


async def test_a_job_that_waits_for_a_child_has_not_started(
    settings: Settings, pool: Pool, tmp_path: Path
) -> None:
    """I10, RTY-04: one child, five jobs, kill -9: only the one that ran has lost an attempt."""
    effects = tmp_path / "effects"
    async with pool_worker(settings, tmp_path / "a.log", **ONE) as first:
        jobs = [await pool.submit("waits", str(effects), 5.0) for _ in range(5)]
        for job in jobs:
            await pool.until(job.job_id, "running")
        await until(lambda: lines(effects))
        (ran,) = [job for job in jobs if str(job.job_id) in lines(effects)[0]]
        await first.kill()
    async with pool_worker(settings, tmp_path / "b.log", "-B", processes=5):
        ended = {job.job_id: await pool.until(job.job_id, within=60) for job in jobs}
    assert {job.status for job in ended.values()} == {"succeeded"}
    assert ended.pop(ran.job_id).attempt == 2
    assert {job.attempt for job in ended.values()} == {1}
    assert await pool.outcomes(ran) == ["lost", "succeeded"]
    for job in ended.values():
        assert await pool.outcomes(job) == ["handed_back"]
        row = [line for line in lines(effects) if line.startswith(f"start {job.job_id}")]
        assert len(row) == 1


async def test_a_lease_waits_only_for_a_process(
    settings: Settings, pool: Pool, tmp_path: Path
) -> None:
    """I10: the one that runs in a child has begun, the next waits; threads never wait."""
    effects = tmp_path / "effects"
    async with pool_worker(settings, tmp_path / "log", **ONE):
        runs = await pool.submit("waits", str(effects), 3.0)
        await until(lambda: lines(effects))
        waits = await pool.submit("waits", str(effects), 0.0)
        thread = await pool.submit("in_a_thread", str(effects), 2.0)
        await until(lambda: len(lines(effects)) == 2)
        await pool.until(waits.job_id, "running")
        assert await waiting_leases(pool) == {
            runs.job_id: False,
            waits.job_id: True,
            thread.job_id: False,
        }


async def waiting_leases(pool: Pool) -> dict[Any, bool]:
    async with pool.ground.postgres.transaction() as transaction:
        rows = await transaction._connection.fetch("SELECT job_id, waiting FROM lateack.leases")
    return {row["job_id"]: row["waiting"] for row in rows}


@pytest.fixture
async def own_pool(own_settings: Settings) -> AsyncIterator[Pool]:
    ground = await open_ground(own_settings, process="test")
    ground.start()
    yield Pool(ground)
    await ground.close()


async def test_no_body_begins_while_the_database_is_away(
    own_servers: EmbeddedServers, own_settings: Settings, own_pool: Pool, tmp_path: Path
) -> None:
    """DBS-02, I10: a child is free, but nobody could note the beginning; it starts afterwards."""
    pool, effects = own_pool, tmp_path / "effects"
    async with pool_worker(own_settings, tmp_path / "log", **ONE):
        first = await pool.submit("waits", str(effects), 2.0)
        await until(lambda: lines(effects))
        second = await pool.submit("waits", str(effects), 0.1)
        await pool.until(second.job_id, "running")
        await own_servers.postgres.kill()
        await until(lambda: len(lines(effects)) == 2)
        # The child is free now; longer than its next job would have needed to begin.
        await asyncio.sleep(1.0)
        assert len(lines(effects)) == 2
        await own_servers.postgres.start()
        for job in (first, second):
            ended = await pool.until(job.job_id, within=30)
            assert (ended.status, ended.attempt) == ("succeeded", 1)
    assert len(lines(effects)) == 4
