"""Pending cleanup: a job that nobody takes does not hold its place for ever.

One bulk statement a batch decides and moves, so that a job which somebody is claiming at that
moment is never both run and timed out; its text is queries/fail_stale_pending.sql.
"""

from __future__ import annotations

import logging

from lateack_core.ground import Ground
from lateack_core.jobs import Term
from lateack_core.progress import announce

log = logging.getLogger("lateack.pending")

# A batch holds its row locks for some tens of milliseconds.
BATCH = 1000


async def fail_stale(ground: Ground, term: Term, *, batch: int = BATCH) -> int:
    """Fail every job that has been pending for too long; returns how many.

    Raises:
        LedgerUnavailable
    """
    settings, total = ground.settings, 0
    while not ground.loops.stopping.is_set():
        moves = await ground.ledger.fail_stale_pending(
            term,
            timeouts=settings.pending_timeouts,
            unpublished_timeout=settings.unpublished_timeout,
            gone_after=settings.gone_after,
            most=batch,
        )
        await announce(ground.broker, moves)
        total += len(moves)
        if len(moves) < batch:
            break
    if total:
        log.warning("pending timeout: %d jobs that nobody took have failed", total)
    else:
        log.debug("pending cleanup: nothing to do")
    return total
