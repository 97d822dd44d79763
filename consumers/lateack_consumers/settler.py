"""Settling an attempt: commit the outcome, tell the watchers, acknowledge the entry. In that order.

Late ack: an entry is acknowledged and deleted only after the commit. While the database is away the
outcome waits here and its lease is renewed by fence as soon as the database is back.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from lateack_core.group_commit import GroupCommit
from lateack_core.jobs import Failure, Ledger, Moved, Owned, Success
from lateack_core.postgres import LedgerUnavailable
from lateack_core.progress import announce
from lateack_core.stream import Broker, ProgressEntry

from .acknowledger import Acknowledger
from .active import Active, Reason
from .verdict import Verdict, of_refused

log = logging.getLogger("lateack.settler")

Item = TypeVar("Item")


class Settler:
    """Writes outcomes, gathered over all jobs of this worker."""

    def __init__(
        self, ledger: Ledger, broker: Broker, acknowledger: Acknowledger, *, max_losses: int
    ) -> None:
        self._ledger = ledger
        self._broker = broker
        self._acknowledger = acknowledger
        self._max_losses = max_losses
        self._successes: GroupCommit[Success, Moved | None] = GroupCommit(self._complete, lanes=2)
        self._failures: GroupCommit[Failure, Moved | None] = GroupCommit(self._fail)
        self._releases: GroupCommit[Owned, Moved | None] = GroupCommit(self._release)
        self._losses: GroupCommit[Owned, Moved | None] = GroupCommit(self._lose)
        # Set when the worker may wait for the database no longer.
        self.giving_up = asyncio.Event()

    async def complete(self, active: Active, verdict: Verdict) -> None:
        """Record the body's success."""
        active.settle()
        success = Success(active.job.owned, verdict.result)
        try:
            moved = await self._until_answered(self._successes.put, success)
        except Exception as error:
            # An answer, and it is no: repeating it would be in vain, and so would another attempt.
            log.warning("job %s: its result cannot be stored: %s", active.job_id, error)
            moved = await self._until_answered(self._failures.put, _refused(active, error))
        self._finish(active, moved)

    async def fail(self, active: Active, verdict: Verdict) -> None:
        """Record the body's error; the ledger decides whether there is another attempt."""
        active.settle()
        failure = Failure(
            active.job.owned,
            verdict.code or "Error",
            verdict.message,
            verdict.info,
            verdict.retry_after,
        )
        try:
            moved = await self._until_answered(self._failures.put, failure)
        except Exception as error:
            log.warning("job %s: its error cannot be stored: %s", active.job_id, error)
            moved = await self._until_answered(self._failures.put, _refused(active, error))
        self._finish(active, moved)

    async def release(self, active: Active) -> None:
        """Hand the job back; no attempt is used up."""
        active.settle()
        moved = await self._until_answered(self._releases.put, active.job.owned)
        await self._moved_away(active, moved)

    async def lose(self, active: Active) -> None:
        """The process that ran the body has died."""
        active.settle()
        moved = await self._until_answered(self._losses.put, active.job.owned)
        await self._moved_away(active, moved)

    def committed(self, active: Active, moved: Moved) -> None:
        """The body's own transaction has recorded its success; what else it does changes nothing.

        It may go on until its hard limit.
        """
        self._finish(active, moved)
        if active.hard_limit is not None and active.body_began is not None:
            left = active.body_began + active.hard_limit - time.monotonic()
            loop = asyncio.get_running_loop()
            loop.call_later(max(0.0, left), active.interrupt, Reason.HARD_LIMIT)

    def _finish(self, active: Active, moved: Moved | None) -> None:
        active.ours = False
        self._acknowledger.offer(active.delivery)
        if moved is not None:
            self._acknowledger.tell(last_words(active, moved))
        else:
            # Refused, or an earlier try took effect and its answer was not heard.
            log.info("job %s is no longer ours, or its outcome is recorded already", active.job_id)

    async def _moved_away(self, active: Active, moved: Moved | None) -> None:
        active.ours = False
        self._acknowledger.offer(active.delivery)
        if moved is not None:
            # The move raised the fence, so these words are not the old owner's.
            await announce(self._broker, [moved])

    async def _until_answered(
        self, put: Callable[[Item], Awaitable[Moved | None]], item: Item
    ) -> Moved | None:
        """Write until the database answers. Repeating is harmless: a move that took effect unheard
        finds nothing of ours any more."""
        pause = 0.1
        while True:
            try:
                return await put(item)
            except LedgerUnavailable:
                if self.giving_up.is_set():
                    log.error("left behind without a record, its lease will end: %s", item)
                    return None
                await asyncio.sleep(pause * random.uniform(0.7, 1.3))
                pause = min(2.0, pause * 2)

    # -- one statement for many -----------------------------------------------------------

    async def _complete(self, items: list[Success]) -> list[Moved | None]:
        return _in_order([item.owned for item in items], await self._ledger.complete(items))

    async def _fail(self, items: list[Failure]) -> list[Moved | None]:
        return _in_order([item.owned for item in items], await self._ledger.fail(items))

    async def _release(self, items: list[Owned]) -> list[Moved | None]:
        return _in_order(items, await self._ledger.release(items))

    async def _lose(self, items: list[Owned]) -> list[Moved | None]:
        return _in_order(items, await self._ledger.lose(items, max_losses=self._max_losses))


def last_words(active: Active, moved: Moved) -> list[ProgressEntry]:
    """The events of an attempt's end: what was reported and not yet told, then the new state."""
    # One that is on its way is told again, under its own id, which the stream takes once: should
    # nobody have watched when it came, somebody may by now, and would meet a hole.
    entries = [] if active.telling is None else [active.telling]
    if active.unreported:
        entries.append(
            active.trail.next(
                "progress",
                "running",
                progress=active.progress,
                step=active.step,
                message=active.message,
            )
        )
    progress = 100.0 if moved.status == "succeeded" else active.progress
    entries.append(active.trail.next("status", moved.status, progress=progress, step=active.step))
    return entries


def _refused(active: Active, error: Exception) -> Failure:
    verdict = of_refused(error)
    return Failure(
        active.job.owned, verdict.code or "InvalidOutcome", verdict.message, verdict.info, None
    )


def _in_order(asked: Sequence[Owned], moved: Sequence[Moved]) -> list[Moved | None]:
    by_id = {move.job_id: move for move in moved}
    return [by_id.get(owned.job_id) for owned in asked]
