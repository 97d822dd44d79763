"""Steps of a body, each statement fenced: two owners of a job never begin one side by side."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lateack_core.jobs import Owned
from lateack_sql import query
from tests.sql.desk import Desk

STEPS = ["begin_step", "repeat_step", "leave_step", "end_step"]


def args_of(statement: str, owned: Owned) -> list[Any]:
    more: dict[str, list[Any]] = {
        "begin_step": [1],
        "repeat_step": [1],
        "leave_step": ["Boom"],
        "end_step": [1, '"stale"'],
    }
    return [*owned, "charge", *more[statement]]


async def took_effect(desk: Desk, statement: str, owned: Owned) -> bool:
    rows = await desk.ground.postgres.fetch(statement, *args_of(statement, owned))
    return bool(rows and rows[0].get("held", True))


async def two_owners(desk: Desk) -> tuple[Owned, Owned]:
    """One that has lost its job, and the one that has it now and has begun the step."""
    job = await desk.submit()
    stale = await desk.run(job, lease=5)
    await desk.pass_time(6)
    assert len(await desk.ledger.reap(None, max_losses=3)) == 1
    fresh = await desk.run(job, lease=5)
    return stale, fresh


@pytest.mark.parametrize("statement", STEPS)
async def test_a_stale_owner_says_nothing_of_a_step(desk: Desk, statement: str) -> None:
    """REC-02, I2: whatever it says, the step stays as it is; the owner's word counts."""
    stale, fresh = await two_owners(desk)
    if statement != "begin_step":
        assert await took_effect(desk, "begin_step", fresh)
    before = await desk.connection.fetch("SELECT * FROM lateack.steps")
    assert not await took_effect(desk, statement, stale)
    assert await desk.connection.fetch("SELECT * FROM lateack.steps") == before
    assert await took_effect(desk, statement, fresh)


async def test_an_ended_step_is_not_ended_again(desk: Desk) -> None:
    """DEL-09: the first result stands, whoever comes later."""
    job = await desk.submit()
    first = await desk.run(job, lease=5)
    assert await took_effect(desk, "begin_step", first)
    fetch = desk.ground.postgres.fetch
    assert len(await fetch("end_step", *first, "charge", 1, '"first"')) == 1
    await desk.pass_time(6)
    await desk.ledger.reap(None, max_losses=3)
    second = await desk.run(job)
    assert await fetch("end_step", *second, "charge", 2, '"second"') == []
    assert await fetch("repeat_step", *second, "charge", 2) == []
    (found,) = await fetch("begin_step", *second, "charge", 2)
    assert (found["done"], found["result"]) == (True, '"first"')


@pytest.mark.parametrize("statement", STEPS)
async def test_a_job_is_not_lost_in_the_middle_of_a_step_word(desk: Desk, statement: str) -> None:
    """DEL-09: the reaper passes over a lease while a step of it is being written."""
    owned = await desk.run(await desk.submit(), lease=5)
    if statement != "begin_step":
        assert await took_effect(desk, "begin_step", owned)
    await desk.pass_time(6)
    async with desk.open_transaction() as one:
        await one.fetch(query(statement), *args_of(statement, owned))
        assert await desk.ledger.reap(None, max_losses=3) == []
        await one.execute("COMMIT")
    assert len(await desk.ledger.reap(None, max_losses=3)) == 1


@pytest.mark.parametrize("statement", STEPS)
async def test_a_step_word_waits_for_whoever_takes_the_job(desk: Desk, statement: str) -> None:
    """REC-02: a reaper that is being written counts as one that was: the word comes too late."""
    owned = await desk.run(await desk.submit(), lease=5)
    if statement != "begin_step":
        assert await took_effect(desk, "begin_step", owned)
    await desk.pass_time(6)
    before = await desk.connection.fetch("SELECT * FROM lateack.steps")
    async with desk.open_transaction() as reaper:
        assert len(await reaper.fetch(query("reap_jobs"), None, 3, 10, None)) == 1
        saying = asyncio.create_task(took_effect(desk, statement, owned))
        await desk.blocked()
        await reaper.execute("COMMIT")
        assert not await saying
    assert await desk.connection.fetch("SELECT * FROM lateack.steps") == before
