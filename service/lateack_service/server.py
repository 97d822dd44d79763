"""Running the service: one process, its loops, its listener, and an orderly stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import uvicorn

from lateack.app import App
from lateack.errors import DeclarationError
from lateack_core.ground import Ground, open_ground
from lateack_core.process import Body, Loop
from lateack_core.registry import entries_of
from lateack_core.schedules import declaration
from lateack_core.settings import Settings

from .app import make_app
from .health import Readiness
from .progress import Hub
from .tenancy import Tenancy, check_bind

log = logging.getLogger("lateack.service")

BACKLOG = 2048
# Longer than the idle time of the usual load balancers and clients, so that they close first.
KEEP_ALIVE = 75
# How long requests in flight may take after a stop was asked for.
GRACE = 5
# Between turning unready and closing the listener, for whoever asks at that moment.
UNREADY_FIRST = 0.3
# Data that a peer does not acknowledge for this long ends its connection: half-open ones, and
# clients that never read.
UNACKNOWLEDGED_MS = 30_000


async def serve(
    settings: Settings,
    *,
    host: str,
    port: int,
    apps: Sequence[App],
    stop: asyncio.Event,
    ready: Callable[[str], None],
    beside: Sequence[Ground] = (),
) -> None:
    """Serve until `stop` is set. `ready(url)` is called once it listens; port 0 is any free one.

    The grounds `beside` it, in the same process, have to be well for this one to be ready.

    The tasks of `apps` are registered, so that a first deployment needs no worker to be running.

    Raises:
        DeclarationError: it cannot run as it is told: the address is taken or may not be bound
            without a guard, a URL is missing, the database or the broker is unfit.
    """
    check_bind(settings, host)
    listener = _listen(host, port)
    try:
        ground = await open_ground(settings, process="serve")
    except BaseException:
        listener.close()
        raise
    hub, readiness = Hub(ground), Readiness(ground, beside)
    app = make_app(ground, hub, readiness, Tenancy(settings))
    server = _Server(app, hub, ping=settings.stream_ping)
    try:
        ground.start()
        hub.start()
        ground.loops.start("register", _registration(ground, apps, readiness))
        ground.loops.start("declare", declaration(ground, apps))
        serving = asyncio.create_task(server.serve([listener]))
        await _until_listening(server, serving)
        ready(_url(host, listener))
        reason = await _until_stopped(ground, stop, serving)
        readiness.stopping = True
        if not serving.done():
            await asyncio.sleep(UNREADY_FIRST)
        server.should_exit = True
        await serving
        if reason:
            raise DeclarationError(reason)
    finally:
        listener.close()
        ground.loops.stopping.set()
        await hub.wake_readers()
        await ground.close()


class _Server(uvicorn.Server):
    """Uvicorn without its own handling of signals, and with a word to those who listen."""

    def __init__(self, app: object, hub: Hub, *, ping: float) -> None:
        super().__init__(
            uvicorn.Config(
                app,  # type: ignore[arg-type]
                lifespan="off",
                ws="websockets-sansio",
                ws_max_size=256 * 1024,
                ws_ping_interval=ping,
                ws_ping_timeout=20.0,
                # Events are short; a compressor for each socket would cost more than it saves.
                ws_per_message_deflate=False,
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=GRACE,
            )
        )
        self._hub = hub

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Signals belong to the command that runs this.
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        # Whoever comes back must not come back here, so this is said after the listener closed.
        self._hub.close()
        await asyncio.sleep(0.1)
        await super().shutdown(sockets)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # Accepted connections inherit it.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except (OSError, OverflowError) as error:
        raise DeclarationError(f"cannot listen on {host}:{port}: {error}") from None
    return listener


def _url(host: str, listener: socket.socket) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


async def _until_listening(server: _Server, serving: asyncio.Task[None]) -> None:
    while not server.started:
        if serving.done():
            await serving
            raise DeclarationError("the service ended before it listened")
        await asyncio.sleep(0.01)


async def _until_stopped(
    ground: Ground, stop: asyncio.Event, serving: asyncio.Task[None]
) -> str | None:
    """Wait for the order to stop, or for a reason why it cannot go on, which is returned."""
    stopping = asyncio.create_task(stop.wait())
    ways: list[asyncio.Future[Any]] = [stopping, serving, ground.unfit]
    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if ground.unfit.done():
        return ground.unfit.result()
    return None if stop.is_set() else "the service ended by itself"


def _registration(ground: Ground, apps: Sequence[App], readiness: Readiness) -> Body:
    """Register the tasks once; a worker's later word on them stands."""

    async def register(loop: Loop) -> None:
        while not loop.stopping:
            if not readiness.registered:
                entries = [entry for app in apps for entry in entries_of(app)]
                if entries:
                    await ground.ledger.register_tasks(entries)
                readiness.registered = True
            loop.beat()
            await loop.pause(2.0)

    return register
