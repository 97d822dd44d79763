"""A clock to be set, and a leader's turns at given moments, for tests of schedules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from lateack.models import Schedule, ScheduleRequest
from lateack_core.jobs import Term
from lateack_core.recurrence import following
from lateack_core.schedules import Schedules, timing_of
from lateack_scheduler.periodic import Periodic
from tests.sql.desk import TENANT, Desk

_STANDING = (
    "CREATE OR REPLACE FUNCTION lateack.now() RETURNS timestamptz LANGUAGE sql STABLE "
    "PARALLEL SAFE AS 'SELECT timestamptz ''{}'''"
)


class Clockwork:
    """A ledger whose clock stands where the test puts it."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.schedules = Schedules(desk.ground.postgres)
        self.periodic = Periodic(desk.ground)
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.requests: dict[str, ScheduleRequest] = {}

    async def set(self, now: datetime | str) -> None:
        """Let the ledger's clock stand at a time."""
        self.now = datetime.fromisoformat(now) if isinstance(now, str) else now
        assert self.now.tzinfo is not None
        await self.desk.connection.execute(_STANDING.format(self.now.isoformat()))

    async def step(self, **by: float) -> None:
        """Move it on."""
        await self.set(self.now + timedelta(**by))

    async def add(self, name: str = "it", **fields: Any) -> None:
        """Make a schedule, as the service does."""
        request = ScheduleRequest(**{"task": "t.work", **fields})
        self.requests[name] = request
        await self.schedules.put(TENANT, name, request, following(timing_of(request), self.now))

    async def get(self, name: str = "it") -> Schedule:
        """A schedule's document."""
        found = await self.schedules.get(TENANT, name)
        assert found is not None
        return found

    async def turn(self, term: Term | None = None) -> int:
        """One turn of the leader; how many jobs it made."""
        return await self.periodic.turn(term or await self.desk.lead())

    async def ticks(self, name: str = "it") -> list[asyncpg.Record]:
        """A schedule's ticks with their jobs, oldest first."""
        rows: list[asyncpg.Record] = await self.desk.connection.fetch(
            "SELECT k.*, j.run_at, j.status, j.tenant_id FROM lateack.ticks k "
            "JOIN lateack.schedules s ON s.id = k.schedule_id "
            "LEFT JOIN lateack.jobs j ON j.id = k.job_id WHERE s.name = $1 ORDER BY k.due_at",
            name,
        )
        return rows

    async def told(self, name: str = "it") -> list[str]:
        """The ticks in words: `03:00 late catch_up`."""
        return [
            " ".join(filter(None, (f"{k['due_at']:%H:%M:%S}", k["outcome"], k["reason"])))
            for k in await self.ticks(name)
        ]

    async def end_jobs(self) -> None:
        """Let every job that waits succeed."""
        rows = await self.desk.connection.fetch(
            "SELECT id FROM lateack.jobs WHERE completed_at IS NULL"
        )
        for row in rows:
            assert await self.desk.complete(await self.desk.run(row["id"]))
