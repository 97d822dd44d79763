"""Rows are locked in the order of their ids, whatever order they lie in and were asked for in.

Two batches that lock in different orders deadlock, but only now and then. So nobody waits for luck
here: one row is held, the batch waits for it, and then the row that comes after it must be free.
The rows lie in the wrong order on disk, the ids are given in the wrong order, and no index helps.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from lateack_core.identifiers import uuid7
from lateack_core.jobs import Claimed, Failure, Ledger, Moved, Owned, Success
from lateack_core.postgres import Postgres, Row
from lateack_core.submission import NewJob, _columns
from lateack_core.validation import check
from lateack_sql import query
from tests.sql.desk import Desk
from tests.sql.test_create import create_in, keyed

# Whatever sorts as a side effect is off, so that only an ORDER BY puts the rows in order.
UNSORTED = ";".join(
    f"SET enable_{way} = off"
    for way in ("indexscan", "indexonlyscan", "bitmapscan", "mergejoin", "sort", "incremental_sort")
)


@asynccontextmanager
async def unsorted(desk: Desk) -> AsyncIterator[asyncpg.Connection]:
    """A connection whose plans take rows as they lie on disk."""
    async with desk.open_transaction() as connection:
        await connection.execute(UNSORTED)
        yield connection


async def turn_round(desk: Desk, table: str, key: str, ids: list[UUID]) -> None:
    """Rewrite rows one by one, the greatest first, so that they lie in falling order."""
    for one in reversed(ids):
        await desk.connection.execute(
            f"UPDATE lateack.{table} SET {key} = {key} WHERE {key} = $1", one
        )
    places = await desk.connection.fetch(f"SELECT {key} FROM lateack.{table} ORDER BY ctid")
    assert [row[key] for row in places] == ids[::-1]


async def is_free(desk: Desk, table: str, key: str, one: Any) -> bool:
    """Whether nobody has this row locked."""
    rows = await desk.connection.fetch(
        f"SELECT FROM lateack.{table} WHERE {key} = $1 FOR UPDATE SKIP LOCKED", one
    )
    return len(rows) == 1


async def stands(desk: Desk, *moving: asyncio.Task[Any]) -> None:
    """Wait until all of these wait for a lock."""
    blocked = asyncio.create_task(desk.blocked(len(moving)))
    await asyncio.wait({blocked, *moving}, return_when=asyncio.FIRST_COMPLETED)
    for one in moving:
        assert not one.done(), f"it did not wait: {one}"
    await blocked


class Through(Postgres):
    """The door to one connection, inside of whatever transaction it is in."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def fetch(self, name: str, *args: Any) -> list[Row]:
        rows: list[Row] = await self._connection.fetch(query(name), *args)
        return rows


def move_of(
    move: str, connection: asyncpg.Connection, owned: Sequence[Owned]
) -> Coroutine[Any, Any, Sequence[Claimed | Moved]]:
    """The move of these jobs, in the order in which they are given."""
    ledger, ids = Ledger(Through(connection)), [one.job_id for one in owned]
    match move:
        case "claim":
            return ledger.claim(ids, uuid7(), lease=30.0, tasks=["t.work"])
        case "complete":
            return ledger.complete([Success(one, "1") for one in owned])
        case "fail":
            return ledger.fail([Failure(one, "Boom", "", {}, None) for one in owned])
        case "release":
            return ledger.release(owned)
        case _:
            return ledger.cancel("default", ids)


@pytest.mark.parametrize("move", ["claim", "complete", "fail", "release", "cancel"])
async def test_a_move_locks_jobs_in_order(desk: Desk, move: str) -> None:
    """DBS-06: also when rows, arrays and plan would have it the other way round."""
    jobs = await desk.submit_many(3)
    owned = [Owned(job, 0) for job in jobs]
    if move not in ("claim", "cancel"):
        owned = [await desk.run(job) for job in jobs]
        await turn_round(desk, "leases", "job_id", jobs)
    await turn_round(desk, "jobs", "id", jobs)
    async with desk.open_transaction() as holder, unsorted(desk) as mover:
        await holder.execute("SELECT FROM lateack.jobs WHERE id = $1 FOR UPDATE", jobs[0])
        moving = asyncio.create_task(move_of(move, mover, owned[::-1]))
        await stands(desk, moving)
        assert [await is_free(desk, "jobs", "id", job) for job in jobs] == [False, True, True]
        await holder.execute("ROLLBACK")
        assert sorted(one.job_id for one in await moving) == jobs
        assert [await is_free(desk, "jobs", "id", job) for job in jobs] == [False] * 3


async def test_bodies_begin_in_order(desk: Desk) -> None:
    """DBS-06: the same for the leases that are told so."""
    jobs = await desk.submit_many(3)
    fences = [(await desk.run(job)).fence for job in jobs]
    await turn_round(desk, "leases", "job_id", jobs)
    async with desk.open_transaction() as holder, unsorted(desk) as mover:
        await holder.execute("SELECT FROM lateack.leases WHERE job_id = $1 FOR UPDATE", jobs[0])
        moving = asyncio.create_task(mover.fetch(query("begin_jobs"), jobs[::-1], fences))
        await stands(desk, moving)
        free = [await is_free(desk, "leases", "job_id", job) for job in jobs]
        assert free == [False, True, True]
        await holder.execute("ROLLBACK")
        assert len(await moving) == 3


async def test_a_step_is_cancelled_behind_the_step_before_it(desk: Desk) -> None:
    """DBS-06: whoever ends a step goes on to the one that waits for it; so a cancellation of the
    later one, together with another job, waits for the earlier one and holds nothing meanwhile."""
    _, steps = await desk.chain(2)
    other = await desk.submit()
    owned = [await desk.run(steps[0]), await desk.run(other)]
    async with (
        desk.open_transaction() as holder,
        desk.open_transaction() as first,
        desk.open_transaction() as second,
    ):
        await holder.execute("SELECT FROM lateack.jobs WHERE id = $1 FOR UPDATE", other)
        completing = asyncio.create_task(move_of("complete", first, owned))
        await stands(desk, completing)
        both = [Owned(steps[1], 0), Owned(other, 0)]
        cancelling = asyncio.create_task(move_of("cancel", second, both))
        await stands(desk, completing, cancelling)
        # When it holds the later step, the two wait for each other from here on.
        await holder.execute("ROLLBACK")
        assert sorted(one.job_id for one in await completing) == [steps[0], other]
        await first.execute("COMMIT")
        assert [one.job_id for one in await cancelling] == [steps[1]]
        await second.execute("COMMIT")
    assert await desk.statuses([*steps, other]) == ["succeeded", "cancelled", "succeeded"]


async def test_keys_are_inserted_in_order(desk: Desk) -> None:
    """SUB-01: a batch that waits for one key has not taken the one that comes after it."""
    checked = [await check(keyed(key), desk.ground.registry) for key in "ba"]
    columns = _columns([NewJob(uuid7(), "default", one) for one in checked])
    # It would wait for 200 ms only, which is soon over on a busy machine.
    patient = query("create_jobs").replace("200ms", "20s")
    async with desk.open_transaction() as holder, unsorted(desk) as maker:
        assert await create_in(desk, holder, keyed("a")) == 1
        making = asyncio.create_task(maker.fetch(patient, *columns, 2.0))
        await stands(desk, making)
        assert await create_in(desk, desk.connection, keyed("b")) == 1
        await holder.execute("ROLLBACK")
        assert len(await making) == 1


async def test_tasks_are_registered_in_order(desk: Desk) -> None:
    """Workers that start together tell the same tasks, each in an order of its own."""
    told = (
        '[{"name": "t.work", "queue": "q", "priority": 5, "parameters": {}, "max_retries": 1,'
        ' "acks_late": true, "ignore_result": false},'
        ' {"name": "t.once", "queue": "q", "priority": 5, "parameters": {}, "max_retries": 1,'
        ' "acks_late": true, "ignore_result": false}]'
    )
    async with desk.open_transaction() as holder, unsorted(desk) as teller:
        await holder.execute("SELECT FROM lateack.tasks WHERE name = 't.once' FOR UPDATE")
        telling = asyncio.create_task(teller.fetch(query("register_tasks"), told))
        await stands(desk, telling)
        assert await is_free(desk, "tasks", "name", "t.work")
        await holder.execute("ROLLBACK")
        await telling


async def test_caps_are_locked_in_order(desk: Desk) -> None:
    """SUB-03: two processes that admit to the same queues do not wait for each other."""
    names = [f"q{n}" for n in range(8)]
    async with desk.open_transaction() as holder, desk.open_transaction() as admitting:
        await holder.fetch(query("lock_caps"), names[:1])
        waiting = asyncio.create_task(admitting.fetch(query("lock_caps"), names[::-1]))
        await stands(desk, waiting)
        held = await desk.connection.fetchval(
            "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database "
            "WHERE datname = current_database() AND locktype = 'advisory' AND granted"
        )
        assert held == 1
        await holder.execute("ROLLBACK")
        await waiting
