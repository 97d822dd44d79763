"""Capacity: how many pending jobs a queue takes, exactly, among all processes.

Only new submissions that are runnable at once are refused. Whoever counts and inserts holds a lock
for each cap until its transaction ends, so no two of them count the same free place (SUB-03).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .postgres import Transaction


class Full(NamedTuple):
    """A queue that takes no more; "" stands for all queues together."""

    queue: str
    pending: int
    cap: int


class Places:
    """The free places that were counted; they are taken here before they are filled."""

    def __init__(self, pending: Mapping[str, int], caps: Mapping[str, int]) -> None:
        self._pending = dict(pending)
        self._caps = caps

    def take(self, queue: str) -> Full | None:
        """Take a place under every cap that covers the queue, or say which one is full."""
        scopes = [scope for scope in ("", queue) if scope in self._pending]
        for scope in scopes:
            if self._pending[scope] >= self._caps[scope]:
                return Full(scope, self._pending[scope], self._caps[scope])
        for scope in scopes:
            self._pending[scope] += 1
        return None


class Caps:
    """The caps in force; the key "" is the one for all queues together."""

    def __init__(self, caps: Mapping[str, int]) -> None:
        self._caps = dict(caps)

    def cover(self, queue: str) -> bool:
        """Whether any cap holds for this queue."""
        return bool(self._caps) and ("" in self._caps or queue in self._caps)

    async def lock(self, transaction: Transaction, queues: Iterable[str]) -> Sequence[str]:
        """Lock the caps of these queues until the transaction ends; returns their names."""
        asked = set(queues)
        scopes = sorted(scope for scope in self._caps if scope == "" or scope in asked)
        await transaction.fetch("lock_caps", scopes)
        return scopes

    async def count(self, transaction: Transaction, scopes: Sequence[str]) -> Places:
        """Count what is pending under locked caps."""
        wanted = None if "" in scopes else list(scopes)
        rows = await transaction.fetch("count_pending", wanted)
        counts: dict[str, int] = {row["queue"]: row["pending"] for row in rows}
        return Places(
            {scope: counts.get(scope, 0) if scope else sum(counts.values()) for scope in scopes},
            self._caps,
        )


def seconds_until_free(full: Full, drain_rate: float) -> float:
    """When to try again, by how many jobs a second have ended lately: 1 to 60 s, 30 when none."""
    wait = (full.pending + 1 - full.cap) / drain_rate if drain_rate > 0 else 30.0
    return float(min(60, max(1, round(wait))))
