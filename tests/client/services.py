"""The real service and a real worker in this process, for clients to talk to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import httpx

from lateack import INJECTED, App, Context, PermanentError
from lateack_consumers.worker import work
from lateack_core.settings import Settings
from lateack_service.server import serve

app = App("callers")
# Opened by a test: what `held` and `steps` wait for.
gates: dict[str, asyncio.Event] = {}


@app.task(name="t.echo")
async def echo(value: Any = None) -> Any:
    return value


@app.task(name="t.fail")
async def fail(words: str) -> None:
    raise PermanentError(words)


@app.task(name="t.held")
async def held(gate: str) -> str:
    await gates[gate].wait()
    return gate


@app.task(name="t.steps")
async def steps(gate: str, count: int, *, ctx: Context = INJECTED) -> int:
    """Reports `count` steps, each when its gate opens: `gate-0`, `gate-1`, …"""
    for number in range(count):
        await gates[f"{gate}-{number}"].wait()
        await ctx.progress(done=number + 1, total=count, step=f"step {number}")
    return count


class Service:
    """The service on a port that stays the same over restarts."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._port = 0
        self._stop = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listen again, on the port of the first time."""
        self._stop = asyncio.Event()
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._serving = asyncio.create_task(
            serve(
                self._settings,
                host="127.0.0.1",
                port=self._port,
                apps=[app],
                stop=self._stop,
                ready=ready.set_result,
            )
        )
        await asyncio.wait((self._serving, ready), return_when=asyncio.FIRST_COMPLETED)
        if self._serving.done():
            self._serving.result()
        self._port = urlsplit(ready.result()).port or 0
        async with httpx.AsyncClient(trust_env=False) as http:
            await eventually(lambda: _is_ready(http, self.url))

    async def stop(self) -> None:
        """Stop in order."""
        self._stop.set()
        if self._serving is not None:
            await asyncio.wait_for(self._serving, 30)


class WorkerOf:
    """A worker of the app above."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stop = asyncio.Event()
        self._working: asyncio.Task[int] | None = None

    async def start(self) -> None:
        """Return when it takes jobs."""
        ready = asyncio.Event()
        self._working = asyncio.create_task(
            work(
                self._settings,
                app,
                queues=None,
                slots=10,
                name="w",
                app_path="tests.client.services:app",
                stop=self._stop,
                hurry=asyncio.Event(),
                ready=ready.set,
            )
        )
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait((self._working, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._working.done():
            self._working.result()

    async def stop(self) -> None:
        """Drain it."""
        self._stop.set()
        if self._working is not None:
            await asyncio.wait_for(self._working, 30)


async def _is_ready(http: httpx.AsyncClient, url: str) -> bool:
    return (await http.get(f"{url}/readyz")).status_code == 200


async def eventually(fact: Callable[[], Awaitable[bool]], *, within: float = 20.0) -> None:
    """Wait until a fact is true, `within` so many seconds."""
    deadline = time.monotonic() + within
    while not await fact():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.02)
