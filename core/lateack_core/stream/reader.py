"""Waiting in the broker, on a connection that does nothing else."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from .connection import GROUP, Entry, client, entries_of, rows_of, translated

log = logging.getLogger("lateack.broker")

# A blocking read ends well within its socket's time-out.
BLOCK = 2.0
READER_TIMEOUT = BLOCK + 5.0


class BlockingReader:
    """One connection that waits in the broker. It is stopped by `wake`, not by cancellation: a
    cancelled read can leave an entry with a consumer that never saw it."""

    def __init__(self, url: str, commands: redis.Redis) -> None:
        # No retries of the client's own: a read that is sent twice delivers twice.
        self._redis = client(url, 1, socket_timeout=READER_TIMEOUT, retry=Retry(NoBackoff(), 0))
        self._commands = commands
        self._client_id: int | None = None

    async def wait_for_new(
        self, streams: Sequence[str], consumer: str, seconds: float = BLOCK
    ) -> list[Entry]:
        """Wait until there is an entry; at most one a stream is taken.

        Raises:
            GroupMissing, BrokerUnavailable: ensure the group, then read what is pending first.
        """
        reply = await self._run(
            lambda: self._redis.xreadgroup(
                GROUP, consumer, dict.fromkeys(streams, ">"), count=1, block=int(seconds * 1000)
            )
        )
        return entries_of(reply)

    async def pending(
        self, stream: str, consumer: str, after: str = "0", most: int = 500
    ) -> list[Entry]:
        """What was delivered to this consumer and not acknowledged, after an id; deleted ones too,
        with no fields."""
        reply = await self._run(
            lambda: self._redis.xreadgroup(GROUP, consumer, {stream: after}, count=most)
        )
        return entries_of(reply)

    async def wait_for_progress(
        self, cursors: dict[str, str], seconds: float = BLOCK, most: int = 500
    ) -> dict[str, list[tuple[str, str | None]]]:
        """Wait for events after the given ids; {key: [(id, body)]}."""
        streams: dict[Any, Any] = {**cursors}
        reply = await self._run(
            lambda: self._redis.xread(streams, count=most, block=int(seconds * 1000))
        )
        return {
            key: [(entry_id, fields.get("e")) for entry_id, fields in rows]
            for key, rows in rows_of(reply)
        }

    async def wake(self) -> None:
        """End the wait now; the waiting call returns what it has."""
        if self._client_id is not None:
            try:
                await self._commands.client_unblock(self._client_id)
            except (RedisError, OSError):
                log.debug("could not unblock a reader; it wakes by itself", exc_info=True)

    async def close(self) -> None:
        await self._redis.aclose()

    async def _run(self, command: Callable[[], Awaitable[Any]]) -> Any:
        try:
            if self._client_id is None:
                self._client_id = int(await self._redis.client_id())
            return await command()
        except Exception as error:
            self._client_id = None
            await self._redis.connection_pool.disconnect()
            raise translated(error) from error
