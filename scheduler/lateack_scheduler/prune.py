"""Retention: what ended long ago leaves in small batches, so that nobody waits for it."""

from __future__ import annotations

import asyncio
import logging
import time

from lateack_core.ground import Ground
from lateack_core.jobs import Term
from lateack_core.retention import Retention

log = logging.getLogger("lateack.prune")

INTERVAL = 5.0
BATCH = 500
# One turn takes at most so long, and the next one goes on.
LONGEST_TURN = 5.0
# Between two batches it rests for as long as the last one took: half of one connection's time.
SHORTEST_REST = 0.02


async def prune(ground: Ground, term: Term, *, batch: int = BATCH) -> int:
    """Forget what is older than its retention, for one turn; returns how many jobs.

    Raises:
        LedgerUnavailable
    """
    settings, gone = ground.settings, 0
    retention = Retention(ground.postgres)
    ends = time.monotonic() + LONGEST_TURN
    while not ground.loops.stopping.is_set() and (began := time.monotonic()) < ends:
        jobs = await retention.prune_jobs(
            term, well=settings.retention or None, badly=settings.retention_failed or None,
            most=batch,
        )  # fmt: skip
        records = await retention.prune_records(
            term, older_than=settings.retention_failed or None, most=batch
        )
        gone += jobs
        if not jobs and not records:
            break
        await asyncio.sleep(max(SHORTEST_REST, time.monotonic() - began))
    if gone:
        log.info("%d jobs that ended long ago are forgotten", gone)
    return gone
