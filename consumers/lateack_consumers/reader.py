"""Reading one queue: take what there are free slots for, wait in the broker when there is nothing.

Each reader has a connection of its own and runs in a loop of its own. On every (re)connect it makes
sure of the groups and looks at what is pending with itself before anything new. It is stopped by a
flag and a wake-up, never by cancelling a read.
"""

from __future__ import annotations

import logging

from lateack_core.process import Loop
from lateack_core.stream import Broker, BrokerUnavailable, Entry, GroupMissing

from .dispatcher import Dispatcher
from .slots import Slots

log = logging.getLogger("lateack.reader")

# Every tenth fetch begins with one of the lower levels, each in its turn, so that no flood of jobs
# starves another level for ever (DEL-06). Were it always the lowest, a flood there and one on top
# would together starve what lies between.
LOWER_FIRST_EVERY = 10
MOST = 500


class Reader:
    """Reads the streams of one queue."""

    def __init__(
        self, queue: str, broker: Broker, slots: Slots, dispatcher: Dispatcher, *, consumer: str
    ) -> None:
        self.queue = queue
        self._broker = broker
        self._slots = slots
        self._dispatcher = dispatcher
        self._consumer = consumer
        self._streams = broker.streams(queue)
        self._connection = broker.reader()
        self._fetches = 0

    async def run(self, loop: Loop) -> None:
        """The loop: connect, catch up, read; again from the start after any trouble."""
        while not loop.stopping:
            try:
                for stream in self._streams:
                    await self._broker.ensure_group(stream)
                await self._catch_up(loop)
                while not loop.stopping:
                    loop.beat()
                    await self._turn(loop)
            except GroupMissing:
                # Wiped, or never made: make it again at once; the ledger knows what was lost.
                await loop.pause(0.05, jitter=0.5)
            except BrokerUnavailable as error:
                log.debug("queue %s waits for the broker: %s", self.queue, error)
                # The loop is well, the broker is not; readiness tells of it elsewhere.
                loop.beat()
                await loop.pause(0.5, jitter=0.5)

    async def wake(self) -> None:
        """End a wait in the broker now."""
        await self._connection.wake()

    async def close(self) -> None:
        await self._connection.close()

    async def _turn(self, loop: Loop) -> None:
        if not await self._slots.some(1.0) or loop.stopping:
            return
        taken = self._slots.take(MOST)
        if not taken:
            return
        entries: list[Entry] = []
        try:
            entries = await self._broker.read(self._order(), self._consumer, taken)
        finally:
            self._slots.give(taken - len(entries))
        if entries:
            self._dispatcher.dispatch(entries)
        elif not loop.stopping:
            await self._wait(loop)

    async def _wait(self, loop: Loop) -> None:
        """Wait in the broker without holding a slot; hand back what comes when none is left."""
        entries = await self._connection.wait_for_new(self._streams, self._consumer)
        taken = 0 if loop.stopping else self._slots.take(len(entries))
        if taken:
            self._dispatcher.dispatch(entries[:taken])
        if entries[taken:]:
            await self._dispatcher.hand_back(entries[taken:])

    async def _catch_up(self, loop: Loop) -> None:
        """Take up what was delivered to this consumer and never reached it."""
        for stream in self._streams:
            after = "0"
            while not loop.stopping:
                page = await self._connection.pending(stream, self._consumer, after)
                if not page:
                    break
                after = page[-1].entry_id
                fresh = [entry for entry in page if not self._dispatcher.is_handling(entry)]
                while fresh and not loop.stopping:
                    loop.beat()
                    await self._slots.some(1.0)
                    taken = self._slots.take(len(fresh))
                    if taken:
                        self._dispatcher.dispatch(fresh[:taken])
                        fresh = fresh[taken:]

    def _order(self) -> list[str]:
        self._fetches += 1
        turn, rest = divmod(self._fetches, LOWER_FIRST_EVERY)
        if rest:
            return self._streams
        *lower, highest = reversed(self._streams)
        first = turn % len(lower)
        return [*lower[first:], *lower[:first], highest]
