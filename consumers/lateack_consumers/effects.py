"""Effects that are taken once: steps, and transactions whose commit is their job's success.

Bodies in this process come here through `LocalEffects`; those in child processes ask over their
link, and the worker's side of it calls `Effector.move`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from lateack.effects import Found, Move
from lateack.errors import InvalidResult, LeaseLost, ResultTooLarge, TransactionLost
from lateack_core.jobs import Ledger, Moved, Success
from lateack_core.postgres import Blocked, LedgerUnavailable, Lent, Postgres, connect
from lateack_core.settings import Settings
from lateack_core.steps import Steps

from .active import Active
from .settler import Settler
from .verdict import of_value

log = logging.getLogger("lateack.effects")

# A transaction may be idle for so long; the locks of a worker that was frozen inside end with it.
LONGEST_IDLE = 60.0


class Effector:
    """What the bodies of one worker share to take effect."""

    def __init__(self, settings: Settings, ledger: Ledger, settler: Settler) -> None:
        self._settings = settings
        self._ledger = ledger
        self._steps = Steps(ledger.postgres)
        self._settler = settler
        self._lending: Postgres | None = None
        self._opening = asyncio.Lock()

    async def move(self, active: Active, move: Move) -> Found:
        """Write a step's move until the database answers: its job is kept meanwhile."""
        pause = 0.1
        while active.ours:
            try:
                return await self._steps.move(active.job.owned, active.job.attempt, move)
            except LedgerUnavailable as error:
                log.debug("step %s waits for the database: %s", move.name, error)
                await asyncio.sleep(pause * random.uniform(0.7, 1.3))
                pause = min(2.0, pause * 2)
        return Found(held=False)

    @asynccontextmanager
    async def transaction(self, active: Active, result: Callable[[], Any]) -> AsyncIterator[Any]:
        """A connection in a transaction; its commit ends `active` with what `result` returns.

        Raises:
            LeaseLost, TransactionLost, InvalidResult: nothing was committed, or nobody knows.
        """
        since = time.monotonic()
        lending = await self._opened()
        try:
            async with lending.lend(idle=LONGEST_IDLE) as lent:
                try:
                    yield lent.connection
                    await self._commit(active, lent, _success(active, result()))
                except Exception as error:
                    if not lent.is_outage(error):
                        raise
                    raise await self._lost(error, since) from error
        except LedgerUnavailable as error:
            raise TransactionLost(f"it could not begin: {error}", outage=True) from error
        except Blocked as error:
            raise TransactionLost(f"its job's row is locked: {error}", outage=True) from error

    async def close(self) -> None:
        """Close the connections."""
        if self._lending is not None:
            await self._lending.close()

    async def _opened(self) -> Postgres:
        async with self._opening:
            if self._lending is None:
                assert self._settings.database_url
                self._lending = await connect(
                    self._settings.database_url,
                    size=self._settings.transaction_pool_size,
                    prepared_statements=self._settings.prepared_statements,
                    name="lateack transactions",
                    lending=True,
                )
        return self._lending

    async def _commit(self, active: Active, lent: Lent, success: Success) -> None:
        """Commit, whatever interrupts the body meanwhile: half a commit would be nobody's."""
        # The lease ends inside the commit: from here on its end is no sign of a loss.
        active.settling = True
        commit = asyncio.ensure_future(self._ledger.complete_in(lent, success))
        interruption: BaseException | None = None
        while not commit.done():
            try:
                await asyncio.wait({commit})
            except BaseException as error:
                interruption = error
        moved = self._outcome(active, lent, commit)
        if moved is None:
            raise LeaseLost("this attempt does not own the job any more; nothing was committed")
        self._settler.committed(active, moved)
        if interruption is not None:
            raise interruption

    def _outcome(
        self, active: Active, lent: Lent, commit: asyncio.Future[Moved | None]
    ) -> Moved | None:
        try:
            return commit.result()
        except Exception:
            # A definite no (such as a deferred constraint) leaves the job as it was.
            active.settling = lent.broken
            raise

    async def _lost(self, error: Exception, since: float) -> TransactionLost:
        """The connection broke: by an outage, or by what the body did on it?"""
        postgres = self._ledger.postgres
        try:
            writable = (await postgres.fetch("takes_writes"))[0]["writable"]
            outage = not writable or postgres.settled_for < time.monotonic() - since
        except LedgerUnavailable:
            outage = True
        return TransactionLost(f"the database failed in it: {error}", outage=outage)


class LocalEffects:
    """The effects of one body in this process."""

    def __init__(self, active: Active, effector: Effector) -> None:
        self._active = active
        self._effector = effector
        self._loop = asyncio.get_running_loop()

    async def move(self, move: Move) -> Found:
        return await self._effector.move(self._active, move)

    def move_sync(self, move: Move) -> Found:
        if self._active.task.is_async:
            raise TypeError("in an async task: `await ctx.step(…)`; ctx.step_sync is for def tasks")
        return asyncio.run_coroutine_threadsafe(self.move(move), self._loop).result()

    def transaction(self, result: Callable[[], Any]) -> AbstractAsyncContextManager[Any]:
        if not self._active.task.is_async:
            raise TypeError("ctx.transaction() needs an async task: declare it with `async def`")
        return self._effector.transaction(self._active, result)


def _success(active: Active, value: Any) -> Success:
    verdict = of_value(active.task, value, ignore_result=active.job.ignore_result)
    if verdict.code is not None:
        kind = ResultTooLarge if verdict.code == "ResultTooLarge" else InvalidResult
        raise kind(verdict.message)
    return Success(active.job.owned, verdict.result)
