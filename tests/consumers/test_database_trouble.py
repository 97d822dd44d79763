"""A database that refuses writes, restarts, loses its sessions, or has few connections to give."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import msgspec
import pytest

from lateack.models import Job, Submission
from lateack_cli.embedded import EmbeddedServers
from lateack_core.ground import Ground
from lateack_core.postgres import LedgerUnavailable
from lateack_core.settings import Settings
from lateack_core.stream import Hint
from tests.consumers.conftest import Caller, calling, lines, until
from tests.consumers.processes import worker_process
from tests.journeys.test_main_job import serving

HERE = "tests.consumers.tasks_under_test"
OURS = "datname = current_database() AND application_name LIKE 'lateack%'"


@pytest.fixture
async def own_caller(own_settings: Settings) -> AsyncIterator[Caller]:
    async with calling(own_settings) as caller:
        yield caller


async def patiently(caller: Caller, key: str, task: str, *args: Any) -> Job:
    """Submit under a key until it is accepted, as a client does."""
    submission = Submission(task=f"{HERE}.{task}", args=list(args), idempotency_key=key)
    deadline = time.monotonic() + 20
    while True:
        try:
            return (await caller.ground.submissions.accept("default", submission)).job
        except LedgerUnavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)


async def eventually(caller: Caller, job: Job, within: float = 20.0) -> Job:
    """The job at its end, however often the database does not answer."""
    deadline = time.monotonic() + within
    while True:
        try:
            return await caller.until(job.job_id, within=max(0.0, deadline - time.monotonic()))
        except LedgerUnavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)


def count(path: Path, word: str) -> int:
    return sum(line.startswith(word) for line in lines(path))


async def test_writes_are_refused_when_jobs_end(
    own_servers: EmbeddedServers, own_settings: Settings, tmp_path: Path
) -> None:
    """DBS-02, I2: each result is stored when writing is possible again, none stays running, and
    nothing is acknowledged before."""
    # Longer than a renewer's pause, as in life: who was away beats first, then others are judged.
    settled = msgspec.structs.replace(own_settings, ledger_settle=3.0)
    operator = await asyncpg.connect(own_settings.database_url)
    await operator.execute("SET default_transaction_read_only = off")

    async def read_only(word: str) -> None:
        await operator.execute(f"ALTER SYSTEM SET default_transaction_read_only = {word}")
        await operator.execute("SELECT pg_reload_conf()")

    async with (
        calling(settled) as caller,
        worker_process(settled, tmp_path / "log", more=("-B",)) as worker,
    ):
        jobs = [await caller.submit("slow", str(tmp_path / "e"), 1.0) for _ in range(5)]
        await until(lambda: count(tmp_path / "e", "start") == 5)
        await read_only("on")
        await until(lambda: count(tmp_path / "e", "end") == 5)
        await asyncio.sleep(1.0)
        assert {(await caller.job(job.job_id)).status for job in jobs} == {"running"}
        assert await caller.ground.broker.depth("q") == (0, 5)
        with pytest.raises(LedgerUnavailable):
            await caller.submit("add", 1, 1)
        await read_only("off")
        ended = [await caller.until(job.job_id) for job in jobs]
        assert {(job.status, job.attempt) for job in ended} == {("succeeded", 1)}
        assert (await caller.until((await caller.submit("add", 1, 1)).job_id)).attempt == 1
        assert worker.returncode is None
    assert count(tmp_path / "e", "start") == 5
    await operator.close()


async def test_restarts_before_during_and_after_a_job(
    own_servers: EmbeddedServers, own_settings: Settings, own_caller: Caller, tmp_path: Path
) -> None:
    """DBS-03: one slot, and it is never lost; the next job runs within 15 s each time."""
    effects = tmp_path / "e"
    async with worker_process(own_settings, tmp_path / "log", slots=1) as worker:
        first = await own_caller.submit("add", 1, 1)
        await own_caller.until(first.job_id)
        for number, ends in enumerate(("stop", "kill")):
            for moment in ("before", "during", "right after"):
                key = f"{ends} {moment}"
                if moment != "before":
                    job = await patiently(own_caller, key, "slow", str(effects), 0.3)
                    await until(lambda: count(effects, "start") > 2 * number)  # noqa: B023
                if moment == "right after":
                    await until(lambda: count(effects, "end") == 2 * number + 2)  # noqa: B023
                await getattr(own_servers.postgres, ends)()
                # An entry comes meanwhile, so that the slot is in use when nothing can be claimed.
                await own_caller.ground.broker.publish([Hint(first.job_id, "q", 5)])
                await asyncio.sleep(0.3)
                await own_servers.postgres.start()
                if moment != "before":
                    ended = await eventually(own_caller, job)
                    assert (ended.status, ended.attempt) == ("succeeded", 1)
                again = await patiently(own_caller, f"{key} again", "add", 1, 1)
                assert (await eventually(own_caller, again, within=15)).status == "succeeded"
        assert worker.returncode is None
    assert count(effects, "start") == count(effects, "end") == 4


async def test_sessions_that_are_terminated_at_random(settings: Settings, tmp_path: Path) -> None:
    """DBS-07, I1: under load; all jobs end well, and five seconds later a job starts as soon as
    ever."""
    leased = msgspec.structs.replace(settings, lease=6.0, heartbeat=1.0, reclaim_idle=7.0)
    operator = await asyncpg.connect(settings.database_url)
    async with calling(leased) as caller, worker_process(leased, tmp_path / "log", more=("-B",)):
        killed, stop = 0, asyncio.Event()

        async def kill() -> None:
            nonlocal killed
            while not stop.is_set():
                killed += await operator.fetchval(
                    "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM "
                    f"pg_stat_activity WHERE {OURS} ORDER BY random() LIMIT 2) AS victims"
                )
                await asyncio.sleep(0.05)

        killing = asyncio.create_task(kill())
        jobs: list[asyncio.Task[Job]] = []
        for number in range(150):
            jobs.append(asyncio.create_task(patiently(caller, f"{number}", "add", 1, number)))
            if len(jobs) % 10 == 0:
                await asyncio.sleep(0.2)
        accepted = await asyncio.gather(*jobs)
        stop.set()
        await killing
        assert killed > 20
        quiet = time.monotonic()
        waits: list[float] = []
        while time.monotonic() < quiet + 5 or len(waits) < 3:
            job = await patiently(caller, f"after {time.monotonic()}", "add", 1, 1)
            ended = await eventually(caller, job)
            assert ended.started_at is not None
            waits.append((ended.started_at - ended.created_at).total_seconds())
            await asyncio.sleep(0.3)
        # One polling interval of the relay's, and a busy machine's share.
        assert min(waits[-5:]) < leased.outbox_delay + leased.relay_interval
        all_ended = [await eventually(caller, job) for job in accepted]
        assert {job.status for job in all_ended} == {"succeeded"}
        # No worker was lost; only a busy machine may have let a lease run out.
        assert sum(job.attempt == 1 for job in all_ended) > 140
    await operator.close()


async def sampled(operator: asyncpg.Connection, most: Counter[str], stop: asyncio.Event) -> None:
    """The most sessions there were at once, by whose they are."""
    while not stop.is_set():
        rows = await operator.fetch(
            "SELECT application_name AS name, count(*) "
            f"FROM pg_stat_activity WHERE {OURS} GROUP BY 1"
        )
        for row in rows:
            most[row["name"]] = max(most[row["name"]], row["count"])
        await asyncio.sleep(0.02)


async def test_many_workers_start_on_a_backlog(
    own_servers: EmbeddedServers, own_settings: Settings, tmp_path: Path
) -> None:
    """DBS-10: connections stay within their budget, which is all that the database has, and the
    interface answers all the time."""
    workers, pool = 5, 2
    # Documented with LATEACK_POOL_SIZE: a pool for each process, and a worker's renewer has two
    # more. And the test's own.
    budget = {
        "lateack serve": pool,
        "lateack worker": workers * pool,
        "lateack renewer": workers * 2,
    }
    operator = await asyncpg.connect(own_settings.database_url)
    await operator.execute(f"ALTER SYSTEM SET max_connections = {sum(budget.values()) + pool + 1}")
    await operator.execute("ALTER SYSTEM SET superuser_reserved_connections = 0")
    await operator.close()
    await own_servers.postgres.stop()
    await own_servers.postgres.start()
    settings = msgspec.structs.replace(own_settings, pool_size=pool)
    operator = await asyncpg.connect(settings.database_url)
    most: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        caller = await stack.enter_async_context(calling(settings))
        jobs = await caller.ground.submissions.accept_many(
            "default", [Submission(task=f"{HERE}.add", args=[1, n]) for n in range(1000)]
        )
        url, _ = await stack.enter_async_context(serving(settings, tmp_path / "api.log"))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30))
        stop = asyncio.Event()
        sampling = asyncio.create_task(sampled(operator, most, stop))
        asking = asyncio.create_task(asked(http, stop))
        await asyncio.gather(
            *(
                stack.enter_async_context(worker_process(settings, tmp_path / f"{n}.log", slots=20))
                for n in range(workers)
            )
        )
        await until_all_succeeded(caller.ground, len(jobs))
        await until(lambda: most["lateack renewer"] >= workers)
        stop.set()
        await sampling
        assert set(await asking) == {200}
    await operator.close()
    assert {name: most[name] for name in budget if most[name] > budget[name]} == {}
    assert "too many clients" not in own_servers.postgres.log.read_text()


async def asked(http: httpx.AsyncClient, stop: asyncio.Event) -> list[int]:
    """What the interface answered, asked again and again."""
    found = []
    while not stop.is_set():
        replies = await asyncio.gather(http.get("/v1/queues"), http.get("/v1/jobs"))
        found += [reply.status_code for reply in replies]
        await asyncio.sleep(0.05)
    return found


async def until_all_succeeded(ground: Ground, count: int, within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while True:
        jobs = await ground.ledger.page("default", statuses=["succeeded"], most=count)
        if len(jobs) == count:
            return
        assert time.monotonic() < deadline, f"{len(jobs)} of {count} have succeeded"
        await asyncio.sleep(0.3)
