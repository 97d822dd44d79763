"""Two at the same row at the same moment, on real connections: each pair in both orders."""

from __future__ import annotations

import asyncio
import random
import time
from uuid import UUID

import asyncpg
import pytest

from lateack_core.identifiers import uuid7
from lateack_core.jobs import Beat, Owned, Success
from lateack_core.outbox import Relay
from lateack_core.postgres import LedgerUnavailable
from lateack_sql import query
from tests.sql.desk import Desk

HALF_AN_HOUR = 1801.0


async def stale_pending(desk: Desk) -> UUID:
    """A job that has been published and pending for longer than the pending timeout."""
    job = await desk.submit()
    await desk.publish()
    await desk.pass_time(HALF_AN_HOUR)
    return job


async def clean(desk: Desk, connection: asyncpg.Connection | None = None) -> list[UUID]:
    """The cleanup's statement, on a connection of the test's own or on the desk's."""
    term = await desk.lead()
    where = connection or desk.connection
    rows = await where.fetch(query("fail_stale_pending"), *term, '{"": 1800}', 86400.0, 100, 60.0)
    return [row["id"] for row in rows]


async def test_two_claims(desk: Desk) -> None:
    """I3: one gets the job; the other waits for its row and gets nothing."""
    job = await desk.submit()
    async with desk.open_transaction() as one:
        assert len(await desk.claim_in(one, job)) == 1
        other = asyncio.create_task(desk.claim(job))
        await desk.blocked()
        await one.execute("COMMIT")
        assert await other == []
    assert (await desk.row(job))["attempt"] == 1
    assert await desk.count("leases") == 1


async def test_a_claim_that_is_rolled_back_leaves_the_job_free(desk: Desk) -> None:
    """A claim that never committed used nothing up."""
    job = await desk.submit()
    async with desk.open_transaction() as one:
        await desk.claim_in(one, job)
        other = asyncio.create_task(desk.claim(job))
        await desk.blocked()
        await one.execute("ROLLBACK")
        (claimed,) = await other
    assert claimed.attempt == 1


async def test_hundred_claims_at_once(desk: Desk) -> None:
    """I3: a hundred workers, one job."""
    job = await desk.submit()
    claims = await asyncio.gather(*(desk.claim(job, worker=uuid7()) for _ in range(100)))
    assert sum(map(len, claims)) == 1


async def test_claim_before_cleanup(desk: Desk) -> None:
    """SCH-01: cleanup skips a job that somebody is claiming at that moment."""
    job = await stale_pending(desk)
    async with desk.open_transaction() as claimer:
        (claimed,) = await desk.claim_in(claimer, job)
        assert await clean(desk) == []
        await claimer.execute("COMMIT")
    assert await clean(desk) == []
    assert await desk.complete(Owned(job, claimed["fence"]))


async def test_cleanup_before_claim(desk: Desk) -> None:
    """SCH-01, SCH-02: a claim waits for the cleanup, then gets nothing; the body never starts."""
    job = await stale_pending(desk)
    async with desk.open_transaction() as cleaner:
        assert await clean(desk, cleaner) == [job]
        claim = asyncio.create_task(desk.claim(job))
        await desk.blocked()
        await cleaner.execute("COMMIT")
        assert await claim == []
    row = await desk.row(job)
    assert (row["status"], row["error_code"], row["attempt"]) == ("failed", "PendingTimeout", 0)


async def test_cleanup_from_an_old_reading(desk: Desk) -> None:
    """DBS-01: what was completed after the cleanup's statement took its snapshot stays as it is."""
    job = await stale_pending(desk)
    await desk.lead()
    async with desk.open_transaction() as holder, desk.open_transaction() as cleaner:
        await holder.execute("SELECT FROM lateack.leader FOR UPDATE")
        cleanup = asyncio.create_task(clean(desk, cleaner))
        await desk.blocked()
        assert await desk.complete(await desk.run(job), "kept")
        await holder.execute("ROLLBACK")
        assert await cleanup == []
        await cleaner.execute("COMMIT")
    assert (await desk.status(job), await desk.result(job)) == ("succeeded", "kept")


@pytest.mark.parametrize("first", ["complete", "cancel"])
async def test_complete_against_cancel(desk: Desk, first: str) -> None:
    """I2: one outcome; a success that arrives after a mere request to cancel still counts."""
    job = await desk.submit()
    owned = await desk.run(job)
    async with desk.open_transaction() as one:
        if first == "complete":
            await one.fetch(query("complete_jobs"), [job], [owned.fence], ["1"], [None])
            other = asyncio.create_task(desk.ledger.cancel("default", [job]))
        else:
            await one.fetch(query("cancel_jobs"), "default", [job])
            other = asyncio.create_task(desk.ledger.complete([Success(owned, "1")]))
        await desk.blocked()
        await one.execute("COMMIT")
        assert len(await other) == (0 if first == "complete" else 1)
    assert await desk.status(job) == "succeeded"


async def test_cancel_against_claim(desk: Desk) -> None:
    """A job that was cancelled while it waited never starts."""
    job = await desk.submit()
    async with desk.open_transaction() as one:
        await one.fetch(query("cancel_jobs"), "default", [job])
        claim = asyncio.create_task(desk.claim(job))
        await desk.blocked()
        await one.execute("COMMIT")
        assert await claim == []
    assert await desk.status(job) == "cancelled"


@pytest.mark.parametrize("move", ["heartbeat", "complete", "reap"])
async def test_the_reaper_against_the_owner(desk: Desk, move: str) -> None:
    """I3, DBS-01: the reaper skips a row that its owner writes, and tests it again as it is."""
    job = await desk.submit()
    owned = await desk.run(job, lease=5)
    await desk.pass_time(6)
    async with desk.open_transaction() as owner:
        if move == "heartbeat":
            await owner.fetch(query(move), [job], [owned.fence], 30.0, [None], [None])
        elif move == "complete":
            await owner.fetch(query("complete_jobs"), [job], [owned.fence], [None], [None])
        else:
            await owner.fetch(query("reap_jobs"), None, 3, 10, None)
        assert await desk.ledger.reap(None, max_losses=3) == []
        await owner.execute("COMMIT")
    assert await desk.ledger.reap(None, max_losses=3) == []
    expected = {"heartbeat": "running", "complete": "succeeded", "reap": "pending"}
    assert await desk.status(job) == expected[move]


async def test_a_heartbeat_meets_a_locked_lease(desk: Desk) -> None:
    """Design §10.6: a row that somebody has locked is unknown, not lost; nobody waits for it."""
    job, free = await desk.submit_many(2)
    owned, other = await desk.run(job), await desk.run(free)
    async with desk.open_transaction() as holder:
        await holder.fetch("SELECT FROM lateack.leases WHERE job_id = $1 FOR UPDATE", job)
        renewals = await desk.ledger.heartbeat(
            [Beat(owned, None, None), Beat(other, None, None)], lease=30
        )
    assert {r.job_id: (r.renewed, r.held) for r in renewals} == {
        job: (False, True),
        free: (True, True),
    }


async def test_batches_in_opposite_order_do_not_deadlock(desk: Desk) -> None:
    """Batched moves lock their rows in order of id, whatever order they were given in."""
    jobs = await desk.submit_many(50)
    for _ in range(3):
        claims = await asyncio.gather(
            *(desk.claim(*(jobs if n % 2 else jobs[::-1]), lease=5) for n in range(8))
        )
        claimed = [one for batch in claims for one in batch]
        assert len(claimed) == 50
        owned = [one.owned for one in claimed]
        await desk.pass_time(6)
        moves = await asyncio.gather(
            desk.ledger.heartbeat([Beat(o, None, None) for o in owned], lease=5),
            desk.ledger.heartbeat([Beat(o, None, None) for o in owned[::-1]], lease=5),
            desk.ledger.reap(None, max_losses=9),
            desk.ledger.release(owned[::-1]),
            desk.ledger.release(owned),
            desk.ledger.reap(jobs[::-1], max_losses=9),
        )
        assert sum(len(batch) for batch in moves[2:]) == 50
        await desk.pass_time(6)
    assert await desk.deadlocks() == 0


async def test_everybody_at_once(desk: Desk) -> None:
    """DBS-06: workers, reaper, cleanup, expiry and cancels on one set of rows: no error, no
    deadlock, and each job has one outcome."""
    jobs = await desk.submit_many(120)
    term = await desk.lead()
    await desk.publish()
    ledger, deadline = desk.ledger, time.monotonic() + 2.5

    async def worker() -> None:
        while time.monotonic() < deadline:
            chosen = random.sample(jobs, 10)
            owned = [one.owned for one in await desk.claim(*chosen, lease=0.05, worker=uuid7())]
            await ledger.heartbeat([Beat(o, 1.0, None) for o in owned], lease=0.05)
            await ledger.release(owned[:1])
            for one in owned[1:3]:
                await desk.fail(one, retry_after=0.01)
            await ledger.complete([Success(o, None) for o in owned[3:]])

    async def sweeper() -> None:
        while time.monotonic() < deadline:
            await ledger.reap(None, max_losses=50, most=7)
            await ledger.expire()
            await ledger.fail_stale_pending(
                term, timeouts={"": 1.0}, unpublished_timeout=1.5, gone_after=1, most=5
            )
            await ledger.republish_lost(term, "work", (0, 9), older_than=0.2, most=5)
            await ledger.cancel("default", random.sample(jobs, 1))

    relay = Relay(desk.ground.postgres, desk.ground.broker, interval=0.1)

    async def relays() -> None:
        while time.monotonic() < deadline:
            await relay.turn()

    await asyncio.gather(worker(), worker(), worker(), sweeper(), sweeper(), relays())
    assert await desk.deadlocks() == 0
    running = await desk.count("jobs", "status = 'running'")
    assert await desk.count("leases") == running
    assert await desk.count("jobs", "attempt > max_retries + 1") == 0


async def test_a_frozen_transaction_holds_nobody_up_for_long(desk: Desk) -> None:
    """Design §10.3: the server ends a transaction of ours whose process froze inside it."""
    job = await desk.submit()
    began = time.monotonic()
    with pytest.raises(LedgerUnavailable):  # noqa: PT012
        async with desk.ground.postgres.transaction() as frozen:
            await frozen.fetch("claim_jobs", [job], uuid7(), 30.0, ["t.work"], [], None)
            # Nothing is said here for as long as a stopped process says nothing.
            claimed = await asyncio.wait_for(desk.claim(job), 14)
            waited = time.monotonic() - began
            assert len(claimed) == 1
            # Shorter than the next time-out that would help, the statement's own.
            assert 3 < waited < 13
            await frozen.fetch("ping")
