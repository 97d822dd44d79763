"""Telling watchers how running jobs go on: merged, at most five times a second for each job.

It never fails a job. The same loop raises soft limits, since it looks at every job anyway.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from uuid import UUID

from lateack_core.process import Loop
from lateack_core.stream import Broker, BrokerUnavailable, ProgressEntry

from .active import Active, Reason

log = logging.getLogger("lateack.reporter")

INTERVAL = 0.2


class Reporter:
    """Looks at the active jobs five times a second."""

    def __init__(self, broker: Broker, actives: Mapping[UUID, Active]) -> None:
        self._broker = broker
        self._actives = actives

    async def run(self, loop: Loop) -> None:
        """The loop."""
        while not loop.stopping:
            loop.beat()
            now = time.monotonic()
            jobs = list(self._actives.values())
            for active in jobs:
                began, limit = active.body_began, active.soft_limit
                if (
                    began is not None
                    and limit is not None
                    and active.reason is None
                    and now - began > limit
                ):
                    active.interrupt(Reason.SOFT_LIMIT)
            try:
                await self.tell(jobs)
            except BrokerUnavailable as error:
                log.debug("watchers wait: %s", error)
            await loop.pause(INTERVAL)

    async def tell(self, jobs: list[Active]) -> None:
        """Add one event for each job that has something new: its start, or its newest report.

        Raises:
            BrokerUnavailable: what was new stays new.
        """
        told: list[Active] = []
        entries: list[ProgressEntry] = []
        for active in jobs:
            if active.ours and (active.unreported or not active.announced):
                kind = "progress" if active.unreported else "status"
                active.telling = active.trail.next(
                    kind,  # type: ignore[arg-type]
                    "running",
                    progress=active.progress,
                    step=active.step,
                    message=active.message,
                )
                entries.append(active.telling)
                active.unreported = False
                active.announced = True
                told.append(active)
        if not entries:
            return
        try:
            taken = await self._broker.append_progress(entries)
        except BrokerUnavailable:
            for active, entry in zip(told, entries, strict=True):
                active.unreported = active.unreported or entry.always
            raise
        finally:
            for active in told:
                active.telling = None
        for active, entry, ok in zip(told, entries, taken, strict=True):
            if not ok:
                active.trail.dropped(entry)
