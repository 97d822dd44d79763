"""Acknowledging entries and telling watchers, after the commit, many in one round trip.

The broker may be away: entries wait here, and what is forgotten with the process is cleared by the
next worker that meets it, since its claim finds the job ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lateack_core.log import Throttled
from lateack_core.process import Loop
from lateack_core.stream import Broker, BrokerUnavailable, GroupMissing, ProgressEntry

if TYPE_CHECKING:
    from .active import Delivery

log = logging.getLogger("lateack.ack")

KEPT = 50_000


class Acknowledger:
    """Clears entries whose jobs are settled."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._entries: dict[str, list[str]] = {}
        self._events: list[ProgressEntry] = []
        self._wake = asyncio.Event()
        # Entries in this worker's hands, from the read to the acknowledgement.
        self.handling: set[tuple[str, str]] = set()
        self._troubles = Throttled(log)

    def offer(self, delivery: Delivery) -> None:
        """Acknowledge and delete this entry soon."""
        self._entries.setdefault(delivery.stream, []).append(delivery.entry_id)
        self._wake.set()

    def leave(self, delivery: Delivery) -> None:
        """Let go of an entry without acknowledging it."""
        self.handling.discard((delivery.stream, delivery.entry_id))

    def tell(self, events: Sequence[ProgressEntry]) -> None:
        """Add these events to their streams soon; they may be lost with the broker."""
        self._events.extend(events)
        self._wake.set()

    async def run(self, loop: Loop) -> None:
        """The loop; at the stop it makes one last round."""
        loop.wake_at_stop(self._wake)
        while not loop.stopping:
            loop.beat()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), 1.0)
            self._wake.clear()
            if not await self.flush():
                await loop.pause(0.5, jitter=0.3)
        await self.flush()

    async def flush(self) -> bool:
        """One round; false when the broker was away and things wait."""
        try:
            await asyncio.gather(self._flush_events(), self._flush_entries())
        except BrokerUnavailable as error:
            self._troubles.warning(
                f"the broker is away, acknowledgements wait: {error}", time.monotonic()
            )
            return False
        return True

    async def _flush_entries(self) -> None:
        waiting, self._entries = self._entries, {}
        try:
            for stream, ids in list(waiting.items()):
                with contextlib.suppress(GroupMissing):
                    # Missing, the broker was wiped: there is nothing left to acknowledge.
                    await self._broker.ack(stream, ids)
                del waiting[stream]
                self.handling.difference_update((stream, entry_id) for entry_id in ids)
        finally:
            # Whatever went wrong, what is forgotten here would stay pending with this consumer.
            for stream, ids in waiting.items():
                self._entries.setdefault(stream, []).extend(ids[-KEPT:])

    async def _flush_events(self) -> None:
        events, self._events = self._events, []
        if events:
            await self._broker.append_progress(events)
