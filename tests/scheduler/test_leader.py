"""One leader, whoever is frozen, killed or cut off; a late one acts on nothing (SCH-03, SCH-05)."""

from __future__ import annotations

import asyncio
import signal
from uuid import UUID

import asyncpg
import msgspec
import pytest

from lateack.errors import DeclarationError
from lateack_core.identifiers import uuid7
from lateack_core.leader import Leadership
from lateack_core.settings import Settings
from lateack_scheduler.pending import fail_stale
from lateack_scheduler.scheduler import schedule, start
from tests.scheduler.replicas import replica
from tests.sql.desk import Desk, until


async def leader(desk: Desk) -> tuple[UUID, int] | None:
    """Who leads, and in which epoch."""
    row = await desk.connection.fetchrow(
        "SELECT holder, epoch FROM lateack.leader WHERE until > lateack.now()"
    )
    return (row["holder"], row["epoch"]) if row else None


async def test_one_of_two_leads(desk: Desk) -> None:
    postgres = desk.ground.postgres
    one, two = Leadership(postgres, ttl=30), Leadership(postgres, ttl=30)
    assert await one.campaign()
    assert not await two.campaign()
    assert await one.campaign()
    assert (one.term is not None, two.term) == (True, None)
    assert await leader(desk) == (one.holder, 1)


async def test_stepping_down_hands_over_at_once(desk: Desk) -> None:
    """A deploy of the leader costs no lease's length."""
    postgres = desk.ground.postgres
    one, two = Leadership(postgres, ttl=1000), Leadership(postgres, ttl=1000)
    await one.campaign()
    await one.step_down()
    assert one.term is None
    assert await two.campaign()
    assert await leader(desk) == (two.holder, 2)
    # Late words of the first change nothing.
    await one.step_down()
    assert await leader(desk) == (two.holder, 2)


async def test_a_term_that_is_over_moves_nothing(desk: Desk) -> None:
    """SCH-03: decided in the old term, carried out in the new one: nothing, whatever it is."""
    old = Leadership(desk.ground.postgres, ttl=10)
    await old.campaign()
    term = old.term
    assert term is not None
    job = await desk.submit()
    await desk.publish()
    await desk.pass_time(4000)
    # Nobody has taken over yet: its word still stands, since no other could have acted.
    new = Leadership(desk.ground.postgres, ttl=10)
    assert await new.campaign()
    assert new.term is not None
    assert new.term.epoch == term.epoch + 1
    assert await fail_stale(desk.ground, term) == 0
    assert await desk.ledger.republish_lost(term, "work", (0, 9), older_than=1) == 0
    assert await desk.status(job) == "pending"
    assert await fail_stale(desk.ground, new.term) == 1


async def test_an_action_holds_off_a_take_over(desk: Desk) -> None:
    """The fence locks: no new epoch begins in the middle of an old one's statement."""
    old = Leadership(desk.ground.postgres, ttl=10)
    await old.campaign()
    assert old.term is not None
    await desk.pass_time(11)
    async with desk.open_transaction() as action:
        await action.fetch(
            "SELECT FROM lateack.leader WHERE name = $1 AND holder = $2 AND epoch = $3 FOR SHARE",
            *old.term,
        )
        new = Leadership(desk.ground.postgres, ttl=0.5)
        assert not await new.campaign()
        await action.execute("COMMIT")
    assert await new.campaign()


async def test_a_frozen_leader_wakes(desk: Desk, settings: Settings) -> None:
    """SCH-03: the leader is stopped, the other cleans; the first wakes: no more."""
    jobs = await desk.submit_many(20)
    await desk.publish()
    async with replica(settings) as first:
        await first.hear("leading as scheduler")
        before = await leader(desk)
        async with replica(settings) as second:
            await second.hear("ready")
            first.signal(signal.SIGSTOP)
            await second.hear("leading as scheduler")
            await desk.connection.execute(
                "UPDATE lateack.jobs SET runnable_since = runnable_since - interval '31 minutes'"
            )
            await second.hear("20 jobs that nobody took have failed")
            after = await leader(desk)
            assert before is not None
            assert after is not None
            assert after[1] == before[1] + 1
            first.signal(signal.SIGCONT)
            await first.hear("lost the lead")
            assert await leader(desk) == after
    rows = [await desk.row(job) for job in jobs]
    assert {(row["status"], row["fence"]) for row in rows} == {("failed", 1)}
    assert "have failed" not in first.said


async def test_a_killed_leader_is_followed(desk: Desk, settings: Settings) -> None:
    """SCH-05: exactly one leader again, in a new epoch, within its lease."""
    async with replica(settings) as first:
        await first.hear("leading as scheduler")
        before = await leader(desk)
        async with replica(settings) as second:
            await second.hear("ready")
            first.signal(signal.SIGKILL)
            await second.hear("leading as scheduler")
            after = await leader(desk)
            assert before is not None
            assert after is not None
            assert (after[0] != before[0], after[1]) == (True, before[1] + 1)
            second.signal(signal.SIGTERM)
            assert await second.process.wait() == 0
    assert await leader(desk) is None


async def test_killed_sessions_and_held_locks(desk: Desk) -> None:
    """SCH-05, SCH-09: when the database recovers, there is a leader again, and its chores run."""
    ground = desk.ground
    ground.start()
    leadership = start(ground)

    async def leads() -> bool:
        return leadership.term is not None and await leader(desk) == (
            leadership.holder,
            leadership.term.epoch,
        )

    await until(leads)
    for _ in range(3):
        await desk.connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        await asyncio.sleep(0.1)
    async with desk.open_transaction() as holder:
        await holder.execute("SELECT FROM lateack.leader FOR UPDATE")

        async def lost() -> bool:
            return leadership.term is None

        await until(lost)
    await until(leads)
    late = await desk.submit(expires=0.001)

    async def expired() -> bool:
        return await desk.status(late) == "failed"

    await until(expired)


async def test_a_whole_scheduler(desk: Desk, settings: Settings) -> None:
    """Every chore takes a turn at the start of a term, whatever its interval; it stops in order."""
    stale = await desk.submit()
    await desk.publish()
    lost = await desk.submit()
    await desk.run(lost, lease=0.01)
    late = await desk.submit(expires=0.01)
    await desk.pass_time(1900)
    settings = msgspec.structs.replace(
        settings, cleanup_interval=3600.0, reap_interval=0.1, reconcile_interval=0.5
    )
    stop, ready = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(schedule(settings, stop=stop, ready=ready.set))
    await asyncio.wait_for(ready.wait(), 30)

    async def done() -> bool:
        return await desk.statuses([stale, lost, late]) == ["failed", "pending", "failed"]

    await until(done)
    codes = [(await desk.row(job))["error_code"] for job in (stale, late)]
    assert codes == ["PendingTimeout", "Expired"]
    # SCH-11: no worker was needed for any of it. BRK-01: a flushed broker is noticed by itself.
    await desk.ground.broker._redis.flushall()

    async def published_again() -> bool:
        return (await desk.ground.broker.depth("work"))[0] == 1

    await until(published_again)
    stop.set()
    await asyncio.wait_for(running, 30)
    assert await leader(desk) is None


async def test_a_database_that_was_never_migrated(empty_url: str, settings: Settings) -> None:
    """The message says what to run."""
    settings = msgspec.structs.replace(settings, database_url=empty_url)
    with pytest.raises(DeclarationError, match="lateack migrate"):
        await schedule(settings, stop=asyncio.Event(), ready=lambda: None)
    with pytest.raises(DeclarationError, match="DATABASE_URL"):
        await schedule(Settings(), stop=asyncio.Event(), ready=lambda: None)


async def test_the_clock_of_a_replica_does_not_matter(desk: Desk) -> None:
    """SCH-04 in spirit: only the ledger's clock says whether a lease is over."""
    one = Leadership(desk.ground.postgres, ttl=30)
    await one.campaign()
    await desk.pass_time(31)
    row = await desk.connection.fetchrow("SELECT until < lateack.now() AS over FROM lateack.leader")
    assert row is not None
    assert row["over"]
    assert await Leadership(desk.ground.postgres, ttl=30).campaign()
    with pytest.raises(asyncpg.UniqueViolationError):
        await desk.connection.execute(
            "INSERT INTO lateack.leader VALUES ('scheduler', $1, 1, lateack.now())", uuid7()
        )
