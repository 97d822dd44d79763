"""Jobs that were claimed and whose bodies have not begun: losing them costs nothing (I10)."""

from __future__ import annotations

from lateack_core.identifiers import uuid7
from lateack_core.jobs import Owned
from tests.sql.desk import Desk

TASKS = ["t.work", "t.once"]


async def claim_waiting(desk: Desk, task: str = "t.work", **options: int) -> Owned:
    """A job that waits for something else before its body begins."""
    job = await desk.submit(task, **options)
    (claimed,) = await desk.ledger.claim([job], desk.worker, lease=5.0, tasks=TASKS, waiting=[task])
    assert claimed.attempt == 1
    return claimed.owned


async def test_a_lost_job_that_had_not_begun_is_handed_back(desk: Desk) -> None:
    """I10: no attempt is spent, no loss is counted, also for one with a single attempt."""
    waiting = await claim_waiting(desk, max_retries=0)
    await desk.pass_time(6)
    for _ in range(5):
        (moved,) = await desk.ledger.reap(None, max_losses=3)
        assert (moved.status, moved.attempt) == ("pending", 0)
        (claimed,) = await desk.ledger.claim(
            [waiting.job_id], desk.worker, lease=5.0, tasks=TASKS, waiting=["t.work"]
        )
        assert claimed.attempt == 1
        await desk.pass_time(6)
    row = await desk.row(waiting.job_id)
    assert row["worker_losses"] == 0
    outcomes = [a["outcome"] for a in await desk.ledger.attempts("default", waiting.job_id)]
    assert outcomes == ["handed_back"] * 5


async def test_once_it_has_begun_it_is_lost_like_any_other(desk: Desk) -> None:
    """RTY-03, I10: the word that the body begins makes the attempt count."""
    begun = await claim_waiting(desk, max_retries=0)
    assert await desk.ledger.begin([begun]) == {begun}
    await desk.pass_time(6)
    (moved,) = await desk.ledger.reap(None, max_losses=3)
    assert (moved.status, moved.attempt) == ("failed", 1)
    assert (await desk.row(begun.job_id))["error_code"] == "WorkerLost"


async def test_what_is_no_longer_ours_does_not_begin(desk: Desk) -> None:
    """I2, I3: a stale fence is told so, and changes nothing for the new owner."""
    stale = await claim_waiting(desk)
    other = await claim_waiting(desk)
    await desk.pass_time(6)
    await desk.ledger.reap([stale.job_id], max_losses=3)
    await desk.ledger.claim([stale.job_id], uuid7(), lease=5.0, tasks=TASKS, waiting=["t.work"])
    # Past its expiry, and nobody took it: still ours.
    assert await desk.ledger.begin([stale, other]) == {other}
    assert await desk.count("leases", "waiting") == 1


async def test_at_most_once_may_run_when_it_has_not_begun(desk: Desk) -> None:
    """I1, I10: acks_late=False ends a job that may have begun; this one surely has not."""
    await claim_waiting(desk, "t.once")
    await desk.pass_time(6)
    (moved,) = await desk.ledger.reap(None, max_losses=3)
    assert (moved.status, moved.attempt) == ("pending", 0)


async def test_a_process_that_dies_before_any_body_begins_counts(desk: Desk) -> None:
    """RTY-01: or a job whose process cannot even start would go round for ever."""
    waiting = await claim_waiting(desk)
    (moved,) = await desk.ledger.lose([waiting], max_losses=1)
    assert (moved.status, moved.attempt) == ("failed", 1)


async def test_a_cancelled_one_ends_cancelled(desk: Desk) -> None:
    """CAN-02: its cancellation was asked for while it waited and its worker was lost."""
    waiting = await claim_waiting(desk)
    await desk.ledger.cancel("default", [waiting.job_id])
    await desk.pass_time(6)
    (moved,) = await desk.ledger.reap(None, max_losses=3)
    assert moved.status == "cancelled"


async def test_others_begin_at_their_claim(desk: Desk) -> None:
    """I10: bodies on the loop and in threads need no word; their lease never waits."""
    await desk.run(await desk.submit())
    assert await desk.count("leases", "waiting") == 0
