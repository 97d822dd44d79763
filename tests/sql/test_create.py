"""Keys: one (tenant, key), one job, whatever else is open at that moment (I4)."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import msgspec
import pytest

from lateack import Submission
from lateack_core.identifiers import uuid7
from lateack_core.settings import Settings
from lateack_core.submission import Accepted, NewJob, Submissions, _columns
from lateack_core.validation import Refused, check
from lateack_sql import query
from tests.sql.desk import Desk


def keyed(key: str | None = "k", **more: Any) -> Submission:
    return Submission(task="t.work", idempotency_key=key, **more)


async def create_in(desk: Desk, connection: asyncpg.Connection, *submissions: Submission) -> int:
    """The create statement on a connection of the test's own; how many it made."""
    checked = [await check(one, desk.ground.registry) for one in submissions]
    jobs = [NewJob(uuid7(), "default", one) for one in checked]
    return len(await connection.fetch(query("create_jobs"), *_columns(jobs), 2.0))


async def test_two_open_transactions_with_one_key(desk: Desk) -> None:
    """The second waits, makes nothing, and finds the first one's job in a statement of its own."""
    async with desk.open_transaction() as one, desk.open_transaction() as two:
        assert await create_in(desk, one, keyed()) == 1
        other = asyncio.create_task(create_in(desk, two, keyed()))
        await desk.blocked()
        await one.execute("COMMIT")
        assert await other == 0
        found = await two.fetch(query("find_by_keys"), ["default"], ["k"])
        assert len(found) == 1
    assert await desk.count("jobs") == 1


async def test_the_first_one_rolls_back(desk: Desk) -> None:
    """Then the second one's job is the job."""
    async with desk.open_transaction() as one, desk.open_transaction() as two:
        await create_in(desk, one, keyed())
        other = asyncio.create_task(create_in(desk, two, keyed()))
        await desk.blocked()
        await one.execute("ROLLBACK")
        assert await other == 1
        await two.execute("COMMIT")
    assert await desk.count("jobs") == 1


async def test_one_key_twice_in_one_batch(desk: Desk) -> None:
    """One statement with the same key twice makes one job."""
    assert await create_in(desk, desk.connection, keyed(), keyed(), keyed(None), keyed(None)) == 3
    assert await desk.count("jobs") == await desk.count("outbox") == 3


async def test_fifty_at_once(desk: Desk) -> None:
    """I4: fifty equal submissions through two doors, one job; other content is refused."""
    ground = desk.ground
    second = Submissions(ground.ledger, ground.registry, ground.publisher, outbox_delay=2.0)
    accepted = await asyncio.gather(
        *((ground.submissions if n % 2 else second).accept("default", keyed()) for n in range(50))
    )
    assert len({one.job.job_id for one in accepted}) == 1
    assert sum(not one.replayed for one in accepted) == 1
    with pytest.raises(Refused) as refused:
        await second.accept("default", keyed(args=[1]))
    assert refused.value.refusal.status == 409
    assert await desk.count("jobs") == 1
    # Another tenant's key is another key.
    assert not (await second.accept("other", keyed())).replayed


async def test_an_open_transaction_holds_up_its_own_key_only(desk: Desk) -> None:
    """Design §10.5: its neighbours go through; the blocked one alone is told to come again."""
    async with desk.open_transaction() as holder:
        await create_in(desk, holder, keyed("held"))
        answers = await desk.ground.submissions.accept_many(
            "default", [keyed("held"), *(keyed(f"free-{n}") for n in range(9))]
        )
        assert isinstance(answers[0], Refused)
        assert answers[0].refusal.type == "key-in-flight"
        assert all(isinstance(answer, Accepted) for answer in answers[1:])


async def test_opposite_order_of_keys_does_not_deadlock(desk: Desk) -> None:
    """Keys are inserted in order, whatever order they were given in."""
    for turn in range(5):
        keys = [f"{turn}-{n}" for n in range(40)]
        made = await asyncio.gather(
            *(_own_connection(desk, keys if n % 2 else keys[::-1]) for n in range(4))
        )
        assert sum(made) == 40
    assert await desk.deadlocks() == 0


async def _own_connection(desk: Desk, keys: list[str]) -> int:
    connection = await asyncpg.connect(desk.ground.settings.database_url)
    try:
        return await create_in(desk, connection, *(keyed(key) for key in keys))
    finally:
        await connection.close()


@pytest.mark.parametrize("scope", ["", "work"])
async def test_a_cap_is_exact(desk: Desk, settings: Settings, scope: str) -> None:
    """Five free places, two hundred submissions through two doors: exactly five are accepted."""
    settings = msgspec.structs.replace(settings, max_pending=f"{scope}=5".lstrip("="))
    ground = desk.ground
    doors = [
        Submissions(ground.ledger, ground.registry, ground.publisher, caps=settings.caps)
        for _ in range(2)
    ]
    answers = await asyncio.gather(
        *(doors[n % 2].accept("default", keyed(None)) for n in range(200)), return_exceptions=True
    )
    refused = [answer for answer in answers if isinstance(answer, Refused)]
    assert len(refused) == 195
    assert {one.refusal.status for one in refused} == {503}
    assert all(one.refusal.retry_after for one in refused)
    assert await desk.count("jobs", "status = 'pending'") == 5
