"""Retention: what ended long ago goes as a whole, in small steps, and nothing else does."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from uuid import UUID

import msgspec

from lateack.models import Step
from lateack_core.ground import Ground
from lateack_core.settings import Settings
from lateack_scheduler.prune import prune
from tests.sql.desk import Desk

DAY = 86_400.0


def keeping(ground: Ground, well: float, badly: float) -> Settings:
    return msgspec.structs.replace(ground.settings, retention=well, retention_failed=badly)


async def ended(desk: Desk, *, failed: bool = False, **options: Any) -> UUID:
    job = await desk.submit(max_retries=0, **options)
    owned = await desk.run(job)
    if failed:
        assert await desk.fail(owned) == "failed"
    else:
        assert await desk.complete(owned, {"n": 1})
    return job


async def test_each_outcome_has_its_own_age(desk: Desk) -> None:
    """What failed is kept for longer; what lives is kept for ever."""
    term = await desk.lead()
    desk.ground.settings = keeping(desk.ground, 7 * DAY, 30 * DAY)
    well, badly = await ended(desk), await ended(desk, failed=True)
    pending, running = await desk.submit_many(2)
    await desk.run(running, lease=1e8)
    await desk.pass_time(8 * DAY)
    fresh = await ended(desk)
    assert await prune(desk.ground, term) == 1
    assert await desk.count("jobs", f"id = '{well}'") == 0
    assert await desk.count("results") == 1
    left = await desk.statuses([badly, fresh, pending, running])
    assert left == ["failed", "succeeded", "pending", "running"]
    await desk.pass_time(31 * DAY)
    assert await prune(desk.ground, term) == 2
    assert await desk.count("jobs") == 2
    assert await desk.count("attempts") == 0
    desk.ground.settings = keeping(desk.ground, 0, 0)
    await desk.pass_time(1000 * DAY)
    assert await prune(desk.ground, term) == 0


async def test_a_job_stays_as_long_as_its_key(desk: Desk) -> None:
    """DBS-09, I4: keys live for 24 hours at least, and a pruned job would be made again."""
    term = await desk.lead()
    desk.ground.settings = keeping(desk.ground, 60.0, 60.0)
    job = await ended(desk, idempotency_key="k")
    await desk.pass_time(23 * 3600)
    assert await prune(desk.ground, term) == 0
    assert await desk.submit(max_retries=0, idempotency_key="k") == job
    await desk.pass_time(25 * 3600)
    assert await prune(desk.ground, term) == 1
    assert await desk.count("idempotency") == 0
    assert await desk.submit(max_retries=0, idempotency_key="k") != job


async def test_a_workflow_goes_as_a_whole(desk: Desk) -> None:
    """I5: what a step returned is read by those behind it, however long ago it ended."""
    term = await desk.lead()
    desk.ground.settings = keeping(desk.ground, 60.0, 60.0)
    members = [Step(task="t.work")] * 2
    own = await desk.accept(task="", group=members, then=[Step(task="t.work")])
    steps = [step.job_id for step in own.steps or []]
    await desk.complete(await desk.run(steps[0], lease=1e6), 1)
    slow = await desk.run(steps[1], lease=1e6)
    await desk.pass_time(1000)
    assert await prune(desk.ground, term) == 0
    await desk.complete(slow, 2)
    await desk.complete(await desk.run(steps[2]), 3)
    await desk.pass_time(2000)
    assert await prune(desk.ground, term) == 5
    for table in ("jobs", "results", "joins"):
        assert await desk.count(table) == 0, table


async def test_a_failed_workflow_waits_for_its_last_member(desk: Desk) -> None:
    """Its own row has failed; a member that still runs would lose its neighbours."""
    term = await desk.lead()
    desk.ground.settings = keeping(desk.ground, 60.0, 60.0)
    own = await desk.accept(task="", group=[Step(task="t.work", max_retries=0)] * 2)
    one, other = [step.job_id for step in own.steps or []]
    running = await desk.run(other, lease=1e6)
    assert await desk.fail(await desk.run(one)) == "failed"
    await desk.pass_time(1000)
    assert await prune(desk.ground, term) == 0
    await desk.complete(running)
    assert await prune(desk.ground, term) == 4


async def test_a_former_leader_forgets_nothing(desk: Desk) -> None:
    """SCH-03: whoever acts carries the term, and an old one is over."""
    term = await desk.lead()
    desk.ground.settings = keeping(desk.ground, 60.0, 60.0)
    await ended(desk)
    await desk.pass_time(1000)
    assert await prune(desk.ground, term._replace(epoch=term.epoch - 1)) == 0
    assert await prune(desk.ground, term) == 1


async def test_retention_under_load(desk: Desk) -> None:
    """DBS-09: twenty thousand old jobs leave in small steps. Meanwhile jobs are submitted, run
    and looked at, and none of them waits for more than one batch."""
    term = await desk.lead()
    desk.ground.settings = keeping(desk.ground, 60.0, 60.0)
    await desk.connection.execute(
        "INSERT INTO lateack.jobs"
        " (id, tenant_id, task, queue, status, created_at, run_at, completed_at)"
        " SELECT lateack.uuid7(), 'default', 't.work', 'work', 'succeeded', now(), now(),"
        " now() - interval '1 day' FROM generate_series(1, 20000)"
    )
    await desk.connection.execute("INSERT INTO lateack.results SELECT id, '1' FROM lateack.jobs")
    old = await desk.submit(eta=None, idempotency_key="live")
    slowest, rounds, over = 0.0, 0, asyncio.Event()

    async def others() -> None:
        nonlocal slowest, rounds
        while not over.is_set():
            began = time.monotonic()
            job = await desk.submit()
            assert await desk.complete(await desk.run(job), 1)
            slowest, rounds = max(slowest, time.monotonic() - began), rounds + 1

    busy = asyncio.create_task(others())
    gone, longest = 0, 0.0
    while await desk.count("jobs", "completed_at < now() - interval '1 hour'"):
        began = time.monotonic()
        gone += await prune(desk.ground, term, batch=500)
        longest = max(longest, time.monotonic() - began)
    over.set()
    await busy
    assert gone == 20_000
    assert rounds > 10
    # A submission never waited for a whole turn, only ever for a batch beside it.
    assert slowest < longest
    assert await desk.status(old) == "pending"
