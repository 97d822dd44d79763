"""Expiry: a job that has not started by its latest start time ends `failed` / Expired.

No term guards it: whoever finds such a job writes the same, and a terminal row never changes.
"""

from __future__ import annotations

import logging

from lateack_core.ground import Ground
from lateack_core.progress import announce

log = logging.getLogger("lateack.expiry")


async def expire(ground: Ground) -> int:
    """End every job that is past its latest start time; returns how many.

    Raises:
        LedgerUnavailable
    """
    total = 0
    while not ground.loops.stopping.is_set():
        moves = await ground.ledger.expire()
        await announce(ground.broker, moves)
        total += len(moves)
        # What is locked right now is left to the next turn, so nothing is not the same as done.
        if not moves:
            break
    if total:
        log.info("%d jobs have expired before they started", total)
    return total
