"""Every statement of a leader carries its term, and holds it: who was frozen acts on nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import pytest

from lateack_core.identifiers import uuid7
from lateack_core.jobs import Term
from lateack_core.leader import Leadership
from lateack_sql import query
from tests.sql.desk import Desk
from tests.sql.test_locks import stands

HALF_AN_HOUR = 1801.0
AGE = 60.0
ACTIONS = [
    "fail_stale_pending",
    "republish_lost",
    "fire_ticks",
    "hold_schedule",
    "replan_schedules",
    "prune_jobs",
    "prune_records",
]
SWEEPERS = ["fail_stale_pending", "republish_lost", "expire_jobs", "mark_runnable"]
TABLES = ["jobs", "outbox", "schedules", "ticks", "strays", "leader"]


class World(NamedTuple):
    """Something to do for every chore."""

    schedule: UUID
    due: datetime


@pytest.fixture
async def world(desk: Desk) -> World:
    """A job that has been pending and one that has been ended for long, a schedule that is due, an
    old stray."""
    assert await desk.complete(await desk.run(await desk.submit()))
    await desk.submit()
    await desk.publish()
    await desk.ledger.record_strays("stream", [("1-1", {}, "no job")])
    await desk.pass_time(HALF_AN_HOUR)
    row = await desk.connection.fetchrow(
        "INSERT INTO lateack.schedules (id, tenant_id, name, task, every, origin, next_due, "
        "created_at, updated_at) VALUES ($1, 'default', 'n', 't.work', 60, 'api', "
        "lateack.now() - interval '1 second', lateack.now(), lateack.now()) "
        "RETURNING id, next_due",
        uuid7(),
    )
    assert row is not None
    return World(row["id"], row["next_due"])


def args_of(action: str, term: Term, world: World) -> list[Any]:
    """The statement's parameters, under this term."""
    due, following = [world.due], [world.due + timedelta(seconds=60)]
    schedule, revision, null = [world.schedule], [1], [None]
    more: Mapping[str, list[Any]] = {
        "fail_stale_pending": ['{"": 1800}', 86400.0, 100, 60.0],
        "republish_lost": ["work", 0, 9, 1.0, 100],
        "fire_ticks": [
            schedule, revision, due, following, null, schedule, due, null, ["fired"], null, null,
        ],
        "hold_schedule": [world.schedule, 1, "why"],
        "replan_schedules": [schedule, revision, following, null],
        "prune_jobs": [AGE, AGE, 100],
        "prune_records": [AGE, 100],
        "step_down": [],
    }  # fmt: skip
    return [*term, *more[action]]


async def everything(connection: asyncpg.Connection) -> list[list[asyncpg.Record]]:
    """What the ledger holds, as this connection sees it."""
    return [await connection.fetch(f"SELECT * FROM lateack.{t} ORDER BY 1") for t in TABLES]


@pytest.mark.parametrize("action", [*ACTIONS, "step_down"])
@pytest.mark.parametrize("wrong", ["name", "holder", "epoch"])
async def test_a_term_is_all_of_it(desk: Desk, world: World, action: str, wrong: str) -> None:
    """SCH-03: another name's, another holder's or an earlier epoch: it acts on nothing."""
    term = await desk.lead()
    forged = {
        "name": term._replace(name="other"),
        "holder": term._replace(holder=uuid7()),
        "epoch": term._replace(epoch=term.epoch - 1),
    }[wrong]
    before = await everything(desk.connection)
    await desk.ground.postgres.fetch(action, *args_of(action, forged, world))
    assert await everything(desk.connection) == before
    # The true one does act.
    await desk.ground.postgres.fetch(action, *args_of(action, term, world))
    assert await everything(desk.connection) != before


@pytest.fixture
async def old(desk: Desk, world: World) -> Leadership:
    """A leader whose lease has just run out."""
    old = Leadership(desk.ground.postgres, ttl=10)
    assert await old.campaign()
    await desk.pass_time(11)
    return old


@pytest.mark.parametrize("action", ACTIONS)
async def test_an_action_of_a_term_that_ends_meanwhile(
    desk: Desk, world: World, old: Leadership, action: str
) -> None:
    """SCH-03: it waits for a take-over that is being written, and then acts on nothing."""
    assert old.term is not None
    args = args_of(action, old.term, world)
    async with desk.open_transaction() as successor:
        assert await successor.fetch(query("lead"), old.name, uuid7(), 10.0)
        seen = await everything(successor)
        acting = asyncio.create_task(desk.ground.postgres.fetch(action, *args))
        await stands(desk, acting)
        await successor.execute("COMMIT")
        await acting
    assert await everything(desk.connection) == seen


@pytest.mark.parametrize("action", ACTIONS)
async def test_no_term_begins_in_the_middle_of_an_action(
    desk: Desk, world: World, old: Leadership, action: str
) -> None:
    """SCH-03: whoever takes over waits until the action of the term before is committed."""
    assert old.term is not None
    async with desk.open_transaction() as acting:
        await acting.fetch(query(action), *args_of(action, old.term, world))
        new = Leadership(desk.ground.postgres, ttl=0.5)
        assert not await new.campaign()
        await acting.execute("COMMIT")
    assert await new.campaign()


@pytest.mark.parametrize("action", SWEEPERS)
async def test_a_sweeper_passes_over_what_is_locked(desk: Desk, action: str) -> None:
    """SCH-09: none of them waits for a row that somebody holds, or they would all stand still."""
    held, free = await desk.submit_many(2, expires=5 if action == "expire_jobs" else None)
    if action == "mark_runnable":
        args: list[Any] = [[held, free], [False, False]]
    elif action == "expire_jobs":
        args = [None]
    else:
        args = args_of(action, await desk.lead(), World(uuid7(), datetime.now(UTC)))
    await desk.publish()
    await desk.pass_time(HALF_AN_HOUR)
    async with desk.open_transaction() as holder:
        await holder.execute("SELECT FROM lateack.jobs WHERE id = $1 FOR UPDATE", held)
        rows = await desk.ground.postgres.fetch_with_lock_timeout(action, 500, *args)
        if action == "mark_runnable":
            assert {(row["job_id"], row["ready"], row["gone"]) for row in rows} == {
                (held, False, False),
                (free, True, False),
            }
        else:
            assert len(rows) == 1
