"""A desk beside the ledger: jobs are put on it, moved, looked at; its clock can be moved."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from lateack import App, Job, Submission
from lateack.models import Step
from lateack_core.ground import Ground
from lateack_core.identifiers import uuid7
from lateack_core.jobs import Claimed, Failure, Owned, Success, Term
from lateack_core.leader import Leadership
from lateack_core.registry import entries_of
from lateack_sql import query

PATIENCE = 30.0
TENANT = "default"

app = App("desk")


@app.task(name="t.work", queue="work")
async def work(*args: Any, **kwargs: Any) -> Any: ...


@app.task(name="t.once", queue="work", acks_late=False)
async def once(*args: Any) -> Any: ...


_CLOCK = (
    "CREATE OR REPLACE FUNCTION lateack.now() RETURNS timestamptz LANGUAGE sql STABLE "
    "PARALLEL SAFE AS 'SELECT statement_timestamp() + interval ''{} seconds'''"
)


class Desk:
    """One test's ledger, with a second connection of its own to look at it."""

    def __init__(self, ground: Ground, connection: asyncpg.Connection) -> None:
        self.ground = ground
        self.ledger = ground.ledger
        self.connection = connection
        self.worker = uuid7()
        self._shift = 0.0
        self._leadership: Leadership | None = None

    async def submit(self, task: str = "t.work", **options: Any) -> UUID:
        """Submit a job and return its id."""
        return (await self.accept(task, **options)).job_id

    async def accept(self, task: str = "t.work", **options: Any) -> Job:
        """Submit a job and return its document."""
        submission = Submission(task=task, **options)
        return (await self.ground.submissions.accept(TENANT, submission)).job

    async def submit_many(self, count: int, **options: Any) -> list[UUID]:
        """Submit so many jobs; their ids in order."""
        jobs = await asyncio.gather(*(self.submit(**options) for _ in range(count)))
        return sorted(jobs)

    async def chain(self, steps: int, **options: Any) -> tuple[UUID, list[UUID]]:
        """Submit a chain of `t.work`; the workflow's own id and the ids of its steps."""
        job = await self.accept(then=[Step(task="t.work")] * (steps - 1), **options)
        assert isinstance(job.steps, list)
        return job.job_id, [step.job_id for step in job.steps]

    async def claim(
        self, *job_ids: UUID, lease: float = 30.0, worker: UUID | None = None
    ) -> list[Claimed]:
        """Claim as this desk's worker."""
        return await self.ledger.claim(
            job_ids, worker or self.worker, lease=lease, tasks=["t.work", "t.once"]
        )

    async def run(self, job_id: UUID, lease: float = 30.0) -> Owned:
        """Claim one job that must be free."""
        (claimed,) = await self.claim(job_id, lease=lease)
        return claimed.owned

    async def complete(self, owned: Owned, result: Any = None) -> bool:
        """Complete; whether it was still the caller's."""
        text = msgspec.json.encode(result).decode()
        return bool(await self.ledger.complete([Success(owned, text)]))

    async def fail(self, owned: Owned, *, retry_after: float | None = None) -> str | None:
        """Fail; the status that followed, None when it was no longer the caller's."""
        moved = await self.ledger.fail(
            [Failure(owned, "Boom", "boom", {"type": "Boom"}, retry_after)]
        )
        return moved[0].status if moved else None

    async def row(self, job_id: UUID) -> asyncpg.Record:
        """The job's row as it is."""
        row = await self.connection.fetchrow("SELECT * FROM lateack.jobs WHERE id = $1", job_id)
        assert row is not None
        return row

    async def status(self, job_id: UUID) -> str:
        return str((await self.row(job_id))["status"])

    async def statuses(self, job_ids: Sequence[UUID]) -> list[str]:
        return [await self.status(job_id) for job_id in job_ids]

    async def count(self, table: str, where: str = "true") -> int:
        return int(
            await self.connection.fetchval(f"SELECT count(*) FROM lateack.{table} WHERE {where}")
        )

    async def result(self, job_id: UUID) -> Any:
        """The stored result, read as JSON; None when there is none."""
        text = await self.connection.fetchval(
            "SELECT result FROM lateack.results WHERE job_id = $1", job_id
        )
        return None if text is None else msgspec.json.decode(text)

    async def entries(self, stream: str) -> list[tuple[str, dict[str, str]]]:
        """What is in a stream of the broker."""
        rows: Any = await self.ground.broker._redis.xrange(stream)
        return [(str(entry_id), fields) for entry_id, fields in rows]

    async def pass_time(self, seconds: float) -> None:
        """Move the ledger's clock ahead."""
        self._shift += seconds
        await self.connection.execute(_CLOCK.format(self._shift))

    async def publish(self) -> None:
        """Let the relay publish all that is due, also what its owner was given time for."""
        await self.pass_time(self.ground.settings.outbox_delay + 0.1)
        while await self.ground.relay.turn():
            pass

    async def lead(self, *, ttl: float = 1e6) -> Term:
        """Become the leader; long enough that moving the clock does not end it."""
        if self._leadership is None:
            self._leadership = Leadership(self.ground.postgres, ttl=ttl)
            assert await self._leadership.campaign()
        assert self._leadership.term is not None
        return self._leadership.term

    async def blocked(self, count: int = 1) -> None:
        """Wait until so many sessions of this database wait for a lock."""

        async def enough() -> bool:
            waiting = await self.connection.fetchval(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            return bool(waiting >= count)

        await until(enough)

    @asynccontextmanager
    async def open_transaction(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection inside a transaction that the test commits or rolls back by hand."""
        dsn = self.ground.settings.database_url
        connection = await asyncpg.connect(dsn)
        await connection.execute("BEGIN")
        try:
            yield connection
        finally:
            await connection.close()

    async def claim_in(
        self, connection: asyncpg.Connection, *job_ids: UUID
    ) -> list[asyncpg.Record]:
        """The claim statement on a connection of the test's own."""
        rows: list[asyncpg.Record] = await connection.fetch(
            query("claim_jobs"), job_ids, uuid7(), 30.0, ["t.work", "t.once"], [], None
        )
        return rows

    async def deadlocks(self) -> int:
        """How many deadlocks this database has seen."""
        await self.connection.execute("SELECT pg_stat_clear_snapshot()")
        return int(
            await self.connection.fetchval(
                "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
            )
        )


@asynccontextmanager
async def open_desk(ground: Ground) -> AsyncIterator[Desk]:
    """A desk with its two tasks registered."""
    await ground.ledger.register_tasks(entries_of(app))
    connection = await asyncpg.connect(ground.settings.database_url)
    try:
        yield Desk(ground, connection)
    finally:
        await connection.close()


async def until(fact: Callable[[], Awaitable[bool]], patience: float = PATIENCE) -> None:
    """Wait until a fact holds; what it is, is the caller's name for it."""
    deadline = time.monotonic() + patience
    while not await fact():
        assert time.monotonic() < deadline, f"{fact.__qualname__} never came true"
        await asyncio.sleep(0.02)
