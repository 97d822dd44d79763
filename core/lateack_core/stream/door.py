"""The way to the broker: one server, or a cluster in which every key has a server of its own.

Whatever is said to the broker is the same on both. What differs is here: which client carries the
commands, and where a connection of one's own leads.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

import redis.asyncio as redis
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.exceptions import RedisClusterException

from .connection import translated

COMMAND_TIMEOUT = 5.0
# How long a caller waits for its turn on a connection. Turns end: every command has its time-out.
TURN = 30.0
# A wait in the broker; it ends well within its socket's time-out.
BLOCK = 2.0
LINE_TIMEOUT = BLOCK + 5.0

_CHOICES = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Line(NamedTuple):
    """A connection of one's own to the server that holds a key; `node` is None without a cluster.

    It follows no key that moves: it fails then, and the next one is asked for.
    """

    client: redis.Redis
    client_id: int
    node: ClusterNode | None


class Door:
    """A pool of connections for commands, and lines for those who wait.

    Raises:
        ValueError: the URL cannot be used.
    """

    def __init__(self, url: str, size: int) -> None:
        url, self.cluster = cluster_in(url)
        # What the URL says comes first.
        self._options: dict[str, Any] = {
            "socket_connect_timeout": 3.0,
            "decode_responses": True,
            "encoding_errors": "replace",
            "health_check_interval": 0,
            **parse_url(url),
        }
        # Callers wait for a connection instead of failing; the budget is `size`. The client of one
        # server waits by itself, that of a cluster does not, so its callers need a place first.
        self._places: contextlib.AbstractAsyncContextManager[Any] = contextlib.nullcontext()
        self.commands: redis.Redis | redis.RedisCluster
        retry = Retry(ExponentialWithJitterBackoff(0.5, 0.05), 1)
        if self.cluster:
            self._places = asyncio.Semaphore(size)
            self.commands = _cluster(self._options, 2 * size, retry)
        else:
            self.commands = _server(self._options, size, COMMAND_TIMEOUT, retry)

    async def run(self, command: Any) -> Any:
        """Await a command to `commands`.

        Raises:
            GroupMissing, BrokerUnavailable, or what the client raised
        """
        try:
            async with self._places:
                return await command
        except Exception as error:
            raise translated(error) from error

    async def information(self) -> list[dict[str, Any]]:
        """INFO of the server, of every primary in a cluster."""
        if not isinstance(self.commands, redis.RedisCluster):
            return [await self.run(self.commands.info())]
        await self.run(self.commands.initialize())
        return [
            await self.run(self.commands.info(target_nodes=node))
            for node in self.commands.get_primaries()
        ]

    async def line(self, key: str) -> Line:
        """A line to the server that holds `key`, opened.

        Raises:
            BrokerUnavailable
        """
        options, node = self._options, None
        if isinstance(self.commands, redis.RedisCluster):
            # Asked about the key, the client learns where it is now, should it have moved.
            await self.run(self.commands.type(key))
            node = self.commands.get_node_from_key(key)
            assert node is not None
            options = {**options, "host": node.host, "port": node.port}
        # No retries of the client's own: a read that is sent twice delivers twice.
        client = _server(options, 1, LINE_TIMEOUT, Retry(NoBackoff(), 0))
        try:
            return Line(client, int(await client.client_id()), node)
        except Exception as error:
            await client.aclose()
            raise translated(error) from error

    async def unblock(self, line: Line) -> None:
        """End what the line waits for in the broker; it returns what it has.

        Raises:
            BrokerUnavailable
        """
        target: dict[str, Any] = {} if line.node is None else {"target_nodes": line.node}
        await self.run(self.commands.client_unblock(line.client_id, **target))

    async def close(self) -> None:
        await self.commands.aclose()


def cluster_in(url: str) -> tuple[str, bool]:
    """The URL without `cluster=…`, and what it said; without it, there is no cluster.

    Raises:
        ValueError: it says neither true nor false.
    """
    before, _, query = url.partition("?")
    words = parse_qsl(query, keep_blank_values=True)
    said = [value.lower() for name, value in words if name == "cluster"]
    if not said:
        return url, False
    if said[-1] not in _CHOICES:
        raise ValueError("cluster= in REDIS_URL is true or false")
    rest = urlencode([word for word in words if word[0] != "cluster"])
    return f"{before}?{rest}" if rest else before, _CHOICES[said[-1]]


def _server(options: dict[str, Any], size: int, socket_timeout: float, retry: Retry) -> redis.Redis:
    chosen = {"max_connections": size, "socket_timeout": socket_timeout, **options}
    pool = redis.BlockingConnectionPool(timeout=TURN, retry=retry, **chosen)
    return redis.Redis.from_pool(pool)


def _cluster(options: dict[str, Any], size: int, retry: Retry) -> redis.RedisCluster:
    chosen = {"max_connections": size, "socket_timeout": COMMAND_TIMEOUT, **options}
    if issubclass(chosen.pop("connection_class", redis.Connection), redis.SSLConnection):
        chosen["ssl"] = True
    try:
        return redis.RedisCluster(retry=retry, **chosen)
    except RedisClusterException as error:
        raise ValueError(f"REDIS_URL: {error}") from error
