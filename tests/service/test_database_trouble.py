"""A database without a free connection, and clients that leave in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import httpx
import msgspec
import pytest

from lateack_cli.embedded import EmbeddedServers
from lateack_core.ground import Ground
from lateack_core.settings import Settings

from .conftest import client, eventually, is_ready, served, submit

# A caller hears that it has to come back within the time a connection is waited for, twice at most.
QUICK = 12.0
CONNECTIONS = 20
OURS = "datname = current_database() AND application_name LIKE 'lateack%'"


@pytest.fixture
async def operator(settings: Settings) -> AsyncIterator[asyncpg.Connection]:
    """An operator's session in the test's database."""
    connection = await asyncpg.connect(settings.database_url)
    yield connection
    await connection.close()


async def refused_quickly(http: httpx.AsyncClient, job_id: str) -> None:
    """Every kind of request gets a busy answer that says when to come back."""
    began = time.monotonic()
    replies = await asyncio.gather(
        *(http.get(f"/v1/jobs/{job_id}") for _ in range(20)),
        *(http.post("/v1/jobs", json={"task": "t.echo"}) for _ in range(20)),
        *(http.post(f"/v1/jobs/{job_id}/cancel") for _ in range(5)),
        http.post("/v1/jobs/batch", json={"items": [{"task": "t.echo"}] * 3}),
        http.get("/v1/jobs"),
        http.get("/v1/queues"),
    )
    assert time.monotonic() - began < QUICK
    for reply in replies:
        assert (reply.status_code, reply.json()["type"]) == (503, "ledger-unavailable"), reply.text
        assert int(reply.headers["retry-after"]) >= 1


async def serves_again(http: httpx.AsyncClient) -> None:
    """It has recovered by itself."""
    url = str(http.base_url)
    await eventually(lambda: is_ready(url))
    replies = await asyncio.gather(
        *(http.post("/v1/jobs", json={"task": "t.echo"}) for _ in range(30))
    )
    assert {reply.status_code for reply in replies} == {202}


async def test_no_connection_is_left_in_the_database(
    own_servers: EmbeddedServers, own_settings: Settings
) -> None:
    """DBS-04: somebody else holds all of them; a quick busy answer, and service again when there
    are some."""
    first = await asyncpg.connect(own_settings.database_url)
    await first.execute(f"ALTER SYSTEM SET max_connections = {CONNECTIONS}")
    await first.execute("ALTER SYSTEM SET superuser_reserved_connections = 0")
    await first.close()
    await own_servers.postgres.stop()
    await own_servers.postgres.start()
    async with served(own_settings) as url, client(url) as http, contextlib.AsyncExitStack() as hog:
        job = await submit(http)
        held = [await asyncpg.connect(own_settings.database_url)]
        hog.push_async_callback(held[0].close)
        while len(held) < CONNECTIONS:
            await held[0].execute(
                f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {OURS}"
            )
            with contextlib.suppress(asyncpg.TooManyConnectionsError):
                while len(held) < CONNECTIONS:
                    held.append(await asyncpg.connect(own_settings.database_url))
                    hog.push_async_callback(held[-1].close)
        await refused_quickly(http, job["job_id"])
        await hog.aclose()
        await serves_again(http)


async def test_no_connection_is_left_in_the_pool(
    settings: Settings, operator: asyncpg.Connection
) -> None:
    """DBS-04: those of the service itself wait for a lock; whoever comes meanwhile is told so, and
    whoever waits is served in the end."""
    small = msgspec.structs.replace(settings, pool_size=2)
    async with served(small) as url, client(url) as http:
        job = await submit(http)
        async with operator.transaction():
            await operator.execute("LOCK TABLE lateack.jobs IN ACCESS EXCLUSIVE MODE")
            waiting = [asyncio.create_task(http.get(f"/v1/jobs/{job['job_id']}")) for _ in "12"]

            async def stuck() -> bool:
                count = await operator.fetchval(
                    f"SELECT count(*) FROM pg_stat_activity WHERE {OURS} "
                    "AND wait_event_type = 'Lock'"
                )
                return bool(count == 2)

            await eventually(stuck)
            await refused_quickly(http, job["job_id"])
        assert [(await reply).status_code for reply in waiting] == [200, 200]
        await serves_again(http)


# -- clients that leave -------------------------------------------------------------------


def request(method: str, path: str, document: object = None) -> bytes:
    body = b"" if document is None else json.dumps(document).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Content-Type: application/json\r\n\r\n".encode() + body


async def leave(url: str, said: bytes, stay: float) -> None:
    """Say a part of a request and reset the connection, without a goodbye."""
    _, writer = await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port)
    writer.write(said)
    await asyncio.sleep(stay)
    end: socket.socket = writer.get_extra_info("socket")
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def test_thousands_of_clients_leave_in_the_middle(
    settings: Settings, ground: Ground, operator: asyncpg.Connection
) -> None:
    """DBS-05: wherever they stop, no session stays in a transaction, none leaks, and what they
    submitted is there completely or not at all."""
    chance = random.Random(7)
    async with served(settings) as url, client(url) as http:
        job = await submit(http, idempotency_key="known")
        path = f"/v1/jobs/{job['job_id']}"

        def said(number: int) -> bytes:
            whole = chance.choice(
                [
                    request("POST", "/v1/jobs", {"task": "t.echo", "idempotency_key": f"{number}"}),
                    request(
                        "POST",
                        "/v1/jobs/batch",
                        {"items": [{"task": "t.pair", "args": [n, number]} for n in range(3)]},
                    ),
                    request("GET", path),
                    request("GET", f"{path}?wait=1"),
                    request("GET", f"{path}/events"),
                    request("POST", "/v1/jobs", {"task": "t.echo", "idempotency_key": "known"}),
                ]
            )
            return whole[: chance.randint(1, len(whole))] if chance.random() < 0.4 else whole

        for start in range(0, 2000, 200):
            await asyncio.gather(
                *(
                    leave(url, said(start + number), chance.choice([0, 0.001, 0.02, 0.1]))
                    for number in range(200)
                )
            )
        await nothing_is_left_open(operator, settings)
        await stored_completely(ground, operator)
        replies = await asyncio.gather(*(http.get(path) for _ in range(30)))
        assert {reply.status_code for reply in replies} == {200}
        await serves_again(http)


async def nothing_is_left_open(operator: asyncpg.Connection, settings: Settings) -> None:
    async def at_rest() -> bool:
        states = await operator.fetch(f"SELECT state FROM pg_stat_activity WHERE {OURS}")
        # The pools of the service and of the test itself.
        assert len(states) <= 2 * settings.pool_size
        return {row["state"] for row in states} <= {"idle"}

    await eventually(at_rest)


async def stored_completely(ground: Ground, operator: asyncpg.Connection) -> None:
    """Each key has its job, and each job is on its way to a worker."""
    broker = ground.broker

    async def all_published() -> bool:
        if await operator.fetchval("SELECT count(*) FROM lateack.outbox"):
            return False
        jobs = await operator.fetch("SELECT id FROM lateack.jobs")
        found: set[str] = set()
        for stream in [*broker.streams("echo"), *broker.streams("default")]:
            entries: Any = await broker._redis.xrange(stream)
            found.update(fields["job"] for _, fields in entries)
        return found == {str(job["id"]) for job in jobs}

    await eventually(all_published)
    found = await operator.fetchrow(
        "SELECT (SELECT count(*) FROM lateack.jobs WHERE task = 't.echo') AS singles, "
        "(SELECT count(*) FROM lateack.jobs) AS jobs, "
        "(SELECT count(*) FROM lateack.idempotency) AS keys, "
        "(SELECT count(*) FROM lateack.idempotency JOIN lateack.jobs ON id = job_id) AS kept"
    )
    assert found is not None
    assert found["singles"] == found["keys"] == found["kept"] > 20
    assert found["jobs"] > found["singles"]
