"""The main job from outside: two API processes, workers and schedulers, all real; HTTP only.

What a stranger would see who looked at the service and nothing else.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import msgspec
import pytest
import redis.asyncio as redis

from lateack import Client
from lateack_cli.embedded import EmbeddedServers
from lateack_core.settings import Settings
from tests.consumers.processes import Process, lateack, worker_process
from tests.consumers.tasks_under_test import app

APP = "tests.consumers.tasks_under_test:app"
ADD = "tests.consumers.tasks_under_test.add"
SLOW = "tests.consumers.tasks_under_test.slow"


async def eventually(fact: Callable[[], Awaitable[bool]], within: float = 20.0) -> None:
    deadline = time.monotonic() + within
    while not await fact():
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(0.05)


@asynccontextmanager
async def serving(settings: Settings, log: Path) -> AsyncIterator[tuple[str, Process]]:
    """An API process, and its URL."""
    async with lateack(settings, log, "serve", "--port", "0") as process:

        async def listening() -> bool:
            assert process.returncode is None, log.read_text()
            return "listening at" in log.read_text()

        await eventually(listening)
        found = re.search(r"listening at (\S+)", log.read_text())
        assert found
        yield found[1], process


async def registered(settings: Settings, log: Path) -> None:
    """Make the tasks known, with no worker anywhere."""
    async with lateack(settings, log, "migrate", "-A", APP) as process:
        assert await process.wait() == 0, log.read_text()


async def test_equal_submissions_through_two_api_processes_make_one_job(
    settings: Settings, tmp_path: Path
) -> None:
    """SUB-01, I4: fifty at once, one key; every reply names the one job and none is an error."""
    await registered(settings, tmp_path / "migrate.log")
    async with (
        serving(settings, tmp_path / "a.log") as (one, _),
        serving(settings, tmp_path / "b.log") as (two, _),
        httpx.AsyncClient(timeout=30) as http,
    ):
        body = {"task": ADD, "args": [1, 2]}
        replies = await asyncio.gather(
            *(
                http.post(f"{url}/v1/jobs", json=body, headers={"Idempotency-Key": "same"})
                for url in [one, two] * 25
            )
        )
        assert {reply.json()["job_id"] for reply in replies} == {replies[0].json()["job_id"]}
        assert Counter(reply.status_code for reply in replies) == {202: 1, 200: 49}
        listed = (await http.get(f"{one}/v1/jobs")).json()["items"]
        assert len(listed) == 1


async def test_five_free_places_are_five(settings: Settings, tmp_path: Path) -> None:
    """SUB-03: two hundred submissions at once through two processes; the rest leave nothing."""
    await registered(settings, tmp_path / "migrate.log")
    capped = msgspec.structs.replace(settings, max_pending="q=5")
    async with (
        serving(capped, tmp_path / "a.log") as (one, _),
        serving(capped, tmp_path / "b.log") as (two, _),
        httpx.AsyncClient(timeout=60) as http,
    ):
        replies = await asyncio.gather(
            *(
                http.post(f"{url}/v1/jobs", json={"task": ADD, "args": [1, number]})
                for number, url in enumerate([one, two] * 100)
            )
        )
        assert Counter(reply.status_code for reply in replies) == {202: 5, 503: 195}
        refused = next(reply for reply in replies if reply.status_code == 503)
        assert int(refused.headers["Retry-After"]) >= 1
        assert refused.headers["Content-Type"].startswith("application/problem+json")
        assert len((await http.get(f"{one}/v1/jobs?limit=200")).json()["items"]) == 5


async def test_stale_pending_jobs_are_cleaned_up_and_free_the_queue(
    settings: Settings, tmp_path: Path
) -> None:
    """SUB-02, I1: twenty jobs that nobody takes block the queue; the cleanup fails them."""
    await registered(settings, tmp_path / "migrate.log")
    capped = msgspec.structs.replace(settings, max_pending="20", pending_timeout="2")
    async with (
        serving(capped, tmp_path / "a.log") as (url, _),
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):

        async def submit() -> httpx.Response:
            return await http.post("/v1/jobs", json={"task": ADD, "args": [1, 1]})

        stale = [await submit() for _ in range(20)]
        assert {reply.status_code for reply in stale} == {202}
        refused = await submit()
        assert (refused.status_code, refused.json()["type"]) == (503, "queue-full")
        assert int(refused.headers["Retry-After"]) >= 1
        # Two replicas of the scheduler; which of them leads makes no difference.
        async with (
            lateack(capped, tmp_path / "s1.log", "scheduler"),
            lateack(capped, tmp_path / "s2.log", "scheduler"),
        ):

            async def free() -> bool:
                return (await submit()).status_code == 202

            await eventually(free)
            jobs = [await http.get(f"{reply.headers['Location']}?wait=20") for reply in stale]
        for job in (reply.json() for reply in jobs):
            assert job["status"] == "failed"
            assert job["error_code"] == "PendingTimeout"
            assert job["error_message"] == "pending timeout: auto cleanup"
            assert job["error_info"]["type"] == "PendingTimeout"
            assert job["error_info"]["timestamp"]
            assert job["completed_at"]


async def test_a_watcher_sees_a_job_through_the_death_of_its_worker(
    settings: Settings, tmp_path: Path
) -> None:
    """I8, DEL-01: killed in the middle, finished elsewhere; the watcher sees both attempts, in
    order, and the end."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(worker_process(settings, tmp_path / "a.log"))
        url, api = await stack.enter_async_context(serving(settings, tmp_path / "api.log"))
        client = await stack.enter_async_context(Client(url))
        job = await client.submit(SLOW, args=[str(tmp_path / "effects"), 2.0])
        await stack.enter_async_context(worker_process(settings, tmp_path / "b.log"))
        seen = []
        killed = False
        async with asyncio.timeout(60):
            async for event in client.watch(job.job_id):
                seen.append(event)
                if event.type == "progress" and not killed:
                    killed = True
                    await first.kill()
        assert seen[-1].status == "succeeded"
        assert [e.attempt for e in seen] == sorted(e.attempt for e in seen)
        assert {e.attempt for e in seen if e.status == "running"} == {1, 2}
        assert (await client.result(job.job_id, timeout=5)) == "done"
        assert api.returncode is None


async def test_submissions_are_accepted_while_the_broker_is_down(
    own_servers: EmbeddedServers, own_settings: Settings, tmp_path: Path
) -> None:
    """I7: 202 meanwhile, and they run when it is back; nothing is restarted."""
    async with (
        worker_process(own_settings, tmp_path / "w.log") as worker,
        serving(own_settings, tmp_path / "api.log") as (url, api),
        Client(url) as client,
    ):
        assert await client.run(ADD, args=[1, 1], timeout=30) == 2
        await own_servers.broker.stop()
        jobs = [await client.submit(ADD, args=[1, number]) for number in range(20)]
        await own_servers.broker.start()
        assert [await client.result(j.job_id, timeout=30) for j in jobs] == list(range(1, 21))
        assert worker.returncode is None
        assert api.returncode is None


async def test_the_service_says_that_it_is_not_ready_until_its_servers_are_there(
    own_servers: EmbeddedServers, own_settings: Settings, tmp_path: Path
) -> None:
    """BRK-14: everything is started first, database and broker come after; then it works."""
    await own_servers.stop()
    async with (
        serving(own_settings, tmp_path / "api.log") as (url, _),
        lateack(own_settings, tmp_path / "w.log", "worker", "-A", APP, "-Q", "q"),
        httpx.AsyncClient(base_url=url, timeout=30) as http,
        Client(url) as client,
    ):
        assert (await http.get("/livez")).status_code == 200
        assert (await http.get("/readyz")).status_code == 503
        await own_servers.start()

        async def ready() -> bool:
            return (await http.get("/readyz")).status_code == 200

        await eventually(ready, within=20)

        async def known() -> bool:
            tasks = (await http.get("/v1/tasks")).json()["items"]
            return len(tasks) == len(app.tasks)

        await eventually(known, within=20)
        assert await client.run(ADD, args=[2, 2], timeout=20) == 4


@pytest.mark.parametrize("verb", ["serve", "scheduler", "worker"])
async def test_every_process_stops_cleanly(settings: Settings, tmp_path: Path, verb: str) -> None:
    """SHD-06: SIGTERM, exit code 0, no stack traces."""
    log = tmp_path / "log"
    words = {"serve": ("--port", "0"), "scheduler": (), "worker": ("-A", APP)}[verb]
    signs = {"serve": "listening at", "scheduler": "leading", "worker": "ready:"}
    async with lateack(settings, log, verb, *words) as process:

        async def up() -> bool:
            assert process.returncode is None, log.read_text()
            return signs[verb] in log.read_text()

        await eventually(up)
        process.signal(15)
        assert await process.wait() == 0
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("verb", ["serve", "scheduler", "worker"])
async def test_a_broker_that_may_throw_data_away_is_refused_at_start(
    own_servers: EmbeddedServers, own_settings: Settings, tmp_path: Path, verb: str
) -> None:
    """BRK-11: one clear line that says what to change, and exit code 2."""
    async with redis.from_url(own_servers.redis_url) as broker:
        await broker.config_set("maxmemory-policy", "allkeys-lru")
    words = {"serve": ("--port", "0"), "scheduler": (), "worker": ("-A", APP)}[verb]
    async with lateack(own_settings, tmp_path / "log", verb, *words) as process:
        assert await process.wait() == 2
    said = (tmp_path / "log").read_text()
    assert "maxmemory-policy is allkeys-lru" in said
    assert "set maxmemory-policy to noeviction" in said
    assert "Traceback" not in said
