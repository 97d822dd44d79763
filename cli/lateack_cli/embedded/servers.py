"""Both servers, owned by one launcher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lateack_cli.embedded.binaries import Programs
from lateack_cli.embedded.broker import broker_server
from lateack_cli.embedded.directory import claimed
from lateack_cli.embedded.errors import EmbeddedError
from lateack_cli.embedded.postgres import postgres_server
from lateack_cli.embedded.process import EmbeddedServer, LostServer


@dataclass(frozen=True)
class Servers:
    """Where the two servers are."""

    database_url: str
    redis_url: str


class EmbeddedServers:
    """The servers that run, with handles to stop, kill and start them one by one."""

    def __init__(
        self, postgres: EmbeddedServer | None = None, broker: EmbeddedServer | None = None
    ) -> None:
        self._postgres = postgres
        self._broker = broker

    @property
    def postgres(self) -> EmbeddedServer:
        """The database. Raises EmbeddedError when none was asked for."""
        return _asked_for(self._postgres, "PostgreSQL")

    @property
    def broker(self) -> EmbeddedServer:
        """The broker. Raises EmbeddedError when none was asked for."""
        return _asked_for(self._broker, "broker")

    @property
    def database_url(self) -> str:
        """A URL that asyncpg and libpq understand."""
        return self.postgres.url

    @property
    def redis_url(self) -> str:
        """A URL that redis-py understands."""
        return self.broker.url

    @property
    def urls(self) -> Servers:
        """Both URLs."""
        return Servers(self.database_url, self.redis_url)

    async def wait_lost(self) -> LostServer:
        """Wait until one of them ends without being asked to, and say which and how."""
        servers = (self._postgres, self._broker)
        waits = [asyncio.ensure_future(one.wait_lost()) for one in servers if one is not None]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for wait in waits:
                wait.cancel()

    async def start(self) -> None:
        """Start what does not run."""
        for server in (self._postgres, self._broker):
            if server is not None:
                await server.start()

    async def stop(self) -> None:
        """Stop what runs: the broker first, the ledger last."""
        for server in (self._broker, self._postgres):
            if server is not None:
                await server.stop()


@asynccontextmanager
async def embedded_servers(
    data_dir: Path,
    *,
    postgres: bool = True,
    broker: bool = True,
    durable: bool = True,
    postgres_port: int | None = None,
    broker_port: int | None = None,
    programs: Programs | None = None,
    broker_options: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[EmbeddedServers]:
    """Run PostgreSQL and Valkey on `data_dir` until the block ends; both answer when it begins.

    They listen on Unix sockets only, and on loopback TCP too where a port is given (0: any free
    one; such a URL holds a password). With `durable=False`, for directories that are thrown away,
    what was acknowledged outlives a kill of the servers but not a power cut. `programs` are run
    instead of those that come with the packages, and `broker_options` are further settings of the
    broker. `progress` is told what takes longer than a moment. The calling thread must outlive the
    block (see `spawn`).

    Raises EmbeddedError when the directory is in use or a server does not start; what was started
    is stopped then.
    """
    programs = programs or Programs()
    with claimed(data_dir) as place:
        ours: dict[str, EmbeddedServer] = {}
        try:
            if broker:
                ours["broker"] = broker_server(
                    place,
                    durable=durable,
                    port=broker_port,
                    binary=programs.broker,
                    options=broker_options,
                )
            if postgres:
                ours["postgres"] = await postgres_server(
                    place,
                    durable=durable,
                    port=postgres_port,
                    progress=progress,
                    programs=programs.postgres,
                )
        except OSError as error:
            raise EmbeddedError(f"Cannot prepare {place.top}: {error}.") from error
        servers = EmbeddedServers(**ours)
        try:
            await servers.start()
            yield servers
        finally:
            await _to_the_end(servers.stop())


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Finish `work` even when cancelled: a server must not outlive the lock on its data."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError


def _asked_for(server: EmbeddedServer | None, name: str) -> EmbeddedServer:
    if server is None:
        raise EmbeddedError(f"No {name} of ours was asked for.")
    return server
