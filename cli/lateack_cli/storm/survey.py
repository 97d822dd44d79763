"""Reading what the checker looks at, past the proxies: ledger, business rows, streams, outside."""

from __future__ import annotations

from typing import Any

import msgspec

from lateack_core.stream import Broker

from .fleet import Fleet
from .outside import effects_of
from .snapshot import Queue, Snapshot
from .tasks import app

# Where each part is read from.
SOURCES = {
    "jobs": "lateack.jobs t",
    "results": "lateack.results t",
    "attempts": "lateack.attempts t",
    "steps": "lateack.steps t",
    "keys": "lateack.idempotency t",
    "effects": "storm.effects t",
    "ticks": "lateack.ticks t",
    "leases": "lateack.leases t",
    "outbox": "lateack.outbox t",
    "joins": "lateack.joins t WHERE decided_at IS NULL",
}


async def make_effects_table(fleet: Fleet) -> None:
    """The business table of the tasks, beside the ledger."""
    await fleet.postgres.script(
        "CREATE SCHEMA storm; CREATE TABLE storm.effects"
        " (job_id uuid, attempt int, at timestamptz DEFAULT clock_timestamp())"
    )


async def read_snapshot(fleet: Fleet) -> Snapshot:
    """Read everything, past the proxies.

    Raises:
        LedgerUnavailable, BrokerUnavailable
    """
    parts: dict[str, Any] = {}
    async with fleet.postgres.lend(idle=60.0) as lent:
        await lent.connection.execute("SET LOCAL TIME ZONE 'UTC'")
        for name, source in SOURCES.items():
            rows = await lent.connection.fetch(f"SELECT to_json(t) FROM {source}")  # noqa: S608
            parts[name] = [msgspec.Raw(row[0].encode()) for row in rows]
    parts["queues"] = [await _depth(fleet, name) for name in app.queues]
    parts["receipts"] = effects_of(fleet.folder / "outside")
    return msgspec.json.decode(msgspec.json.encode(parts), type=Snapshot)


async def unfinished(fleet: Fleet) -> dict[str, int]:
    """How much is still to be done: rows and entries that are on their way. Empty: nothing.

    Raises:
        LedgerUnavailable, BrokerUnavailable
    """
    live = "SELECT count(*) FROM lateack.jobs WHERE completed_at IS NULL"
    left: dict[str, int] = {}
    async with fleet.postgres.lend(idle=60.0) as lent:
        left["jobs"] = await lent.connection.fetchval(live)
        for name in ("leases", "outbox"):
            left[name] = await lent.connection.fetchval(f"SELECT count(*) FROM lateack.{name}")  # noqa: S608
    for name in app.queues:
        queue = await _depth(fleet, name)
        left[f"entries of {name}"] = queue.waiting + queue.reserved
    return {name: count for name, count in left.items() if count}


async def _depth(fleet: Fleet, queue: str) -> Queue:
    broker = Broker(fleet.servers.redis_url, size=1)
    try:
        return Queue(queue, *await broker.depth(queue))
    finally:
        await broker.close()
