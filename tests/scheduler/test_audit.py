"""The audit finds what is broken by hand, mends what it may, and is silent in a healthy life."""

from __future__ import annotations

import asyncio
import random

import pytest

from lateack.models import Step
from lateack_core.audit import Audit
from lateack_scheduler.audit import Auditor
from tests.sql.desk import Desk


async def said(desk: Desk) -> dict[str, tuple[int, int, bool]]:
    rows = await desk.connection.fetch("SELECT * FROM lateack.audits")
    return {
        row["rule"]: (row["broken"], row["repaired"], row["clean_at"] == row["looked_at"])
        for row in rows
    }


@pytest.mark.parametrize("fence", ["gone", "other"])
async def test_a_job_that_runs_without_a_lease_is_handed_back(fence: str, desk: Desk) -> None:
    """I1: nobody could ever end it. Found once it is nobody's mistake, found twice it is mended."""
    job = await desk.submit()
    await desk.run(job)
    if fence == "gone":
        await desk.connection.execute("DELETE FROM lateack.leases")
    else:
        await desk.connection.execute("UPDATE lateack.leases SET fence = 99")
    auditor = Auditor(desk.ground)
    count = 1 if fence == "gone" else 2
    assert await auditor.turn() == count
    assert await desk.status(job) == "running"
    assert (await said(desk))["running-without-lease"] == (1, 0, False)
    assert await auditor.turn() == count
    assert await desk.status(job) == "pending"
    assert await desk.count("leases") == 0
    assert await auditor.turn() == 0
    assert (await said(desk))["running-without-lease"] == (0, 1, True)
    assert await desk.complete(await desk.run(job))


async def test_what_a_person_has_to_look_at_is_named(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """I5: a join that was never decided, a step that waits for nothing."""
    own, steps = await desk.chain(3)
    await desk.connection.execute("ALTER TABLE lateack.jobs DISABLE TRIGGER step_ended")
    await desk.complete(await desk.run(steps[0]))
    await desk.connection.execute("ALTER TABLE lateack.jobs ENABLE TRIGGER step_ended")
    await desk.connection.execute("UPDATE lateack.jobs SET waits_for = NULL WHERE id = $1", own)
    auditor = Auditor(desk.ground)
    assert await auditor.turn() == 2
    assert await auditor.turn() == 2
    assert "broken rule: join-not-decided" in caplog.text
    assert f"broken rule: blocked-by-nothing: {own}" in caplog.text
    assert await desk.statuses([own, *steps]) == ["blocked", "succeeded", "blocked", "blocked"]


async def test_a_healthy_life_breaks_no_rule(desk: Desk) -> None:
    """The looks fall between the moves of everybody else, and see whole moves only."""
    auditor, over = Auditor(desk.ground), asyncio.Event()
    looks = 0

    async def watch() -> None:
        nonlocal looks
        while not over.is_set():
            assert await auditor.turn() == 0
            looks += 1

    watching = asyncio.create_task(watch())

    async def life(number: int) -> None:
        step = Step(task="t.work")
        own = await desk.accept(task="", group=[step, step], then=[step])
        for job in own.steps or []:
            owned = await desk.run(job.job_id)
            match random.randrange(4):
                case 0:
                    await desk.ledger.release([owned])
                    await desk.complete(await desk.run(job.job_id))
                case 1:
                    await desk.fail(owned)
                    return
                case _:
                    await desk.complete(owned)

    await asyncio.gather(*(life(number) for number in range(60)))
    over.set()
    await watching
    assert looks > 3


async def test_what_has_moved_since_it_was_found_is_left_alone(desk: Desk) -> None:
    """I2: mending is a compare-and-set: found with one fence, it runs under another by now."""
    job = await desk.submit()
    await desk.run(job)
    await desk.connection.execute("DELETE FROM lateack.leases")
    audit = Audit(desk.ground.postgres)
    (found,) = await audit.look()
    await desk.connection.execute(
        "UPDATE lateack.jobs SET status = 'pending', fence = fence + 1 WHERE id = $1", job
    )
    owned = await desk.run(job)
    assert await audit.mend([found]) == []
    assert await desk.complete(owned)
