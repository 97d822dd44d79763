"""Telling the ledger that a body begins, when it had to wait after its claim (I10).

A job whose task runs in a process is claimed before there is a free process. Until its body begins
its lease says `waiting`, and losing the worker costs it no attempt. The word that it begins is
committed before the body is let go; bodies on the loop and in threads begin at their claim and need
no such word.
"""

from __future__ import annotations

import asyncio
import random

from lateack_core.group_commit import GroupCommit
from lateack_core.jobs import Ledger, Owned
from lateack_core.postgres import LedgerUnavailable

from .active import Active


class Beginnings:
    """Writes beginnings, gathered over all jobs of this worker."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._beginnings: GroupCommit[Owned, bool] = GroupCommit(self._begin)

    async def begin(self, active: Active) -> bool:
        """Note that the body starts now; false when the job is not ours any more.

        Waits for as long as the database is away: what starts without a record could be lost
        without one.
        """
        pause = 0.1
        while True:
            try:
                return await self._beginnings.put(active.job.owned)
            except LedgerUnavailable:
                await asyncio.sleep(pause * random.uniform(0.7, 1.3))
                pause = min(2.0, pause * 2)

    async def _begin(self, items: list[Owned]) -> list[bool]:
        ours = await self._ledger.begin(items)
        return [item in ours for item in items]
