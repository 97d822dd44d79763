"""One ledger, several connections to it, and a way to have them all begin before any can end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg

from lateack_core import postgres as door
from lateack_core.ground import open_ground
from lateack_core.jobs import Ledger
from lateack_core.settings import Settings
from lateack_core.submission import Submissions
from tests.sql.desk import open_desk
from tests.sql.machine.moves import Move
from tests.sql.machine.submit import OUTBOX_DELAY, Submit
from tests.sql.machine.table import TABLES, set_clock

ACTORS = 4
PATIENCE = 30.0
# What may hold everybody up until each has begun.
HOLDS = {
    "jobs": "SELECT FROM lateack.jobs ORDER BY id FOR UPDATE",
    "leases": "SELECT FROM lateack.leases ORDER BY job_id FOR UPDATE",
    "leader": "SELECT FROM lateack.leader FOR UPDATE",
    "outbox": "SELECT FROM lateack.outbox ORDER BY id FOR UPDATE",
}


class Bench:
    """One ledger with several connections to it; opened once, emptied for each example."""

    def __init__(self, looker: asyncpg.Connection, holder: asyncpg.Connection) -> None:
        self.looker = looker
        self.holder = holder
        self.ledgers: list[Ledger] = []
        self.doors: list[Submissions] = []

    async def empty(self) -> None:
        names = ", ".join(f"lateack.{name}" for name in TABLES)
        await self.looker.execute(f"TRUNCATE {names}")
        await set_clock(self.looker, 0)

    async def together(self, calls: Sequence[Move | Submit], held: str | None) -> list[Any]:
        """Make these calls at once, each on a connection of its own; their answers.

        `held` is a statement that takes locks: the calls begin while it has them, and it lets go
        when each of them is done or waits.
        """
        if held is not None:
            await self.holder.execute("BEGIN")
            await self.holder.execute(held)
        tasks = [
            asyncio.create_task(
                call.submit(self.doors[n])
                if isinstance(call, Submit)
                else call.send(self.ledgers[n])
            )
            for n, call in enumerate(calls)
        ]
        if held is not None:
            async with asyncio.timeout(PATIENCE):
                await self._all_wait(tasks)
            await self.holder.execute("ROLLBACK")
        async with asyncio.timeout(PATIENCE):
            return await asyncio.gather(*tasks)

    async def _all_wait(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        while open_ := sum(not task.done() for task in tasks):
            waiting = await self.looker.fetchval(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            if waiting >= open_:
                return
            await asyncio.sleep(0)


@asynccontextmanager
async def open_bench(settings: Settings) -> AsyncIterator[Bench]:
    """A bench on a fresh ledger."""
    async with AsyncExitStack() as stack:
        ground = await open_ground(settings, process="test")
        stack.push_async_callback(ground.close)
        desk = await stack.enter_async_context(open_desk(ground))
        assert settings.database_url
        holder = await asyncpg.connect(settings.database_url)
        stack.push_async_callback(holder.close)
        name = await desk.connection.fetchval("SELECT current_database()")
        await desk.connection.execute(f"ALTER DATABASE {name} SET deadlock_timeout = '100ms'")
        bench = Bench(desk.connection, holder)
        for _ in range(ACTORS):
            postgres = await door.connect(settings.database_url, size=1)
            stack.push_async_callback(postgres.close)
            ledger = Ledger(postgres)
            bench.ledgers.append(ledger)
            bench.doors.append(
                Submissions(ledger, ground.registry, ground.publisher, outbox_delay=OUTBOX_DELAY)
            )
        yield bench
