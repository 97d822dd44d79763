"""The broker: queue streams, consumer groups, progress streams.

A stream entry is a hint: it carries a job's id and nothing else worth having. All keys of a queue
share a hash tag and every script names its keys, so the same code runs on a cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from redis.exceptions import ResponseError

from . import scripts
from .connection import (
    GROUP,
    BrokerUnavailable,
    BrokerUnfit,
    Entry,
    lost,
    pairs,
    text_of,
)
from .door import Door
from .reader import BlockingReader

log = logging.getLogger("lateack.broker")

LEVELS = 4
PROGRESS_KEPT = 3600.0
PROGRESS_KEPT_AFTER_END = 300.0
PROGRESS_MAXLEN = 1000


class Hint(NamedTuple):
    """A hint to publish."""

    job_id: UUID
    queue: str
    priority: int


class ProgressEntry(NamedTuple):
    """An event for a job's progress stream; `always` makes the stream when nobody watches yet."""

    job_id: UUID
    event_id: str
    body: bytes
    always: bool
    last: bool


def level_of(priority: int) -> int:
    """The stream of a priority: 0 to 9 in four levels, higher first."""
    return priority * LEVELS // 10


def priorities_of(level: int) -> tuple[int, int]:
    """The lowest and the highest priority of a level's stream."""
    inside = [p for p in range(10) if level_of(p) == level]
    return inside[0], inside[-1]


class Broker:
    """A pool of connections for commands; blocking readers have connections of their own."""

    def __init__(self, url: str, *, namespace: str = "lateack", size: int = 20) -> None:
        self.namespace = namespace
        self._door = Door(url, size)
        self._redis = self._door.commands
        self._read = self._redis.register_script(scripts.READ)
        self._ack = self._redis.register_script(scripts.ACK)
        self._remove_idle = self._redis.register_script(scripts.REMOVE_IDLE)
        self._delivered = self._redis.register_script(scripts.DELIVERED)

    # -- keys -----------------------------------------------------------------------------

    def stream(self, queue: str, level: int) -> str:
        """The key of one of a queue's streams."""
        return f"{self.namespace}:{{q:{queue}}}:{level}"

    def streams(self, queue: str) -> list[str]:
        """The keys of a queue's streams, highest level first."""
        return [self.stream(queue, level) for level in reversed(range(LEVELS))]

    def progress_key(self, job_id: UUID) -> str:
        """The key of a job's progress stream; sixteen tags spread them over a cluster."""
        return f"{self.namespace}:{{p:{progress_tag(job_id):02d}}}:{job_id}"

    # -- the server -----------------------------------------------------------------------

    async def check(self) -> None:
        """Refuse a broker that is too old, or that may throw data away.

        Raises:
            BrokerUnfit, BrokerUnavailable
        """
        for info in await self._door.information():
            _refuse_unfit(info, cluster=self._door.cluster)

    async def ping(self) -> None:
        """Raises BrokerUnavailable when there is no answer."""
        await self._run(self._redis.ping())

    async def close(self) -> None:
        await self._door.close()

    # -- queues ---------------------------------------------------------------------------

    async def publish(self, hints: Sequence[Hint]) -> list[bool]:
        """Add one entry a hint; says for each whether it was added.

        Raises:
            BrokerUnavailable: no answer; some may have been added, which is harmless.
        """
        pipe = self._redis.pipeline(transaction=False)
        for hint in hints:
            pipe.execute_command(
                "XADD",
                self.stream(hint.queue, level_of(hint.priority)),
                "*",
                "job",
                str(hint.job_id),
            )
        replies = await self._run(pipe.execute(raise_on_error=False))
        if replies and all(isinstance(reply, Exception) for reply in replies):
            raise BrokerUnavailable(str(replies[0]))
        return [not isinstance(reply, Exception) for reply in replies]

    async def ensure_group(self, stream: str) -> bool:
        """Make the stream and its group when they are missing; true when they were.

        From 0, never from $: an entry that was added before the group would never be delivered.
        """
        try:
            await self._run(self._redis.xgroup_create(stream, GROUP, "0", mkstream=True))
        except ResponseError as error:
            if "BUSYGROUP" in str(error):
                return False
            raise
        return True

    async def read(self, streams: Sequence[str], consumer: str, most: int) -> list[Entry]:
        """Take at most `most` new entries from the streams, in their order, without waiting.

        Raises:
            GroupMissing, BrokerUnavailable
        """
        reply = await self._run(self._read(keys=list(streams), args=[GROUP, consumer, most]))
        return [
            Entry(key, entry_id, pairs(fields))
            for key, entries in reply
            for entry_id, fields in entries
        ]

    async def ack(self, stream: str, entry_ids: Sequence[str]) -> int:
        """Acknowledge and delete entries, in one step; says how many were still pending."""
        acked = 0
        for start in range(0, len(entry_ids), 1000):
            part = entry_ids[start : start + 1000]
            acked += await self._run(self._ack(keys=[stream], args=[GROUP, *part]))
        return acked

    async def keep(self, stream: str, consumer: str, entry_ids: Sequence[str]) -> None:
        """Make entries this consumer's again and their idle time nothing (XCLAIM JUSTID).

        Only for entries whose lease the ledger has just confirmed: a blind one steals back.
        """
        await self._command("XCLAIM", stream, GROUP, consumer, 0, *entry_ids, "JUSTID")

    async def take_over(
        self, stream: str, consumer: str, min_idle: float, cursor: str, most: int = 100
    ) -> tuple[str, list[Entry], bool]:
        """One page of XAUTOCLAIM: entries idle for `min_idle` seconds become this consumer's.

        Go on with the returned cursor, at the next sweep too; "0-0" is the end of the walk. The
        third value tells that there are ghosts: Redis 6.2 lists entries that were deleted while
        pending as nothing at all, and keeps them pending.
        """
        reply = await self._command(
            "XAUTOCLAIM", stream, GROUP, consumer, int(min_idle * 1000), cursor, "COUNT", most
        )
        following, entries = text_of(reply[0]), reply[1]
        taken = [
            Entry(stream, text_of(entry[0]), pairs(entry[1]))
            for entry in entries
            if entry and entry[0] is not None and entry[1] is not None
        ]
        return following, taken, len(taken) < len(entries)

    async def ghosts(self, stream: str, consumer: str, most: int = 100) -> list[str]:
        """This consumer's pending entries that no longer exist (deleted while pending)."""
        gone: list[str] = []
        after = "-"
        while True:
            pending = await self._run(
                self._redis.xpending_range(stream, GROUP, after, "+", most, consumer)
            )
            if not pending:
                return gone
            ids = [row["message_id"] for row in pending]
            after = f"({ids[-1]}"
            pipe = self._redis.pipeline(transaction=False)
            for entry_id in ids:
                pipe.xrange(stream, entry_id, entry_id)
            found = await self._run(pipe.execute())
            gone += [entry_id for entry_id, rows in zip(ids, found, strict=True) if not rows]

    async def remove_idle_consumers(self, stream: str, idle: float) -> int:
        """Forget consumers that own nothing and were idle for `idle` seconds; says how many."""
        count: int = await self._run(
            self._remove_idle(keys=[stream], args=[GROUP, int(idle * 1000)])
        )
        return count

    async def delivered_age(self, stream: str) -> float | None:
        """Seconds since the newest delivered entry was added; 0 when all are delivered.

        Whatever was added before has been delivered too. None when there is no such stream or
        group, so that nothing in it has been delivered and nothing can be: all was lost.
        """
        reply = await self._run(self._delivered(keys=[stream], args=[GROUP]))
        if reply is None:
            return None
        undelivered, delivered, seconds, micros = reply
        if undelivered <= 0:
            return 0.0
        added = int(str(delivered).partition("-")[0]) / 1000
        return max(0.0, float(seconds) + float(micros) / 1e6 - added)

    async def mark(self, queue: str, text: str) -> str | None:
        """Leave a mark beside a queue's streams; returns the one before, None when there is none.

        A mark that is gone, or is an older one, tells that the streams are not those of before.
        """
        key = f"{self.namespace}:{{q:{queue}}}:mark"
        before: str | None = await self._run(self._redis.set(key, text, get=True))
        return before

    async def depth(self, queue: str) -> tuple[int, int]:
        """Entries of a queue that wait, and those that were read and not acknowledged."""
        pipe = self._redis.pipeline(transaction=False)
        for stream in self.streams(queue):
            pipe.xlen(stream)
            pipe.xpending(stream, GROUP)
        replies = await self._replies(pipe)
        total = sum(n for n in replies[::2] if isinstance(n, int))
        reserved = sum(p["pending"] for p in replies[1::2] if not isinstance(p, Exception))
        return total - reserved, reserved

    # -- progress -------------------------------------------------------------------------

    async def append_progress(self, entries: Sequence[ProgressEntry]) -> list[bool]:
        """Add events under their own ids; says for each whether the stream took it.

        It refuses an id that is not above its newest: that is how a stale owner is kept out.
        """
        pipe = self._redis.pipeline(transaction=False)
        for entry in entries:
            key = self.progress_key(entry.job_id)
            make = () if entry.always else ("NOMKSTREAM",)
            pipe.execute_command(
                "XADD", key, *make, "MAXLEN", "~", PROGRESS_MAXLEN, entry.event_id, "e", entry.body
            )
            kept = PROGRESS_KEPT_AFTER_END if entry.last else PROGRESS_KEPT
            pipe.pexpire(key, int(kept * 1000))
        replies = await self._replies(pipe)
        return [reply is not None and not isinstance(reply, Exception) for reply in replies[::2]]

    async def open_progress(self, job_id: UUID) -> str:
        """Make sure a job's progress stream exists while it is watched; returns its newest id."""
        key = self.progress_key(job_id)
        pipe = self._redis.pipeline(transaction=False)
        # 0-1 is below every event's id; on a stream that has any it is refused, which is fine.
        pipe.execute_command("XADD", key, "0-1", "open", "1")
        pipe.pexpire(key, int(PROGRESS_KEPT * 1000))
        pipe.xrevrange(key, count=1)
        replies = await self._replies(pipe)
        if isinstance(replies[2], Exception):
            raise BrokerUnavailable(str(replies[2]))
        return str(replies[2][0][0]) if replies[2] else "0-1"

    async def progress_range(
        self, job_id: UUID, after: str, most: int = 1000
    ) -> list[tuple[str, str | None]]:
        """Events after an id, oldest first: (id, body); the body of the opening mark is None."""
        rows = await self._run(
            self._redis.xrange(self.progress_key(job_id), f"({after}", "+", most)
        )
        return [(entry_id, fields.get("e")) for entry_id, fields in rows]

    async def progress_edges(self, job_id: UUID) -> tuple[str, str] | None:
        """The oldest and the newest id of a progress stream, None when it does not exist."""
        key = self.progress_key(job_id)
        pipe = self._redis.pipeline(transaction=False)
        pipe.xrange(key, count=1)
        pipe.xrevrange(key, count=1)
        first, last = await self._run(pipe.execute())
        return (first[0][0], last[0][0]) if first and last else None

    def reader(self) -> BlockingReader:
        """A connection of its own for blocking reads."""
        return BlockingReader(self._door)

    async def _command(self, *words: str | int | bytes) -> Any:
        return await self._run(self._redis.execute_command(*words))

    async def _replies(self, pipe: Any) -> list[Any]:
        """Run a pipeline; what the broker refused is among the replies, as an error."""
        replies: list[Any] = await self._run(pipe.execute(raise_on_error=False))
        if error := lost(replies):
            raise BrokerUnavailable(str(error)) from error
        return replies

    async def _run(self, command: Any) -> Any:
        return await self._door.run(command)


def _refuse_unfit(info: dict[str, Any], *, cluster: bool) -> None:
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info["redis_version"])
    if tuple(int(part) for part in version.split(".")[:2]) < (
        (8, 0) if name == "Valkey" else (6, 2)
    ):
        raise BrokerUnfit(f"{name} {version} is too old: lateack needs Redis 6.2 or Valkey 8.0")
    # Read from INFO, since CONFIG is often forbidden.
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise BrokerUnfit(
            f"the broker evicts data under memory pressure (maxmemory-policy is {policy}); "
            "set maxmemory-policy to noeviction"
        )
    # A client of one server meets keys that are elsewhere sooner or later.
    if int(info.get("cluster_enabled", 0)) and not cluster:
        raise BrokerUnfit("the broker is a node of a cluster: add cluster=true to REDIS_URL")


def progress_tag(job_id: UUID) -> int:
    """Which of the sixteen tags a job's progress stream has."""
    return job_id.int & 15
