"""Chords on workers that die: the body runs once, on all results (I5)."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from lateack import chain, group
from lateack_core.registry import entries_of
from lateack_core.settings import Settings
from tests.consumers.chord_tasks import after, app, member, number, total
from tests.consumers.conftest import Caller, lines, result_of, until
from tests.consumers.processes import Process, lateack
from tests.sql.desk import until as until_true

WIDTH = 1000


async def ready(settings: Settings, log: Path, stack: AsyncExitStack) -> Process:
    words = ("worker", "-A", "tests.consumers.chord_tasks:app", "-c", "20")
    process = await stack.enter_async_context(lateack(settings, log, *words))
    await until(lambda: log.exists() and "ready: 20 slots" in log.read_text())
    return process


async def test_a_wide_chord_in_a_chain_while_workers_are_killed(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """I5, I2: a thousand members; every worker dies in the middle and a new one comes. The chord's
    body and what follows each succeed once, on every member's one result."""
    await caller.ground.ledger.register_tasks(entries_of(app))
    effects = tmp_path / "effects"
    workflow = chain(
        number.s(1),
        group(member.s(value) for value in range(WIDTH)),
        total.s(str(effects)),
        after.s(),
    )
    submission = workflow.submission()
    job = (await caller.ground.submissions.accept("default", submission)).job
    assert isinstance(job.steps, list)
    async with AsyncExitStack() as stack:
        workers = [await ready(settings, tmp_path / f"{n}.log", stack) for n in range(2)]
        for dead in range(4):
            # Far enough to have members in hand, and not done.
            goal = 10.0 * (dead + 1)

            async def further(goal: float = goal) -> bool:
                return ((await caller.job(job.job_id)).progress or 0) >= goal

            await until_true(further)
            await workers.pop(0).kill()
            workers.append(await ready(settings, tmp_path / f"next-{dead}.log", stack))
        ended = await caller.until(job.job_id, within=60)
    assert (ended.status, result_of(ended)) == ("succeeded", [sum(range(WIDTH)) + WIDTH])
    # A body may start again when its worker dies; none here saw less than all results, and only
    # one of them counted.
    bodies = [line.split() for line in lines(effects)]
    assert {(job_id, width) for job_id, _, width in bodies} == {(bodies[0][0], str(WIDTH))}
    assert len({attempt for _, attempt, _ in bodies}) == len(bodies)
