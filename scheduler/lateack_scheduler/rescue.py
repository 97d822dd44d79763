"""Rescue: running jobs whose worker stopped renewing its lease run again, or end as WorkerLost.

No term guards it: a reap is a compare-and-set on a lease that has expired, so two reapers share the
work and a late one finds nothing.
"""

from __future__ import annotations

import logging
from collections import Counter

from lateack_core.ground import Ground
from lateack_core.progress import announce

log = logging.getLogger("lateack.rescue")

BATCH = 500


async def reap(ground: Ground, *, batch: int = BATCH) -> int:
    """Move every job whose lease has expired; returns how many.

    Nothing is moved while the ledger has not answered for `ledger_settle` seconds without a miss:
    after an outage every lease looks expired, and the workers get their beats in first.

    Raises:
        LedgerUnavailable
    """
    settings, seen = ground.settings, Counter[str]()
    while not ground.loops.stopping.is_set():
        if ground.postgres.settled_for <= settings.ledger_settle:
            break
        moves = await ground.ledger.reap(None, max_losses=settings.max_worker_losses, most=batch)
        await announce(ground.broker, moves)
        seen.update(move.status for move in moves)
        if len(moves) < batch:
            break
    if seen:
        log.warning(
            "%d jobs had lost their worker: %d run again, %d failed, %d cancelled",
            seen.total(),
            seen["pending"],
            seen["failed"],
            seen["cancelled"],
        )
    return seen.total()
