"""What the service does while the broker or the database is away, on servers of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import httpx
import pytest
from websockets.asyncio.client import ClientConnection

from lateack.models import Event
from lateack_cli.embedded import EmbeddedServers
from lateack_core.ground import open_ground
from lateack_core.settings import Settings

from .conftest import Worker, client, eventually, served, submit
from .test_progress import receive, until_closed, watching


@pytest.fixture
def settings(own_settings: Settings) -> Settings:
    """This file stops its servers."""
    return own_settings


@pytest.fixture
async def own_worker(settings: Settings) -> AsyncIterator[Worker]:
    ground = await open_ground(settings, process="test worker")
    yield Worker(ground)
    await ground.close()


async def until_progress(socket: ClientConnection, progress: float) -> list[Event]:
    """Events up to the first that tells this progress."""
    events = [await receive(socket)]
    while events[-1].progress != progress:
        events.append(await receive(socket))
    return events


async def test_submissions_are_accepted_while_the_broker_is_down(
    own_servers: EmbeddedServers, settings: Settings, own_worker: Worker
) -> None:
    """I7: 202 at once, still ready, and published when the broker is back."""
    async with served(settings) as url, client(url) as http:
        await own_servers.broker.stop()
        began = time.monotonic()
        made = [await submit(http, args=[n]) for n in range(20)]
        assert time.monotonic() - began < 10
        assert (await http.get("/readyz")).status_code == 200
        # What only the ledger knows is answered as ever.
        cancelled = await http.post(f"/v1/jobs/{made[0]['job_id']}/cancel")
        assert cancelled.json()["status"] == "cancelled"
        polled = await http.get(f"/v1/jobs/{made[1]['job_id']}?wait=0.5")
        assert polled.json()["status"] == "pending"
        await own_servers.broker.start()

        async def published() -> bool:
            return sum(await own_worker.ground.broker.depth("echo")) >= 19

        await eventually(published)


async def test_watching_goes_on_while_the_broker_is_down(
    own_servers: EmbeddedServers, settings: Settings, own_worker: Worker
) -> None:
    """I8: the ledger tells how things stand, the socket stays, and then the events go on."""
    worker = own_worker
    async with served(settings) as url, client(url) as http:
        job, other, late = [await submit(http) for _ in range(3)]
        claimed = await worker.claim(job["job_id"])
        trail = worker.trail(claimed)
        async with (
            watching(url, job["job_id"]) as socket,
            watching(url, other["job_id"]) as second,
        ):
            await receive(socket)
            await receive(second)
            await worker.tell(trail, "progress", "running", progress=10.0)
            assert (await receive(socket)).id == "1-1"
            await own_servers.broker.stop()

            # A watcher that comes now is told what the ledger knows.
            async with watching(url, late["job_id"]) as third:
                first = await receive(third)
                assert (first.type, first.status) == ("snapshot", "pending")
                # A job that ends now is seen to end.
                ended = await worker.claim(other["job_id"])
                await worker.complete(ended)
                events, code = await until_closed(second)
                assert (events[-1].status, code) == ("succeeded", 1000)

                await own_servers.broker.start()

                async def again() -> bool:
                    return await worker.tell(trail, "progress", "running", progress=20.0)

                await eventually(lambda: _without_error(again))
                seen = await until_progress(socket, 20.0)
                # This broker keeps nothing: what it lost is a gap or was never its own. A try that
                # failed has used up its number.
                assert int(seen[-1].id.removeprefix("1-")) >= 2
                await worker.complete(claimed)
                await worker.tell(trail, "status", "succeeded")
                events, code = await until_closed(socket)
                assert (events[-1].status, code) == ("succeeded", 1000)

                # The one that came meanwhile is followed by events again.
                claimed = await worker.claim(late["job_id"])
                trail = worker.trail(claimed)
                await worker.tell(trail, "progress", "running", progress=30.0)
                await until_progress(third, 30.0)
                await worker.complete(claimed)
                await worker.tell(trail, "status", "succeeded")
                events, code = await until_closed(third)
                assert (events[-1].status, code) == ("succeeded", 1000)


async def _without_error(again: object) -> bool:
    try:
        return bool(await again())  # type: ignore[operator]
    except Exception:
        return False


async def test_a_database_that_is_down_is_a_503_and_comes_back(
    own_servers: EmbeddedServers, settings: Settings, own_worker: Worker
) -> None:
    """A problem document soon, not ready, and no restart needed."""
    async with served(settings) as url, client(url) as http:
        job = await submit(http, idempotency_key="k")
        async with watching(url, job["job_id"]) as socket:
            await receive(socket)
            await own_servers.postgres.stop()
            began = time.monotonic()
            for reply in (
                await http.post("/v1/jobs", json={"task": "t.echo"}),
                await http.get(f"/v1/jobs/{job['job_id']}"),
                await http.post("/v1/jobs/batch", json={"items": [{"task": "t.echo"}] * 3}),
                await http.get("/v1/jobs"),
            ):
                assert reply.status_code == 503, reply.text
                assert reply.json()["type"] == "ledger-unavailable"
                assert int(reply.headers["retry-after"]) >= 1
            assert time.monotonic() - began < 15

            async def unready() -> bool:
                return (await http.get("/readyz")).status_code == 503

            await eventually(unready)
            assert (await http.get("/livez")).status_code == 200
            await own_servers.postgres.start()

            async def accepted() -> httpx.Response | None:
                reply = await http.post("/v1/jobs", json={"task": "t.echo", "idempotency_key": "k"})
                return reply if reply.status_code < 300 else None

            again = await eventually(accepted)
            assert again.json()["job_id"] == job["job_id"]
            # The watcher was not sent away.
            claimed = await own_worker.claim(job["job_id"])
            await own_worker.complete(claimed)
            events, code = await until_closed(socket)
            assert (events[-1].status, code) == ("succeeded", 1000)


async def test_a_service_starts_before_its_servers(
    own_servers: EmbeddedServers, settings: Settings
) -> None:
    """BRK-14: it listens, says that it is not ready, and becomes so."""
    from lateack_service.server import serve

    await own_servers.broker.stop()
    await own_servers.postgres.stop()
    stop, url = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve(settings, host="127.0.0.1", port=0, apps=[], stop=stop, ready=url.set_result)
    )
    async with client(await asyncio.wait_for(url, 20)) as http:
        reply = await http.get("/readyz")
        assert reply.status_code == 503
        assert reply.json()["reasons"]
        await own_servers.postgres.start()
        await own_servers.broker.start()

        async def ready() -> bool:
            return (await http.get("/readyz")).status_code == 200

        await eventually(ready, seconds=30)
    stop.set()
    await asyncio.wait_for(serving, 20)
