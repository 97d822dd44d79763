"""Waiting in the broker, on a connection that does nothing else."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import redis.asyncio as redis

from .connection import GROUP, BrokerUnavailable, Entry, entries_of, rows_of, translated
from .door import BLOCK, Door, Line

log = logging.getLogger("lateack.broker")


class BlockingReader:
    """One connection that waits in the broker, for streams that share a hash tag. It is stopped by
    `wake`, not by cancellation: a cancelled read can leave an entry with a consumer that never saw
    it."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._line: Line | None = None

    async def wait_for_new(
        self, streams: Sequence[str], consumer: str, seconds: float = BLOCK
    ) -> list[Entry]:
        """Wait until there is an entry; at most one a stream is taken.

        Raises:
            GroupMissing, BrokerUnavailable: ensure the group, then read what is pending first.
        """
        reply = await self._run(
            streams,
            lambda line: line.xreadgroup(
                GROUP, consumer, dict.fromkeys(streams, ">"), count=1, block=int(seconds * 1000)
            ),
        )
        return entries_of(reply)

    async def pending(
        self, stream: str, consumer: str, after: str = "0", most: int = 500
    ) -> list[Entry]:
        """What was delivered to this consumer and not acknowledged, after an id; deleted ones too,
        with no fields."""
        reply = await self._run(
            [stream], lambda line: line.xreadgroup(GROUP, consumer, {stream: after}, count=most)
        )
        return entries_of(reply)

    async def wait_for_progress(
        self, cursors: dict[str, str], seconds: float = BLOCK, most: int = 500
    ) -> dict[str, list[tuple[str, str | None]]]:
        """Wait for events after the given ids; {key: [(id, body)]}."""
        streams: dict[Any, Any] = {**cursors}
        reply = await self._run(
            cursors, lambda line: line.xread(streams, count=most, block=int(seconds * 1000))
        )
        return {
            key: [(entry_id, fields.get("e")) for entry_id, fields in rows]
            for key, rows in rows_of(reply)
        }

    async def wake(self) -> None:
        """End the wait now; the waiting call returns what it has."""
        if self._line is not None:
            try:
                await self._door.unblock(self._line)
            except BrokerUnavailable:
                log.debug("could not unblock a reader; it wakes by itself", exc_info=True)

    async def close(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            await line.client.aclose()

    async def _run(
        self, keys: Iterable[str], command: Callable[[redis.Redis], Awaitable[Any]]
    ) -> Any:
        if self._line is None:
            self._line = await self._door.line(next(iter(keys)))
        try:
            return await command(self._line.client)
        except Exception as error:
            await self.close()
            raise translated(error) from error
