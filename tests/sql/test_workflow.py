"""Chains: the next step moves in the transaction that ended the one before, exactly once (I5)."""

from __future__ import annotations

import asyncio

from lateack_core.jobs import Success
from lateack_sql import query
from tests.sql.desk import Desk


async def test_a_chain_hands_results_on(desk: Desk) -> None:
    """I5: each result is the next first argument, and the last one is the workflow's own."""
    own, steps = await desk.chain(3)
    assert await desk.statuses([own, *steps]) == ["blocked", "pending", "blocked", "blocked"]
    assert await desk.claim(own, *steps[1:]) == []
    for number, step in enumerate(steps):
        (claimed,) = await desk.claim(*steps)
        assert claimed.job_id == step
        assert claimed.upstream == (None if number == 0 else f'{{"page":{number - 1}}}')
        await desk.complete(claimed.owned, {"page": number})
    assert await desk.statuses([own, *steps]) == ["succeeded"] * 4
    assert await desk.result(own) == {"page": 2}
    row = await desk.row(own)
    assert (row["attempt"], row["progress"]) == (0, 100)


async def test_a_next_step_is_released_once(desk: Desk) -> None:
    """I5: however often the end of a step is told, its waiter is published once."""
    _, steps = await desk.chain(2)
    await desk.publish()
    owned = await desk.run(steps[0])
    told = await asyncio.gather(*(desk.ledger.complete([Success(owned, None)]) for _ in range(8)))
    assert sum(map(len, told)) == 1
    assert await desk.count("outbox", f"job_id = '{steps[1]}'") == 1
    assert await desk.status(steps[1]) == "pending"


async def test_nothing_moves_before_the_commit(desk: Desk) -> None:
    """I5: a success that is rolled back releases nothing."""
    own, steps = await desk.chain(2)
    owned = await desk.run(steps[0])
    async with desk.open_transaction() as one:
        await one.fetch(query("complete_jobs"), [steps[0]], [owned.fence], ["1"], [None])
        assert await desk.status(steps[1]) == "blocked"
        await one.execute("ROLLBACK")
    assert await desk.statuses([own, *steps]) == ["blocked", "running", "blocked"]
    assert await desk.complete(owned)
    assert await desk.status(steps[1]) == "pending"


async def test_a_failure_runs_down_the_chain(desk: Desk) -> None:
    """I5, I1: what can never run ends at once, and names the step that failed."""
    own, steps = await desk.chain(3)
    assert await desk.fail(await desk.run(steps[0])) == "failed"
    assert (await desk.row(steps[0]))["error_code"] == "Boom"
    for job in (own, *steps[1:]):
        row = await desk.row(job)
        assert (row["status"], row["error_code"]) == ("failed", "UpstreamFailed")
        assert row["error_message"] == "step t.work failed: Boom"
        assert str(steps[0]) in row["error_info"]
    assert await desk.count("joins", "decided_at IS NULL") == 0


async def test_a_retry_keeps_the_chain_waiting(desk: Desk) -> None:
    own, steps = await desk.chain(2)
    assert await desk.fail(await desk.run(steps[0]), retry_after=0) == "retrying"
    assert await desk.statuses([own, steps[1]]) == ["blocked", "blocked"]


async def test_cancelling_a_workflow(desk: Desk) -> None:
    """Design §10.13: its steps are cancelled too; what ended before stays as it was."""
    own, steps = await desk.chain(3)
    await desk.complete(await desk.run(steps[0]), 1)
    running = await desk.run(steps[1])
    await desk.ledger.cancel("default", [own])
    assert await desk.statuses([own, *steps]) == ["cancelled", "succeeded", "running", "cancelled"]
    assert await desk.complete(running)
    assert await desk.statuses([own, *steps]) == [
        "cancelled",
        "succeeded",
        "succeeded",
        "cancelled",
    ]


async def test_cancelling_a_step_cancels_what_waits_for_it(desk: Desk) -> None:
    own, steps = await desk.chain(3)
    await desk.ledger.cancel("default", [steps[0]])
    assert await desk.statuses([own, *steps]) == ["cancelled"] * 4


async def test_a_step_that_times_out_ends_the_chain(desk: Desk) -> None:
    """I1: cleanup and reaper feed joins like any other end."""
    own, steps = await desk.chain(2, max_retries=0)
    await desk.run(steps[0], lease=5)
    await desk.pass_time(6)
    await desk.ledger.reap(None, max_losses=3)
    assert (await desk.row(own))["error_message"] == "step t.work failed: WorkerLost"


async def test_a_blocked_step_does_not_time_out(desk: Desk) -> None:
    """The pending timeout counts from the moment a step became runnable."""
    own, steps = await desk.chain(2)
    owned = await desk.run(steps[0], lease=10_000)
    await desk.publish()
    await desk.pass_time(5000)
    term = await desk.lead()
    stale = await desk.ledger.fail_stale_pending(
        term, timeouts={"": 1800.0}, unpublished_timeout=86400, gone_after=60
    )
    assert stale == []
    await desk.complete(owned)
    assert await desk.statuses([own, steps[1]]) == ["blocked", "pending"]


async def test_the_last_step_ends_while_the_workflow_is_cancelled(desk: Desk) -> None:
    """Lock order: the workflow's own row comes after its steps, so neither waits for the other."""
    for _ in range(15):
        own, steps = await desk.chain(2)
        await desk.complete(await desk.run(steps[0]))
        owned = await desk.run(steps[1])
        await asyncio.gather(
            desk.ledger.complete([Success(owned, None)]), desk.ledger.cancel("default", [own])
        )
        assert await desk.status(own) in ("succeeded", "cancelled")
    assert await desk.deadlocks() == 0
