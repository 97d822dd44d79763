"""Jobs that wait for other jobs, with fewer slots than waiting parents."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from lateack.models import Step
from lateack_core.settings import Settings
from tests.consumers.conftest import Caller, result_of
from tests.consumers.faults import all_ended, know_the_tasks, serving, worker


async def test_fifty_chains_finish_on_one_slot(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """DEL-11: what waits in a chain holds no slot."""
    await know_the_tasks(caller.ground.ledger)
    step = Step(task="f.twice")
    chains = [await caller.submit("f.twice", n, then=[step, step, step]) for n in range(50)]
    async with worker(settings, tmp_path / "a.log", slots=1):
        ended = await all_ended(caller, chains, within=60)
    assert [result_of(job) for job in ended] == [16 * n for n in range(50)]


async def test_a_body_that_would_wait_for_a_job_is_refused(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """DEL-11: on one slot any of these would stand still. On the loop, in a thread, in a process,
    each fails at once, with an explanation and no further attempt, whatever it retries for."""
    tasks = ("f.waits_on_loop", "f.waits_in_thread", "f.waits_in_process", "f.watches")
    async with AsyncExitStack() as stack:
        url, _ = await stack.enter_async_context(serving(settings, tmp_path / "api.log"))
        await stack.enter_async_context(worker(settings, tmp_path / "a.log", slots=1))
        ended = await all_ended(caller, [await caller.submit(task, url) for task in tasks])
    for task, job in zip(tasks, ended, strict=True):
        assert (job.status, job.error_code, job.attempt) == ("failed", "WaitInsideTask", 1)
        message = job.error_message or ""
        assert f"{task} waits for another job while it holds a slot" in message
        assert "lateack.chain" in message


async def test_a_body_may_wait_when_it_says_so(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """DEL-11: explicitly, and with a slot left for the other job."""
    async with AsyncExitStack() as stack:
        url, _ = await stack.enter_async_context(serving(settings, tmp_path / "api.log"))
        await stack.enter_async_context(worker(settings, tmp_path / "a.log", slots=2))
        ended = await caller.until((await caller.submit("f.may_wait", url)).job_id, within=30)
    assert (ended.status, result_of(ended)) == ("succeeded", 2)
