"""A broker that restarts, forgets, goes back in time, refuses or moves: jobs are late, never lost.

Every process keeps running through all of it; none is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis.asyncio as redis
from redis.exceptions import OutOfMemoryError

from lateack.models import Job
from lateack_cli.embedded import EmbeddedServers, embedded_servers
from lateack_core.settings import Settings
from lateack_core.stream import BrokerUnavailable
from tests.client.networks import line_to
from tests.consumers.conftest import Caller, calling, lines, until
from tests.consumers.processes import Process, worker_process
from tests.servers import one_server

# What the cases allow from the broker's return to the first job, and a busy machine's share.
SOON = 10.0


@pytest.fixture
async def caller(own_settings: Settings) -> AsyncIterator[Caller]:
    async with calling(own_settings) as caller:
        yield caller


@pytest.fixture
async def broker(own_servers: EmbeddedServers) -> AsyncIterator[redis.Redis]:
    """An operator's hand on the broker."""
    async with redis.from_url(own_servers.redis_url, decode_responses=True) as broker:
        yield broker


def starts(path: Path) -> list[str]:
    return [line for line in lines(path) if line.startswith("start")]


async def holds(caller: Caller, waiting: int, pending: int, within: float = 20.0) -> None:
    """Wait until the queue holds exactly so many entries, once the broker answers."""
    deadline = time.monotonic() + within
    found: Any = None
    while found != (waiting, pending):
        assert time.monotonic() < deadline, f"the queue holds {found}"
        await asyncio.sleep(0.05)
        with contextlib.suppress(BrokerUnavailable):
            found = await caller.ground.broker.depth("q")


async def is_empty(caller: Caller) -> None:
    await holds(caller, 0, 0)


async def takes_new_jobs(caller: Caller, worker: Process) -> None:
    """The next job runs soon, in the process that was there before."""
    job = await caller.submit("add", 1, 1)
    ended = await caller.until(job.job_id, within=SOON)
    assert (ended.status, ended.attempt) == ("succeeded", 1)
    assert worker.returncode is None


async def all_succeed(caller: Caller, jobs: list[Job], within: float = 30.0) -> None:
    """Each of them once, on its first attempt."""
    ended = [await caller.until(job.job_id, within=within) for job in jobs]
    assert {(job.status, job.attempt) for job in ended} == {("succeeded", 1)}


async def test_flushed_again_and_again(
    own_settings: Settings, caller: Caller, broker: redis.Redis, tmp_path: Path
) -> None:
    """BRK-01, I7: queued, delayed and running jobs end, new ones run within 10 s, and the log does
    not flood."""
    effects = tmp_path / "e"
    async with worker_process(own_settings, tmp_path / "log", slots=2, more=("-B",)) as worker:
        jobs = [await caller.submit("slow", str(effects), 1.5) for _ in range(2)]
        await until(lambda: len(starts(effects)) == 2)
        jobs += [await caller.submit("add", 1, n) for n in range(50)]
        jobs.append(await caller.submit("add", 1, 1, countdown=1.0))
        for _ in range(3):
            await broker.flushall()
            await asyncio.sleep(0.3)
        await takes_new_jobs(caller, worker)
        await all_succeed(caller, jobs)
        await is_empty(caller)
    assert len(starts(effects)) == 2
    assert len(lines(tmp_path / "log")) < 40, (tmp_path / "log").read_text()


async def test_an_old_snapshot_comes_back(
    own_servers: EmbeddedServers, own_settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """BRK-02, I2, I7: jobs that have succeeded are queued and pending in it; none runs again, no
    result changes, the stale messages go, and new jobs run."""
    effects, hub = tmp_path / "e", caller.ground.broker
    for stream in hub.streams("q"):
        await hub.ensure_group(stream)
    jobs = [await caller.submit("slow", str(effects), 0.05) for _ in range(20)]
    await holds(caller, 20, 0)
    await hub.read(hub.streams("q"), "dead", 3)
    data, old = tmp_path / "servers/broker", tmp_path / "old"
    shutil.copytree(data, old)
    async with worker_process(own_settings, tmp_path / "log", more=("-B",)) as worker:
        await all_succeed(caller, jobs)
        await is_empty(caller)
        before = [await caller.job(job.job_id) for job in jobs]
        worker.signal(signal.SIGSTOP)
        await own_servers.broker.kill()
        shutil.rmtree(data)
        shutil.copytree(old, data)
        await own_servers.broker.start()
        await holds(caller, 17, 3)
        worker.signal(signal.SIGCONT)
        await is_empty(caller)
        await takes_new_jobs(caller, worker)
    assert [await caller.job(job.job_id) for job in jobs] == before
    assert len(starts(effects)) == 20


async def test_the_entry_of_a_job_that_was_taken_away(
    own_settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """BRK-02, I7: its worker lost the lease and lives; what it has of the job in the broker's books
    is cleared all the same, though no other worker is there."""
    effects, ledger = tmp_path / "e", caller.ground.ledger
    # One slot: the next attempt cannot start here before the loss of the first was noticed.
    async with worker_process(own_settings, tmp_path / "log", slots=1):
        job = await caller.submit("slow", str(effects), 1.5)
        await until(lambda: starts(effects))
        taken: list[Any] = []
        while not taken:
            # A beat may come in between.
            async with caller.ground.postgres._acquired() as connection:
                await connection.execute(
                    "UPDATE lateack.leases SET until = lateack.now() - interval '1 hour'"
                )
            taken = list(await ledger.reap([job.job_id], max_losses=9))
        ended = await caller.until(job.job_id)
        assert (ended.status, ended.attempt) == ("succeeded", 2)
        await is_empty(caller)


async def test_bounced_and_cut(
    own_servers: EmbeddedServers,
    own_settings: Settings,
    caller: Caller,
    broker: redis.Redis,
    tmp_path: Path,
) -> None:
    """BRK-06: several times in quick succession, then every connection reset; jobs go on within
    10 s, and what ran meanwhile keeps its attempt."""
    effects = tmp_path / "e"
    async with worker_process(own_settings, tmp_path / "log") as worker:
        jobs = [await caller.submit("slow", str(effects), 2.0) for _ in range(3)]
        await until(lambda: len(starts(effects)) == 3)
        for number in range(4):
            await (own_servers.broker.kill if number % 2 else own_servers.broker.stop)()
            jobs.append(await caller.submit("add", 1, number))
            await own_servers.broker.start()
        await takes_new_jobs(caller, worker)
        for number in range(5):
            await broker.client_kill_filter(_type="normal", skipme=True)
            jobs.append(await caller.submit("add", 1, number))
            await asyncio.sleep(0.05)
        await takes_new_jobs(caller, worker)
        await all_succeed(caller, jobs)
        await is_empty(caller)
    assert len(starts(effects)) == 3


@one_server
async def test_read_only_for_a_while(
    own_settings: Settings, caller: Caller, broker: redis.Redis, tmp_path: Path
) -> None:
    """BRK-09: made a replica and promoted again, with jobs running; none fails because of it."""
    effects = tmp_path / "e"
    async with worker_process(own_settings, tmp_path / "log") as worker:
        jobs = [await caller.submit("slow", str(effects), 1.0) for _ in range(5)]
        await until(lambda: len(starts(effects)) == 5)
        await broker.replicaof("127.0.0.1", 1)
        jobs += [await caller.submit("add", 1, n) for n in range(20)]
        # What runs is finished, though nothing can be acknowledged.
        await all_succeed(caller, jobs[:5])
        waiting = [await caller.job(job.job_id) for job in jobs[5:]]
        assert {job.status for job in waiting} == {"pending"}
        await broker.replicaof("NO", "ONE")
        await takes_new_jobs(caller, worker)
        await all_succeed(caller, jobs)
        await is_empty(caller)


async def test_moved_to_another_node(settings: Settings, tmp_path: Path) -> None:
    """BRK-09: its replica is promoted and has its address from now on; jobs that ran keep their
    attempt, and new ones run within 10 s."""
    effects = tmp_path / "e"
    async with (
        embedded_servers(tmp_path / "1", postgres=False, durable=False, broker_port=0) as one,
        embedded_servers(tmp_path / "2", postgres=False, durable=False, broker_port=0) as two,
        line_to(one.redis_url) as line,
        redis.from_url(two.redis_url, decode_responses=True) as second,
    ):
        async with redis.from_url(one.redis_url, decode_responses=True) as first:
            await first.config_set("repl-diskless-sync-delay", 0)
        await replicate(one.redis_url, second)
        moving = msgspec.structs.replace(settings, redis_url=line.redis_url)
        async with calling(moving) as caller, worker_process(moving, tmp_path / "log") as worker:
            jobs = [await caller.submit("slow", str(effects), 1.5) for _ in range(5)]
            await until(lambda: len(starts(effects)) == 5)
            await one.broker.kill()
            await second.replicaof("NO", "ONE")
            line.target = two.redis_url
            await takes_new_jobs(caller, worker)
            await all_succeed(caller, jobs)
            await is_empty(caller)
        assert await second.dbsize() > 0
    assert len(starts(effects)) == 5


async def replicate(primary_url: str, replica: redis.Redis) -> None:
    """Make `replica` follow, and answer to the primary's password."""
    options = redis.connection.parse_url(primary_url)
    await replica.config_set("masterauth", options["password"])
    await replica.config_set("requirepass", options["password"])
    await replica.replicaof(options["host"], options["port"])
    for _ in range(400):
        if (await replica.info("replication"))["master_link_status"] == "up":
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the replica does not follow")


async def test_messages_that_were_evicted(
    own_settings: Settings, caller: Caller, broker: redis.Redis, tmp_path: Path
) -> None:
    """BRK-11, I7: under memory pressure a broker that may evict throws queues away; once it is one
    that does not, the jobs run, each once. (A start on such a broker: tests/journeys.)"""
    effects = tmp_path / "e"
    jobs = [await caller.submit("slow", str(effects), 0.05) for _ in range(60)]
    stream = caller.ground.broker.stream("q", 2)
    await holds(caller, 60, 0)
    await broker.config_set("maxmemory-policy", "allkeys-lru")
    await broker.config_set("maxmemory", (await broker.info("memory"))["used_memory"] + 500_000)
    for number in range(200):
        if not await broker.exists(stream):
            break
        await broker.set(f"filler-{number}", "x" * 50_000)
    assert not await broker.exists(stream)
    await broker.config_set("maxmemory-policy", "noeviction")
    await broker.config_set("maxmemory", 0)
    async with worker_process(own_settings, tmp_path / "log", more=("-B",)):
        await all_succeed(caller, jobs)
        await is_empty(caller)
    assert len(starts(effects)) == 60


async def test_its_memory_is_full(
    own_settings: Settings, caller: Caller, broker: redis.Redis, tmp_path: Path
) -> None:
    """BRK-12: submissions are stored, what ends is acknowledged meanwhile, and all goes on by
    itself when there is room."""
    effects = tmp_path / "e"
    async with worker_process(own_settings, tmp_path / "log") as worker:
        jobs = [await caller.submit("slow", str(effects), 1.0) for _ in range(5)]
        await until(lambda: len(starts(effects)) == 5)
        await broker.config_set("maxmemory", 100_000)
        with pytest.raises(OutOfMemoryError):
            await broker.set("more", "x")
        jobs += [await caller.submit("add", 1, n) for n in range(20)]
        await all_succeed(caller, jobs[:5])
        await is_empty(caller)
        waiting = [await caller.job(job.job_id) for job in jobs[5:]]
        assert {job.status for job in waiting} == {"pending"}
        await broker.config_set("maxmemory", 0)
        await takes_new_jobs(caller, worker)
        await all_succeed(caller, jobs)
        await is_empty(caller)
    assert len(starts(effects)) == 5
    assert "Traceback" not in (tmp_path / "log").read_text()
