"""What bodies return, raise and report that cannot be stored: the job ends with words, the worker
goes on, and the broker keeps none of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from lateack.models import Job, Submission
from lateack_consumers.worker import work
from lateack_core.settings import Settings
from tests.consumers.conftest import Caller, result_of
from tests.consumers.odd_tasks import app

POOLS = ("loop", "thread", "process")
RETURNED = {
    "infinite": "InvalidResult",
    "half a pair": "InvalidResult",
    "a circle": "InvalidResult",
    "a stranger": "InvalidResult",
    "endless": "InvalidResult",
    "huge": "ResultTooLarge",
}
RAISED = {
    "unprintable": "Unprintable",
    "unpicklable": "Unpicklable",
    "long": "ValueError",
    "NUL": "ValueError",
}


@pytest.fixture
async def odd(settings: Settings, caller: Caller) -> AsyncIterator[Caller]:
    """A caller beside a worker of the odd tasks."""
    stop, ready = asyncio.Event(), asyncio.Event()
    working = asyncio.create_task(
        work(
            settings,
            app,
            queues=None,
            slots=10,
            name="w",
            app_path="tests.consumers.odd_tasks:app",
            stop=stop,
            hurry=asyncio.Event(),
            ready=ready.set,
        )
    )
    async with asyncio.timeout(30):
        await ready.wait()
    yield caller
    stop.set()
    assert await working == 0


async def run(caller: Caller, task: str, *args: Any) -> Job:
    submission = Submission(task=f"odd.{task}", args=list(args))
    job = (await caller.ground.submissions.accept("default", submission)).job
    return await caller.until(job.job_id, within=40)


@pytest.mark.parametrize("pool", POOLS)
async def test_what_cannot_be_kept_ends_the_job_with_words(odd: Caller, pool: str) -> None:
    """PAY-01, PAY-02, PAY-03, PAY-04: failed, with a reason that is short and safe, and the worker
    takes the next one."""
    for way, kinds in (("return", RETURNED), ("raise", RAISED)):
        ended = await asyncio.gather(*(run(odd, pool, way, kind) for kind in kinds))
        for job, (kind, code) in zip(ended, kinds.items(), strict=True):
            assert (job.status, job.error_code, job.attempt) == ("failed", code, 1), kind
            assert job.error_message, kind
            assert len(job.error_message) <= 1000, kind
            assert not {"\x00", "\ud800"} & set(job.error_message), kind
            # Beyond the first, which may wait for its process to start, it takes no time.
            assert job.started_at
            assert job.completed_at
            if pool != "process":
                assert (job.completed_at - job.started_at).total_seconds() < 2, kind
    number = await run(odd, pool, "return", "a big number")
    assert (number.status, result_of(number)) == ("succeeded", 2**63 + 1)
    nul = await run(odd, pool, "return", "a NUL")
    assert (nul.status, nul.error_code) == ("failed", "InvalidResult")


async def test_the_broker_keeps_nothing_of_it(odd: Caller) -> None:
    """PAY-04: neither results nor the long words of a progress report weigh on the broker."""
    broker = odd.ground.broker

    async def used() -> int:
        return int((await broker._redis.info("memory"))["used_memory"])

    before = await used()
    jobs = await asyncio.gather(
        *(run(odd, "loud") for _ in range(3)),
        *(run(odd, "loop", "return", "huge") for _ in range(3)),
    )
    assert [job.status for job in jobs] == ["succeeded"] * 3 + ["failed"] * 3
    kept = 0
    for job in jobs:
        kept += await broker._redis.memory_usage(broker.progress_key(UUID(str(job.job_id)))) or 0
    assert kept < 200_000
    assert await used() - before < 2_000_000
