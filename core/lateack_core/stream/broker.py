"""The broker: queue streams, consumer groups, progress streams.

A stream entry is a hint: it carries a job's id and nothing else worth having. All keys of a queue
share a hash tag and every script names its keys, so the same code runs on a cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import ResponseError

from .connection import (
    GROUP,
    BrokerUnavailable,
    BrokerUnfit,
    Entry,
    client,
    pairs,
    text_of,
    translated,
)
from .reader import BlockingReader

log = logging.getLogger("lateack.broker")

LEVELS = 4
COMMAND_TIMEOUT = 5.0
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


# Take at most ARGV[3] new entries, in the order of KEYS. BLOCK is not allowed in a script.
_READ = """
local left = tonumber(ARGV[3])
local taken = {}
for _, key in ipairs(KEYS) do
  if left <= 0 then break end
  local reply = redis.call(
    'XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', left, 'STREAMS', key, '>')
  if reply then
    local entries = reply[1][2]
    left = left - #entries
    taken[#taken + 1] = {key, entries}
  end
end
return taken
"""
# XACK before XDEL, as one step: a crash in between would leave an entry that is pending for ever.
_ACK = """
local acked = redis.call('XACK', KEYS[1], ARGV[1], unpack(ARGV, 2))
redis.call('XDEL', KEYS[1], unpack(ARGV, 2))
return acked
"""
# A consumer that still owns something must not go: its entries would be lost to the group.
_REMOVE_IDLE = """
local removed = 0
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local c = {}
  for i = 1, #info, 2 do c[info[i]] = info[i + 1] end
  if c['pending'] == 0 and c['idle'] >= tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], c['name'])
    removed = removed + 1
  end
end
return removed
"""


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
        self._url = url
        self.namespace = namespace
        self._redis = client(
            url,
            size,
            socket_timeout=COMMAND_TIMEOUT,
            retry=Retry(ExponentialWithJitterBackoff(0.5, 0.05), 1),
        )
        self._read = self._redis.register_script(_READ)
        self._ack = self._redis.register_script(_ACK)
        self._remove_idle = self._redis.register_script(_REMOVE_IDLE)

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
        info = await self._run(self._redis.info())
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

    async def ping(self) -> None:
        """Raises BrokerUnavailable when there is no answer."""
        await self._run(self._redis.ping())

    async def close(self) -> None:
        await self._redis.aclose()

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
        pending = await self._run(
            self._redis.xpending_range(stream, GROUP, "-", "+", most, consumer)
        )
        ids = [row["message_id"] for row in pending]
        pipe = self._redis.pipeline(transaction=False)
        for entry_id in ids:
            pipe.xrange(stream, entry_id, entry_id)
        found = await self._run(pipe.execute()) if ids else []
        return [entry_id for entry_id, rows in zip(ids, found, strict=True) if not rows]

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
        pipe = self._redis.pipeline(transaction=False)
        pipe.xlen(stream)
        pipe.xinfo_groups(stream)
        pipe.time()
        length, groups, (seconds, micros) = await self._run(pipe.execute(raise_on_error=False))
        if isinstance(groups, ResponseError):
            return None
        for reply in (length, groups):
            if isinstance(reply, Exception):
                raise BrokerUnavailable(str(reply))
        group = next((g for g in groups if g["name"] == GROUP), None)
        if group is None:
            return None
        if length - group["pending"] <= 0:
            return 0.0
        delivered = int(str(group["last-delivered-id"]).partition("-")[0])
        return max(0.0, float(seconds) + float(micros) / 1e6 - delivered / 1000)

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
        replies = await self._run(pipe.execute(raise_on_error=False))
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
        replies = await self._run(pipe.execute(raise_on_error=False))
        return [reply is not None and not isinstance(reply, Exception) for reply in replies[::2]]

    async def open_progress(self, job_id: UUID) -> str:
        """Make sure a job's progress stream exists while it is watched; returns its newest id."""
        key = self.progress_key(job_id)
        pipe = self._redis.pipeline(transaction=False)
        # 0-1 is below every event's id; on a stream that has any it is refused, which is fine.
        pipe.execute_command("XADD", key, "0-1", "open", "1")
        pipe.pexpire(key, int(PROGRESS_KEPT * 1000))
        pipe.xrevrange(key, count=1)
        replies = await self._run(pipe.execute(raise_on_error=False))
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
        return BlockingReader(self._url, self._redis)

    async def _command(self, *words: str | int | bytes) -> Any:
        return await self._run(self._redis.execute_command(*words))  # type: ignore[no-untyped-call]

    async def _run(self, command: Any) -> Any:
        try:
            return await command
        except Exception as error:
            raise translated(error) from error


def progress_tag(job_id: UUID) -> int:
    """Which of the sixteen tags a job's progress stream has."""
    return job_id.int & 15
