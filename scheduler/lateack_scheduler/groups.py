"""Groups that failed: their members that are still alive are wanted by nobody, and are cancelled.

No term guards it: to cancel is a compare-and-set that a second one cannot repeat.
"""

from __future__ import annotations

import logging

from lateack_core.ground import Ground
from lateack_core.progress import announce

log = logging.getLogger("lateack.groups")

INTERVAL = 1.0


async def cancel_abandoned(ground: Ground) -> int:
    """Cancel the living members of failed groups; returns how many there were.

    Raises:
        LedgerUnavailable
    """
    moves = await ground.ledger.cancel_abandoned()
    await announce(ground.broker, moves)
    if moves:
        log.info("%d members of failed groups are cancelled", len(moves))
    return len(moves)
