"""Which servers the tests run on: those of the packages, or what the matrix chooses.

Three variables, read here and nowhere else, choose others; docs/matrix.md says who sets them:
LATEACK_TEST_BROKER_BINARY is a redis-server or valkey-server, LATEACK_TEST_POSTGRES_BIN the folder
of `postgres` and `initdb`, and LATEACK_TEST_CLUSTER=1 makes the broker a cluster of one node.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis.asyncio as redis

from lateack_cli.embedded import EmbeddedServers, Programs, Servers, embedded_servers
from lateack_cli.embedded.ports import loopback_port

T = TypeVar("T")
Ask = Callable[..., Awaitable[Any]]


def _chosen(variable: str) -> Path | None:
    return Path(value) if (value := os.environ.get(variable)) else None


PROGRAMS = Programs(
    broker=_chosen("LATEACK_TEST_BROKER_BINARY"), postgres=_chosen("LATEACK_TEST_POSTGRES_BIN")
)
SLOTS = range(16384)
# A node of a cluster takes a second port, 10000 higher; that too lies below those of clients.
NODE_PORTS = range(12_000, 16_000)
CLUSTER = os.environ.get("LATEACK_TEST_CLUSTER") == "1"
# For tests with a proxy or a replica of their own, which a client of a cluster walks past.
one_server = pytest.mark.skipif(CLUSTER, reason="says something about one server")


@asynccontextmanager
async def chosen_servers(
    directory: Path, *, postgres: bool = True, cluster: bool = CLUSTER, slots: range = SLOTS
) -> AsyncIterator[EmbeddedServers]:
    """The chosen servers on a directory that is thrown away; in a cluster, the owner of `slots`."""
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(
            embedded_servers(
                stack.enter_context(_enterable(directory)),
                postgres=postgres,
                durable=False,
                programs=PROGRAMS,
                # Nodes of a cluster are reached by host and port alone.
                broker_port=loopback_port(0, NODE_PORTS) if cluster else None,
                broker_options={"cluster-enabled": "yes"} if cluster else {},
            )
        )
        if cluster:
            async with node(servers) as ask:
                # Redis 6.2 knows no ranges.
                await ask("CLUSTER", "ADDSLOTS", *slots)
                if slots == SLOTS:
                    await cluster_ready(ask)
        yield servers


@contextmanager
def _enterable(directory: Path) -> Iterator[Path]:
    """A folder for the servers' data. PostgreSQL 15 has to be able to walk to it, and started by
    root it is somebody else, whom the folders of a test are closed to."""
    if PROGRAMS.postgres is None or os.geteuid() != 0:
        yield directory
        return
    folder = Path(tempfile.mkdtemp(prefix="lateack-tests-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def node(servers: EmbeddedServers) -> AsyncIterator[Ask]:
    """A way to say anything to one node of a cluster."""
    async with redis.from_url(servers.redis_url, decode_responses=True) as client:
        yield client.execute_command


async def cluster_ready(ask: Ask) -> None:
    """Wait until a node knows an owner of every slot."""
    async with asyncio.timeout(60):
        while "cluster_state:ok" not in await ask("CLUSTER", "INFO"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # nobody announces it


@contextmanager
def kept_open(context: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Hold a context open for several tests, each of which has a loop of its own: in a thread,
    since a server ends with the thread that started it."""
    entered: Future[T] = Future()
    loop = asyncio.new_event_loop()
    leave = asyncio.Event()

    async def hold() -> None:
        try:
            async with context as value:
                entered.set_result(value)
                await leave.wait()
        except BaseException as error:
            if entered.done():
                raise
            entered.set_exception(error)

    thread = threading.Thread(target=loop.run_until_complete, args=(hold(),), name="test servers")
    thread.start()
    try:
        yield entered.result()
    finally:
        loop.call_soon_threadsafe(leave.set)
        thread.join()
        loop.close()


def broker_url(servers: EmbeddedServers, *, cluster: bool = CLUSTER) -> str:
    """What a process of lateack is told about the broker."""
    return servers.redis_url + ("?cluster=true" if cluster else "")


def urls_of(servers: EmbeddedServers) -> Servers:
    """What a process of lateack is told about both."""
    return Servers(servers.database_url, broker_url(servers))
