"""A cold shutdown: whatever runs ends now, and its job goes back with no attempt spent (I10).

It is called from a signal's handler, so the main thread stands still meanwhile, wherever it was:
no body on the event loop goes on, nothing more is claimed or settled, and a loop that is blocked is
no obstacle. Only bodies in threads go on, until the process has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from uuid import UUID

from lateack_core.jobs import Ledger
from lateack_core.postgres import connect
from lateack_core.settings import Settings

# The database gets this long to take the jobs back; what it does not take waits for its lease.
PATIENCE = 2.0  # seconds
# A claim that was on its way when everything stopped has arrived by then.
ON_ITS_WAY = 0.05
# Some jobs could not be handed back (EX_TEMPFAIL).
EXIT_LEFT_BEHIND = 75


def hand_back(settings: Settings, worker_id: UUID) -> int | None:
    """Hand back every job of a worker, over a connection of its own; returns how many, None when
    some were not.

    Takes PATIENCE seconds and a little more, at most.
    """
    answers: list[int] = []

    def work() -> None:
        # Nothing here may log: the main thread may stand still with the log's lock in its hand.
        with contextlib.suppress(Exception):
            answers.append(asyncio.run(_hand_back(settings, worker_id)))

    thread = threading.Thread(target=work, name="lateack cold shutdown", daemon=True)
    thread.start()
    thread.join(PATIENCE + 0.5)
    return answers[0] if answers else None


async def _hand_back(settings: Settings, worker_id: UUID) -> int:
    assert settings.database_url
    async with asyncio.timeout(PATIENCE):
        postgres = await connect(
            settings.database_url,
            size=1,
            prepared_statements=settings.prepared_statements,
            name="lateack cold shutdown",
        )
        ledger = Ledger(postgres)
        moved, _ = await ledger.release_all(worker_id)
        count = len(moved)
        await ledger.remove_worker(worker_id)
        while True:
            await asyncio.sleep(ON_ITS_WAY)
            # A row may be locked for a moment, or by a transaction of a body that stands still now.
            moved, left = await ledger.release_all(worker_id)
            count += len(moved)
            if not left:
                return count
