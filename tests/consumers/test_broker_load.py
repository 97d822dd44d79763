"""The broker under much and under nothing: cancelled callers, many jobs, few connections, rest."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
import redis.asyncio as redis

from lateack.models import Submission
from lateack_cli.embedded import EmbeddedServers
from lateack_core.ground import Ground, open_ground
from lateack_core.identifiers import uuid7
from lateack_core.postgres import LedgerUnavailable
from lateack_core.registry import entries_of
from lateack_core.settings import Settings
from lateack_core.stream import Broker, ProgressEntry
from lateack_core.submission import Accepted
from tests.client.networks import line_to
from tests.consumers.conftest import Caller, lines, result_of
from tests.consumers.processes import worker_process
from tests.consumers.tasks_under_test import app
from tests.servers import one_server

HERE = "tests.consumers.tasks_under_test"


@pytest.fixture
async def ground(settings: Settings) -> AsyncIterator[Ground]:
    """A ground that knows the tasks."""
    ground = await open_ground(settings, process="test")
    await ground.ledger.register_tasks(entries_of(app))
    yield ground
    await ground.close()


async def submit_many(ground: Ground, submissions: Sequence[Submission]) -> list[UUID]:
    """All of them have to be accepted; those that a busy machine was too slow for are sent again
    under their keys."""
    keyed = [
        msgspec.structs.replace(submission, idempotency_key=str(uuid7()))
        for submission in submissions
    ]
    for _ in range(5):
        answers = await ground.submissions.accept_many("default", keyed)
        if not any(isinstance(answer, LedgerUnavailable) for answer in answers):
            break
    assert {type(answer) for answer in answers} == {Accepted}
    return [answer.job.job_id for answer in answers if isinstance(answer, Accepted)]


def adding(count: int, **options: object) -> list[Submission]:
    return [Submission(task=f"{HERE}.add", args=[1, n], **options) for n in range(count)]  # type: ignore[arg-type]


async def all_succeeded(ground: Ground, count: int, within: float = 60.0) -> None:
    """Wait until there are so many jobs, all of them at their end, each on its first attempt."""
    deadline = time.monotonic() + within
    found: dict[str, int] = {}
    while found != {"succeeded": count}:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.2)
        found = await counts(ground)


async def counts(ground: Ground) -> dict[str, int]:
    async with ground.postgres._acquired() as connection:
        rows = await connection.fetch(
            "SELECT status, count(*) FROM lateack.jobs WHERE attempt < 2 GROUP BY 1"
        )
    return {row["status"]: row["count"] for row in rows}


async def own_streams(ground: Ground, count: int) -> list[UUID]:
    """Jobs' progress streams, each with its own id in it."""
    jobs = [uuid7() for _ in range(count)]
    for start in range(0, count, 500):
        entries = [
            ProgressEntry(job, "1-1", str(job).encode(), always=True, last=False)
            for job in jobs[start : start + 500]
        ]
        assert all(await ground.broker.append_progress(entries))
    return jobs


async def test_callers_that_are_cancelled_on_a_slow_line(ground: Ground) -> None:
    """BRK-03: a third of them, at random moments; every other reply is the one asked for, and later
    ones are too."""
    jobs = await own_streams(ground, 2000)
    chance = random.Random(3)
    async with line_to(ground.settings.redis_url or "") as line:
        line.delay = 0.1
        broker = Broker(line.redis_url, namespace=ground.settings.namespace, size=100)
        asked = [asyncio.create_task(broker.progress_range(job, "0-0")) for job in jobs]
        for task in chance.sample(asked, len(asked) // 3):
            asyncio.get_running_loop().call_later(chance.uniform(0, 4), task.cancel)
        replies = await asyncio.gather(*asked, return_exceptions=True)
        cancelled = [reply for reply in replies if isinstance(reply, asyncio.CancelledError)]
        assert 100 < len(cancelled) <= len(asked) // 3
        for job, reply in zip(jobs, replies, strict=True):
            if not isinstance(reply, asyncio.CancelledError):
                assert reply == [("1-1", str(job))]
        async with asyncio.timeout(20):
            again = await asyncio.gather(*(broker.progress_range(j, "0-0") for j in jobs[:300]))
        assert again == [[("1-1", str(job))] for job in jobs[:300]]
        await broker.close()


@one_server
async def test_jobs_that_are_cancelled_on_a_slow_line(
    settings: Settings, ground: Ground, tmp_path: Path
) -> None:
    """BRK-03: a third of a worker's jobs, at random moments; the others return their own results,
    and the worker takes new ones."""
    ground.start()
    caller, chance = Caller(ground), random.Random(5)
    async with line_to(settings.redis_url or "") as line:
        line.delay = 0.1
        slow = msgspec.structs.replace(settings, redis_url=line.redis_url)
        async with worker_process(slow, tmp_path / "log", slots=60) as worker:
            ours = await submit_many(
                ground, [Submission(task=f"{HERE}.twice", args=[n]) for n in range(200)]
            )
            theirs = await submit_many(
                ground, [Submission(task=f"{HERE}.slow", args=[str(tmp_path / "e"), 3.0])] * 100
            )
            for job_id in theirs:
                await ground.ledger.cancel("default", [job_id])
                await asyncio.sleep(chance.uniform(0, 0.02))
            ended = [await caller.until(job_id, within=40) for job_id in [*ours, *theirs]]
            assert [result_of(job) for job in ended[:200]] == [2 * n for n in range(200)]
            assert {job.status for job in ended[200:]} <= {"cancelled", "succeeded"}
            after = await caller.submit("twice", 21)
            assert result_of(await caller.until(after.job_id, within=20)) == 42
            assert worker.returncode is None
    assert "Traceback" not in (tmp_path / "log").read_text()


async def test_a_backlog_longer_than_any_cap(
    settings: Settings, ground: Ground, tmp_path: Path
) -> None:
    """BRK-05: what was accepted while nobody worked runs, however long the queue has become."""
    await ground.close()
    capped = msgspec.structs.replace(settings, max_pending="q=200")
    ground = await open_ground(capped, process="test")
    ground.start()
    # Those that become runnable later are never refused, so the queue outgrows its cap by far.
    await submit_many(ground, adding(2300, countdown=0.5))
    answers = await ground.submissions.accept_many("default", adding(400))
    accepted = sum(isinstance(answer, Accepted) for answer in answers)
    assert accepted <= 200
    await until_depth(ground, 2300 + accepted)
    async with worker_process(settings, tmp_path / "log", slots=100):
        await all_succeeded(ground, 2300 + accepted)
        await until_depth(ground, 0)
    await ground.close()


async def until_depth(ground: Ground, count: int, within: float = 30.0) -> None:
    """Wait until so many entries are in the queue."""
    deadline = time.monotonic() + within
    found = -1
    while found != count:
        assert time.monotonic() < deadline, f"{found} entries, not {count}"
        await asyncio.sleep(0.1)
        found = sum(await ground.broker.depth("q"))


async def test_memory_returns_after_many_jobs(
    own_servers: EmbeddedServers, own_settings: Settings, tmp_path: Path
) -> None:
    """BRK-07: 20 000 jobs leave nothing behind, neither in the queue nor in the broker's memory."""
    ground = await open_ground(own_settings, process="test")
    await ground.ledger.register_tasks(entries_of(app))
    ground.start()
    async with (
        redis.from_url(own_servers.redis_url, decode_responses=True) as broker,
        worker_process(own_settings, tmp_path / "log", slots=200),
    ):
        await submit_many(ground, adding(500))
        await all_succeeded(ground, 500)
        await until_depth(ground, 0)
        idle = (await broker.info("memory"))["used_memory"]
        for _ in range(4):
            await submit_many(ground, adding(5000))
        await all_succeeded(ground, 20_500, within=120)
        await until_depth(ground, 0)

        async def left() -> int:
            return int((await broker.info("memory"))["used_memory"]) - int(idle)

        deadline = time.monotonic() + 20
        while await left() > 500_000:
            assert time.monotonic() < deadline, f"{await left()} bytes more than when idle"
            await asyncio.sleep(0.2)
        assert [key async for key in broker.scan_iter("*{p:*")] == []
    await ground.close()


async def test_few_connections_for_thousands_of_operations(ground: Ground) -> None:
    """BRK-08: callers wait for their turn, longer than a command may take; none fails, and there
    are never more connections than was said."""
    jobs = await own_streams(ground, 3000)
    async with line_to(ground.settings.redis_url or "") as line:
        line.delay = 0.005
        broker = Broker(f"{line.redis_url}?max_connections=5", namespace=ground.settings.namespace)
        replies = await asyncio.gather(*(broker.progress_range(job, "0-0") for job in jobs))
        assert replies == [[("1-1", str(job))] for job in jobs]
        assert line.most <= 5
        await broker.close()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_idleness_costs_nothing(settings: Settings, ground: Ground, tmp_path: Path) -> None:
    """BRK-10: no errors, almost no CPU, and the next job starts within a second."""
    ground.start()
    # The timings of life: what is short in tests is done twenty times as often.
    usual = {
        name: getattr(Settings(), name)
        for name in ("lease", "heartbeat", "reclaim_idle", "reclaim_interval", "relay_interval",
                     "outbox_delay", "reap_interval", "reconcile_interval", "leader_ttl")
    }  # fmt: skip
    idle = msgspec.structs.replace(settings, **usual)
    caller = Caller(ground)
    async with worker_process(idle, tmp_path / "log") as worker:
        first = await caller.submit("add", 1, 1)
        await caller.until(first.job_id)
        said = len(lines(tmp_path / "log"))
        # Two whole waits in the broker.
        began, used = time.monotonic(), cpu_seconds(worker.pid)
        await asyncio.sleep(5)
        used, took = cpu_seconds(worker.pid) - used, time.monotonic() - began
        assert used / took < 0.04, f"{used:.2f} s of CPU in {took:.1f} s of idleness"
        assert len(lines(tmp_path / "log")) == said, (tmp_path / "log").read_text()
        waits = []
        for _ in range(3):
            job = await caller.submit("add", 1, 1)
            ended = await caller.until(job.job_id)
            assert ended.started_at is not None
            waits.append((ended.started_at - ended.created_at).total_seconds())
        assert min(waits) < 1.0, waits
