"""A service whose line to the broker is slow, or that may have few connections to it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx
import msgspec
import redis.asyncio as redis
from websockets.asyncio.client import connect

from lateack_cli.embedded import EmbeddedServers
from lateack_core.ground import Ground, open_ground
from lateack_core.settings import Settings
from tests.client.networks import line_to

from .conftest import Worker, client, served

# Documented in docs/settings.md: what REDIS_URL allows for commands, and one for each of the
# sixteen groups of progress streams.
COMMANDS, READERS = 4, 16


async def test_requests_that_are_cancelled_on_a_slow_line(
    settings: Settings, worker: Worker
) -> None:
    """BRK-03: a third of those who wait for their jobs leave at random moments; each of the others
    hears of the job that it asked for, and later requests are answered as ever."""
    chance = random.Random(17)
    async with line_to(settings.redis_url or "") as line:
        line.delay = 0.1
        slow = msgspec.structs.replace(settings, redis_url=line.redis_url)
        async with served(slow) as url, client(url, limits=httpx.Limits()) as http:
            items = [{"task": "t.echo", "args": [n]} for n in range(300)]
            made = (await http.post("/v1/jobs/batch", json={"items": items})).json()["items"]
            jobs = [item["job"]["job_id"] for item in made]
            waits = [asyncio.create_task(http.get(f"/v1/jobs/{job}?wait=30")) for job in jobs]
            for wait in chance.sample(waits, 100):
                asyncio.get_running_loop().call_later(chance.uniform(0, 2), wait.cancel)
            await asyncio.sleep(1)
            for number, job in enumerate(jobs):
                await worker.complete(await worker.claim(job), str(number))
            replies = await asyncio.gather(*waits, return_exceptions=True)
            heard = 0
            for number, (job, reply) in enumerate(zip(jobs, replies, strict=True)):
                if not isinstance(reply, BaseException):
                    found = reply.json()
                    heard += 1
                    assert (found["job_id"], found["status"]) == (job, "succeeded")
                    assert found["result"] == number
                else:
                    assert isinstance(reply, asyncio.CancelledError)
            assert 200 <= heard < 300
            again = await asyncio.gather(*(http.get(f"/v1/jobs/{j}?wait=5") for j in jobs[:50]))
            assert [reply.json()["result"] for reply in again] == list(range(50))


async def test_few_connections_for_many_watchers(
    own_servers: EmbeddedServers, own_settings: Settings
) -> None:
    """BRK-08: the broker allows just the budget; hundreds of watchers begin at once, wait for their
    turn, and all hear of the end."""
    few = msgspec.structs.replace(
        own_settings, redis_url=f"{own_settings.redis_url}?max_connections={COMMANDS}"
    )
    async with redis.from_url(own_settings.redis_url or "", decode_responses=True) as broker:
        # Two for the operator, as many as the service's for the test's own hand.
        await broker.config_set("maxclients", COMMANDS + READERS + COMMANDS + 2)
        ground = await open_ground(few, process="test worker")
        async with served(few) as url, client(url) as http:
            items = [{"task": "t.echo", "args": [n]} for n in range(400)]
            made = (await http.post("/v1/jobs/batch", json={"items": items})).json()["items"]
            jobs = [item["job"]["job_id"] for item in made]
            watching = asyncio.create_task(watch_all(url, jobs[:300]))
            waits = [asyncio.create_task(http.get(f"/v1/jobs/{j}?wait=30")) for j in jobs[300:]]
            most = 0
            for number, job in enumerate(jobs):
                worker = Worker(ground)
                await worker.complete(await worker.claim(job))
                if number % 20 == 0:
                    names = await ours(broker, ground)
                    most = max(most, names)
            assert await asyncio.wait_for(watching, 40) == set(jobs[:300])
            assert {(await wait).json()["status"] for wait in waits} == {"succeeded"}
            assert 0 < most <= COMMANDS + READERS
        await ground.close()
        assert (await broker.info("stats"))["rejected_connections"] == 0


async def ours(broker: redis.Redis, ground: Ground) -> int:
    """Connections of the service: all but the operator's and those of the test's hand."""
    commands: Any = ground.broker._redis
    pool = commands.connection_pool
    clients = (await broker.info("clients"))["connected_clients"]
    return int(clients) - 1 - len(pool._in_use_connections) - len(pool._available_connections)


async def watch_all(url: str, jobs: list[str]) -> set[str]:
    """Watch all these jobs on one socket; those that were seen to succeed."""
    ended: set[str] = set()
    async with connect(f"{url.replace('http', 'ws', 1)}/v1/progress", proxy=None) as socket:
        await socket.send(msgspec.json.encode({"watch": jobs}).decode())
        while len(ended) < len(jobs):
            event = msgspec.json.decode(await socket.recv())
            if event["status"] == "succeeded":
                ended.add(event["job_id"])
    return ended
