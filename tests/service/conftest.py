"""The service in this process on a free port, and a hand that does what workers do."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
import pytest

from lateack import App
from lateack_core.ground import Ground, open_ground
from lateack_core.jobs import Claimed, Failure, Success
from lateack_core.progress import Trail
from lateack_core.settings import Settings
from lateack_service.server import serve

app = App("tests")


@app.task(name="t.echo", queue="echo")
async def echo(value: Any = None) -> Any:
    return value


@app.task(name="t.pair")
async def pair(a: int, b: int) -> int:
    return a + b


@app.task(name="t.next")
async def follow_up(result: Any) -> Any:
    return result


TASKS = list(app.tasks)


@contextlib.asynccontextmanager
async def served(settings: Settings, host: str = "127.0.0.1") -> AsyncIterator[str]:
    """A running service; its URL."""
    stop, url = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve(settings, host=host, port=0, apps=[app], stop=stop, ready=url.set_result)
    )
    await asyncio.wait([serving, url], return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        await serving
    try:
        await eventually(lambda: is_ready(url.result()))
        yield url.result()
    finally:
        stop.set()
        await asyncio.wait_for(serving, 20)


async def is_ready(url: str) -> bool:
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        return (await http.get("/readyz")).status_code == 200


async def eventually(
    condition: Callable[[], Awaitable[Any]], *, seconds: float = 20.0, pause: float = 0.05
) -> Any:
    """What `condition` returns once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := await condition()):
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(pause)
    return found


@dataclass
class Worker:
    """Does to jobs what a worker would do, step by step, on the real ledger and broker."""

    ground: Ground

    async def claim(self, job_id: UUID | str, *, lease: float = 60.0) -> Claimed:
        number = UUID(str(job_id))
        claimed = await self.ground.ledger.claim([number], WORKER, lease=lease, tasks=TASKS)
        assert len(claimed) == 1
        return claimed[0]

    def trail(self, claimed: Claimed) -> Trail:
        return Trail(claimed.job_id, claimed.fence, claimed.attempt)

    async def tell(self, trail: Trail, type_: Any, status: Any, **more: Any) -> bool:
        """Write the next event; false when the stream did not take it."""
        entry = trail.next(type_, status, **more)
        (ok,) = await self.ground.broker.append_progress([entry])
        if not ok:
            trail.dropped(entry)
        return ok

    async def complete(self, claimed: Claimed, result: str | None = "null") -> None:
        assert await self.ground.ledger.complete([Success(claimed.owned, result)])

    async def fail(self, claimed: Claimed, code: str, message: str) -> None:
        assert await self.ground.ledger.fail([Failure(claimed.owned, code, message, {}, None)])


WORKER = UUID("00000000-0000-7000-8000-000000000001")


@pytest.fixture
async def url(settings: Settings) -> AsyncIterator[str]:
    """A running service."""
    async with served(settings) as url:
        yield url


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of that service."""
    async with client(url) as http:
        yield http


def client(url: str, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=30, trust_env=False, **options)


@pytest.fixture
async def worker(settings: Settings) -> AsyncIterator[Worker]:
    """A worker's hand on the same ledger and broker as the service."""
    ground = await open_ground(settings, process="test worker")
    yield Worker(ground)
    await ground.close()


async def submit(http: httpx.AsyncClient, task: str = "t.echo", **fields: Any) -> dict[str, Any]:
    """Submit a job that must be accepted; its document."""
    reply = await http.post("/v1/jobs", json={"task": task, **fields})
    assert reply.status_code == 202, reply.text
    document: dict[str, Any] = reply.json()
    return document
