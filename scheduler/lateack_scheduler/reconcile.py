"""Reconciler: what the broker has lost is published again, and what it still has is not.

A stream delivers in order. So a job that was put in before the newest delivered entry, and is
still pending, is in no stream any more; how old that entry is, is the *watermark*. A deep backlog
that is healthy lies behind the watermark and is left alone, however old it grows.

A broker that lost everything (flushed, failed over to an empty one, restored from a snapshot) need
not be waited for so long. Each queue has a mark in the broker, changed at every look: when it is
gone, or is not what was written last, the queue's streams are not the ones we knew, and whatever
was put in before is published again at once. That a hint is given twice costs a refused claim.
"""

from __future__ import annotations

import logging
import time

from lateack_core.ground import Ground
from lateack_core.jobs import Term
from lateack_core.log import Throttled
from lateack_core.stream import LEVELS, BrokerUnavailable, priorities_of

log = logging.getLogger("lateack.reconcile")

BATCH = 1000
# Looks between two walks along the watermarks; a look asks only whether the streams are there.
LOOKS = 10


class Reconciler:
    """What one leader knows of the broker's streams."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._epoch = -1
        self._walk_due = 0.0
        self._marks: dict[str, int] = {}
        self._marked = 0
        # Queues whose streams were lost, and when that was noticed: what was put in before is lost.
        self._lost: dict[str, float] = {}
        self._troubles = Throttled(log)

    async def turn(self, term: Term) -> None:
        """One look; along the watermarks too, when it is time.

        Raises:
            LedgerUnavailable
        """
        if term.epoch != self._epoch:
            # What another leader wrote meanwhile is not known here.
            self._epoch = term.epoch
            self._marks.clear()
            self._lost.clear()
        try:
            await self._look(term)
            if time.monotonic() >= self._walk_due:
                await self.walk(term)
                self._walk_due = time.monotonic() + self._ground.settings.reconcile_interval
        except BrokerUnavailable as error:
            self._troubles.warning(
                f"the broker is away, nothing is compared: {error}", time.monotonic()
            )

    async def walk(self, term: Term) -> int:
        """Publish again what each stream should have delivered by now; returns how many jobs.

        Raises:
            LedgerUnavailable, BrokerUnavailable
        """
        ground, total = self._ground, 0
        for queue in await ground.ledger.live_queues():
            for level in range(LEVELS):
                age = await ground.broker.delivered_age(ground.broker.stream(queue, level))
                if age is not None:
                    older_than = age + ground.settings.reconcile_grace
                    total += await self._republish(term, queue, priorities_of(level), older_than)
        if total:
            log.warning("the broker had lost %d pending jobs: published again", total)
        return total

    async def _look(self, term: Term) -> None:
        ground = self._ground
        for queue in await ground.ledger.live_queues():
            now = time.monotonic()
            known = await self._mark(term, queue)
            made = [await ground.broker.ensure_group(s) for s in ground.broker.streams(queue)]
            if not known:
                self._lost[queue] = now
            elif any(made) and queue not in self._lost:
                # A queue's first look: its streams may be as young as its first jobs. Those that
                # were submitted a moment ago are in them.
                self._lost[queue] = now - 2 * ground.settings.outbox_delay
            if queue in self._lost:
                await self._publish_lost(term, queue)

    async def _mark(self, term: Term, queue: str) -> bool:
        """Change the queue's mark; false when the broker is not the one that was marked before."""
        self._marked += 1
        expected = self._marks.get(queue)
        found = await self._ground.broker.mark(queue, f"{term.epoch}-{self._marked}")
        self._marks[queue] = self._marked
        if expected is None:
            return True
        if found is None:
            return False
        # An older mark of this term can only come out of a snapshot; a newer one had lost its
        # answer; one of another term was left by a leader that was frozen and woke.
        epoch, _, number = found.partition("-")
        return epoch != str(term.epoch) or int(number) >= expected

    async def _publish_lost(self, term: Term, queue: str) -> None:
        since = time.monotonic() - self._lost[queue]
        count = await self._republish(term, queue, (0, 9), since)
        # Not before it was done: a ledger that fails in between is asked again.
        del self._lost[queue]
        if count:
            log.warning("the broker lost the streams of %s: %d jobs published again", queue, count)

    async def _republish(
        self, term: Term, queue: str, priorities: tuple[int, int], older_than: float
    ) -> int:
        total = 0
        while not self._ground.loops.stopping.is_set():
            asked = time.monotonic()
            count = await self._ground.ledger.republish_lost(
                term, queue, priorities, older_than=older_than, most=BATCH
            )
            total += count
            if count < BATCH:
                break
            older_than += time.monotonic() - asked
        return total
