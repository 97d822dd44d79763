"""Audit: rules that should never be broken are looked at all the same, and said aloud.

What it mends it has found twice, with the same fence: rows that only just moved are nobody's
mistake. No term guards it: mending is a compare-and-set.
"""

from __future__ import annotations

import logging

from lateack_core.audit import Audit, Broken
from lateack_core.ground import Ground
from lateack_core.progress import announce

log = logging.getLogger("lateack.audit")

MENDED = ("running-without-lease", "lease-without-running-job")


class Auditor:
    """Remembers what it found the last time."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._audit = Audit(ground.postgres)
        self._found: set[Broken] = set()

    async def turn(self) -> int:
        """Look once, mend what was broken before already; returns how many rows are broken.

        Raises:
            LedgerUnavailable
        """
        broken = await self._audit.look()
        again = sorted(broken & self._found)
        mended = [one for one in again if one.rule in MENDED]
        if mended:
            await announce(self._ground.broker, await self._audit.mend(mended))
        await self._audit.record(sorted(broken), mended)
        for one in again:
            log.error(
                "broken rule: %s: %s, fence %d%s",
                one.rule, one.row_id, one.fence, "; mended" if one in mended else "",
            )  # fmt: skip
        self._found = broken - set(mended)
        return len(broken)
