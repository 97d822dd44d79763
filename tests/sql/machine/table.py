"""The ledger's rows as the model's states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from tests.sql.machine.model import Ended, Leader, Lease, Row, Slip, State

# The clock of the machine's ledger stands still unless the machine moves it.
BEGIN = datetime(2040, 1, 1, tzinfo=UTC)
TABLES = ("jobs", "leases", "results", "attempts", "outbox", "joins", "idempotency", "leader")


@dataclass(frozen=True)
class Table:
    """Everything that is in the ledger at one moment."""

    now: float
    rows: Mapping[UUID, Row]
    outbox: tuple[Slip, ...]
    leader: Leader | None
    joins: list[dict[str, Any]]
    keys: Mapping[str, UUID]

    def families(self) -> list[frozenset[UUID]]:
        """The jobs by themselves, and each workflow with its steps."""
        by_root: dict[UUID, set[UUID]] = {}
        for job, row in self.rows.items():
            by_root.setdefault(row.root or job, set()).add(job)
        return [frozenset(family) for family in by_root.values()]

    def state(self, family: frozenset[UUID]) -> State:
        """A part of it."""
        rows = {job: self.rows[job] for job in family}
        outbox = tuple(slip for slip in self.outbox if slip.job in family)
        return State(self.now, rows, outbox, self.leader)


async def set_clock(connection: asyncpg.Connection, now: float) -> None:
    """Make it that time."""
    moment = (BEGIN + timedelta(seconds=now)).isoformat()
    await connection.execute(
        "CREATE OR REPLACE FUNCTION lateack.now() RETURNS timestamptz LANGUAGE sql STABLE "
        f"PARALLEL SAFE AS 'SELECT ''{moment}''::timestamptz'"
    )


async def read(connection: asyncpg.Connection, now: float) -> Table:
    """All of it, in one snapshot."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        found = {name: await connection.fetch(f"SELECT * FROM lateack.{name}") for name in TABLES}
    leases = {
        row["job_id"]: Lease(row["fence"], row["worker_id"], _seconds(row["until"]), row["waiting"])
        for row in found["leases"]
    }
    results = {row["job_id"]: row["result"] for row in found["results"]}
    attempts: dict[UUID, list[Ended]] = {}
    for row in sorted(found["attempts"], key=lambda row: row["fence"]):
        ended = Ended(row["fence"], row["attempt"], row["outcome"])
        attempts.setdefault(row["job_id"], []).append(ended)
    waiters = {row["waits_for"]: row["id"] for row in found["jobs"] if row["waits_for"]}
    rows = {
        row["id"]: Row(
            status=row["status"],
            fence=row["fence"],
            attempt=row["attempt"],
            losses=row["worker_losses"],
            max_retries=row["max_retries"],
            cancelling=row["cancel_requested_at"] is not None,
            created_at=_seconds(row["created_at"]),
            run_at=_seconds(row["run_at"]),
            expires_at=_maybe(row["expires_at"]),
            runnable_since=_maybe(row["runnable_since"]),
            enqueued_at=_maybe(row["enqueued_at"]),
            completed_at=_maybe(row["completed_at"]),
            error=row["error_code"],
            lease=leases.pop(row["id"], None),
            result=results.pop(row["id"], None),
            attempts=tuple(attempts.pop(row["id"], ())),
            waiter=waiters.get(row["feeds"]),
            root=row["root_id"],
            workflow=row["engine"] == "workflow",
        )
        for row in found["jobs"]
    }
    assert not leases, "leases of no job"
    assert not results, "results of no job"
    assert not attempts, "attempts of no job"
    return Table(
        now,
        rows,
        tuple(
            Slip(row["id"], row["job_id"], _seconds(row["due"]), row["republish"])
            for row in found["outbox"]
        ),
        next(
            (Leader(r["holder"], r["epoch"], _seconds(r["until"])) for r in found["leader"]), None
        ),
        [dict(row) for row in found["joins"]],
        {row["key"]: row["job_id"] for row in found["idempotency"]},
    )


def _seconds(moment: datetime) -> float:
    return (moment - BEGIN).total_seconds()


def _maybe(moment: datetime | None) -> float | None:
    return None if moment is None else _seconds(moment)
