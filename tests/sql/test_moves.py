"""Every move, one after the other: compare-and-set, fenced, and nothing else."""

from __future__ import annotations

from datetime import timedelta

import asyncpg
import pytest

from lateack_core.identifiers import uuid7
from lateack_core.jobs import Beat, Owned
from tests.sql.desk import Desk


async def test_a_stale_fence_writes_nothing(desk: Desk) -> None:
    """I2, REC-02: after a job went to another owner, the first one's words change nothing."""
    job = await desk.submit()
    stale = await desk.run(job, lease=10)
    await desk.pass_time(11)
    (moved,) = await desk.ledger.reap(None, max_losses=3)
    assert (moved.status, moved.attempt) == ("pending", 1)
    for owned in (stale, Owned(job, stale.fence + 1)):
        (renewal,) = await desk.ledger.heartbeat([Beat(owned, 50.0, None)], lease=10)
        assert (renewal.renewed, renewal.held) == (False, False)
        assert not await desk.complete(owned)
        assert await desk.fail(owned) is None
        assert await desk.ledger.release([owned]) == []
    fresh = await desk.run(job)
    assert fresh.fence > stale.fence
    assert not await desk.complete(stale, "mine")
    assert await desk.complete(fresh, "yours")
    assert await desk.result(job) == "yours"


async def test_a_lease_that_ran_out_is_still_its_owners(desk: Desk) -> None:
    """I3, design §10.7: as long as nobody took the job, renewing and completing work."""
    job = await desk.submit()
    owned = await desk.run(job, lease=10)
    await desk.pass_time(1000)
    assert await desk.claim(job) == []
    (renewal,) = await desk.ledger.heartbeat([Beat(owned, 12.5, "parse")], lease=10)
    assert renewal.renewed
    assert await desk.ledger.reap(None, max_losses=3) == []
    assert (await desk.ledger.get("default", [job]))[job].progress == 12.5
    await desk.pass_time(1000)
    assert await desk.complete(owned)


async def test_a_lost_job_is_claimable_only_after_the_reaper(desk: Desk) -> None:
    """I3: the lease's primary key keeps a second owner out until the reaper has removed it."""
    job = await desk.submit()
    await desk.run(job, lease=10)
    await desk.pass_time(11)
    assert await desk.claim(job) == []
    await desk.ledger.reap([job], max_losses=3)
    (again,) = await desk.claim(job)
    assert again.attempt == 2


async def test_a_terminal_row_never_changes(desk: Desk) -> None:
    """I2: whoever writes, the outcome stays; the ledger itself refuses."""
    job = await desk.submit()
    owned = await desk.run(job)
    assert await desk.complete(owned, 1)
    before = await desk.row(job)
    assert not await desk.complete(owned, 2)
    assert await desk.fail(owned) is None
    assert await desk.ledger.cancel("default", [job]) == []
    assert await desk.ledger.reap(None, max_losses=1) == []
    assert await desk.row(job) == before
    for change in ("status = 'pending', completed_at = NULL", "fence = fence + 1", "progress = 1"):
        with pytest.raises(asyncpg.RestrictViolationError, match="never changes"):
            await desk.connection.execute(f"UPDATE lateack.jobs SET {change} WHERE id = $1", job)
    assert await desk.row(job) == before


async def test_a_job_waits_for_its_time(desk: Desk) -> None:
    """A duplicate hint must not start a delayed job or a retry early."""
    job = await desk.submit(countdown=60)
    assert await desk.status(job) == "scheduled"
    assert await desk.claim(job) == []
    await desk.pass_time(61)
    owned = await desk.run(job)
    assert await desk.fail(owned, retry_after=30) == "retrying"
    assert await desk.claim(job) == []
    await desk.pass_time(31)
    assert (await desk.claim(job))[0].attempt == 2


async def test_a_job_past_its_latest_start_expires(desk: Desk) -> None:
    """RTY-09: it never runs; one that runs already is left alone."""
    late, running = await desk.submit(expires=60), await desk.submit(expires=60)
    owned = await desk.run(running)
    await desk.pass_time(61)
    assert await desk.claim(late) == []
    (moved,) = await desk.ledger.expire()
    row = await desk.row(late)
    assert (moved.job_id, row["status"], row["error_code"], row["attempt"]) == (
        late,
        "failed",
        "Expired",
        0,
    )
    assert await desk.complete(owned)


async def test_handing_back_costs_no_attempt(desk: Desk) -> None:
    """I10: a deploy, a drained worker."""
    job = await desk.submit()
    for _ in range(5):
        owned = await desk.run(job)
        (moved,) = await desk.ledger.release([owned])
        assert (moved.status, moved.attempt) == ("pending", 0)
    assert (await desk.claim(job))[0].attempt == 1


async def test_retries_end_with_max_retries(desk: Desk) -> None:
    """`max_retries` retries after the first attempt, then the error stands."""
    job = await desk.submit(max_retries=2)
    seen = []
    for _ in range(3):
        seen.append(await desk.fail(await desk.run(job), retry_after=0))
        await desk.pass_time(1)
    row = await desk.row(job)
    assert seen == ["retrying", "retrying", "failed"]
    assert (row["error_code"], row["attempt"]) == ("Boom", 3)
    outcomes = [attempt["outcome"] for attempt in await desk.ledger.attempts("default", job)]
    assert outcomes == ["retried", "retried", "failed"]


@pytest.mark.parametrize(("max_retries", "starts"), [(10, 3), (1, 2), (0, 1)])
async def test_a_job_that_kills_its_worker_ends(desk: Desk, max_retries: int, starts: int) -> None:
    """RTY-01, RTY-03: after three losses, or with no attempt left, whichever comes first."""
    job = await desk.submit(max_retries=max_retries)
    for number in range(1, starts + 1):
        await desk.run(job, lease=5)
        await desk.pass_time(6)
        (moved,) = await desk.ledger.reap(None, max_losses=3)
        assert moved.status == ("failed" if number == starts else "pending")
    row = await desk.row(job)
    assert (row["error_code"], row["attempt"]) == ("WorkerLost", starts)
    assert await desk.claim(job) == []
    outcomes = [attempt["outcome"] for attempt in await desk.ledger.attempts("default", job)]
    assert outcomes == ["lost"] * starts


async def test_an_owner_tells_of_its_own_loss(desk: Desk) -> None:
    """RTY-01: a process that died is known at once; what is no longer the owner's is left alone,
    though its lease may have run out."""
    job = await desk.submit()
    stale = await desk.run(job)
    (moved,) = await desk.ledger.lose([stale], max_losses=3)
    assert (moved.status, moved.attempt) == ("pending", 1)
    fresh = await desk.run(job, lease=5)
    await desk.pass_time(6)
    assert await desk.ledger.lose([stale], max_losses=3) == []
    assert await desk.complete(fresh)


async def test_an_early_acknowledged_job_is_not_run_twice(desk: Desk) -> None:
    """Design §4: acks_late=False is at most once; a crash ends it as WorkerLost."""
    job = await desk.submit("t.once", max_retries=5)
    await desk.run(job, lease=5)
    await desk.pass_time(6)
    (moved,) = await desk.ledger.reap(None, max_losses=3)
    assert moved.status == "failed"


async def test_cancelling(desk: Desk) -> None:
    """What waits ends at once; what runs is marked, and its end is its worker's word."""
    waits, runs, wins, lost = [await desk.submit() for _ in range(4)]
    owned, winner = await desk.run(runs), await desk.run(wins)
    await desk.run(lost, lease=5)
    moved = {
        m.job_id: m.status for m in await desk.ledger.cancel("default", [waits, runs, wins, lost])
    }
    assert moved == {waits: "cancelled", runs: "running", wins: "running", lost: "running"}
    assert await desk.claim(waits) == []
    assert len(await desk.ledger.cancelled_leases(desk.worker)) == 3
    assert await desk.fail(owned, retry_after=1) == "cancelled"
    assert await desk.complete(winner)
    await desk.pass_time(6)
    assert [m.status for m in await desk.ledger.reap(None, max_losses=3)] == ["cancelled"]


async def test_another_tenants_job_is_out_of_reach(desk: Desk) -> None:
    """I9: foreign and unknown are the same nothing."""
    job = await desk.submit()
    assert await desk.ledger.cancel("other", [job, uuid7()]) == []
    assert await desk.ledger.get("other", [job]) == {}
    assert await desk.ledger.attempts("other", job) == []
    assert await desk.ledger.page("other") == []
    assert await desk.status(job) == "pending"


async def test_an_unknown_task_is_put_back(desk: Desk) -> None:
    """Design §10.11: a worker that lacks the task spends no attempt, and the hint comes again."""
    job = await desk.submit()
    await desk.publish()
    assert await desk.ledger.claim([job], uuid7(), lease=30, tasks=["t.other"]) == []
    await desk.ledger.defer({job: 5.0})
    assert await desk.count("outbox") == 1
    row = await desk.row(job)
    assert (row["status"], row["attempt"]) == ("pending", 0)


async def test_the_moments_of_a_life(desk: Desk) -> None:
    """The times tell the story in order, by the ledger's clock."""
    job = await desk.submit(countdown=10)
    await desk.pass_time(20)
    owned = await desk.run(job)
    await desk.pass_time(20)
    await desk.complete(owned)
    row = await desk.row(job)
    assert row["created_at"] < row["run_at"] < row["started_at"] < row["completed_at"]
    assert row["run_at"] - row["created_at"] == timedelta(seconds=10)
