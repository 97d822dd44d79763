"""The clients against the real service and a real worker."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import timedelta

import pytest
import redis.asyncio

from lateack import (
    InvalidRequest,
    JobFailed,
    JobWasCancelled,
    NotFound,
    Step,
    Submission,
    WaitTimeout,
)
from lateack_core.settings import Settings
from tests.client.callers import Caller
from tests.client.networks import line_to
from tests.client.services import Service, WorkerOf, eventually, gates

Callers = Callable[..., Caller]


async def test_a_lost_reply_makes_one_job(service: Service, caller: Callers) -> None:
    """CLI-01, I4: the submission arrives, its reply does not; the client asks again by itself."""
    async with line_to(service.url) as line:
        line.lose = 2
        job = await caller(line.url).call("submit", "t.echo", args=[1])
        assert line.lost == 2
    direct = caller(service.url)
    assert [one.job_id async for one in direct.each("list")] == [job.job_id]
    assert job.replayed


async def test_replayed_is_told(service: Service, caller: Callers) -> None:
    """I4: a caller can tell a new job from one that was there, and the document is the same."""
    client = caller(service.url)
    first = await client.call("submit", "t.echo", args=[1], idempotency_key="k")
    again = await client.call("submit", "t.echo", args=[1], idempotency_key="k")
    assert (first.replayed, again.replayed) == (False, True)
    assert first.job_id == again.job_id
    assert await client.call("get", again) == await client.call("get", str(first.id))


async def test_numbers_come_back_unchanged(
    service: Service, worker: WorkerOf, caller: Callers
) -> None:
    """No integer passes through a float on its way."""
    value = {"n": [2**53 + 1, -(2**63), 10**40], "text": "名字 ñ", "f": 0.1}
    assert await caller(service.url).call("run", "t.echo", args=[value], timeout=30) == value


async def test_finished_jobs_survive_the_broker(
    service: Service, worker: WorkerOf, settings: Settings, caller: Callers
) -> None:
    """CLI-02, I7: what the broker held is gone; states and results are not; unknown is 404."""
    client = caller(service.url)
    good = await client.call("submit", "t.echo", args=[7])
    bad = await client.call("submit", "t.fail", args=["no good"])
    await client.call("wait", good, 30)
    await client.call("wait", bad, 30)
    assert settings.redis_url is not None
    async with redis.asyncio.from_url(settings.redis_url) as broker:
        async for key in broker.scan_iter(match=f"{settings.namespace}:*"):
            await broker.delete(key)
    assert await client.call("result", good, 5) == 7
    with pytest.raises(JobFailed, match="no good") as caught:
        await client.call("result", bad, 5)
    assert caught.value.job.error_code == "PermanentError"
    with pytest.raises(NotFound):
        await client.call("get", uuid.uuid4())
    events = await client.watch(good)
    assert events[-1].status == "succeeded"


async def test_a_wait_ends_when_the_job_is_cancelled(
    service: Service, worker: WorkerOf, caller: Callers
) -> None:
    """CLI-03: with an error of its own, whether the job was waiting or running."""
    client = caller(service.url)
    later = await client.call("submit", "t.echo", countdown=timedelta(hours=1))
    assert (await client.call("cancel", later)).status == "cancelled"
    with pytest.raises(JobWasCancelled):
        await client.call("result", later, 10)

    gates["never"] = asyncio.Event()
    running = await client.call("submit", "t.held", args=["never"])

    async def started() -> bool:
        return bool((await client.call("get", running)).status == "running")

    await eventually(started)
    waiting = asyncio.create_task(client.call("result", running, 30))
    assert (await client.call("cancel", running)).cancel_requested
    with pytest.raises(JobWasCancelled):
        await waiting


async def test_a_wait_that_is_too_short(service: Service, caller: Callers) -> None:
    """CLI-03: the deadline is kept, and the job is left alone."""
    client = caller(service.url)
    job = await client.call("submit", "t.echo", countdown=3600)
    for seconds in (0, 0.3):
        with pytest.raises(WaitTimeout):
            await client.call("wait", job, seconds)
    assert (await client.call("get", job)).status == "scheduled"


async def test_a_wait_outlives_a_restart_of_the_service(
    service: Service, worker: WorkerOf, caller: Callers
) -> None:
    """CLI-03: the service goes and comes back in the middle of a wait, which then ends well."""
    client = caller(service.url)
    gates["restart"] = asyncio.Event()
    job = await client.call("submit", "t.held", args=["restart"])
    waiting = asyncio.create_task(client.call("result", job, 60))
    await asyncio.sleep(0.2)
    await service.stop()
    gates["restart"].set()
    await service.start()
    assert await waiting == "restart"


async def test_a_wait_on_a_service_that_stays_away(
    service: Service, worker: WorkerOf, caller: Callers
) -> None:
    """CLI-03: the wait still ends within its deadline."""
    client = caller(service.url, timeout=2)
    gates["away"] = asyncio.Event()
    job = await client.call("submit", "t.held", args=["away"])
    waiting = asyncio.create_task(client.call("wait", job, 2))
    await asyncio.sleep(0.2)
    await service.stop()
    with pytest.raises(WaitTimeout):
        await asyncio.wait_for(waiting, 20)


async def test_many_at_once(service: Service, caller: Callers) -> None:
    """An answer for each, in order; what one meets does not touch another."""
    client = caller(service.url)
    items = [
        Submission("t.echo", args=[1], idempotency_key="same"),
        Submission("t.nobody"),
        Submission("t.echo", args=[2]),
        Submission("t.echo", args=[1], idempotency_key="same"),
    ]
    answers = await client.call("submit_many", items)
    assert [answer.accepted for answer in answers] == [True, False, True, True]
    assert answers[1].problem.type == "unknown-task"
    assert answers[0].job.job_id == answers[3].job.job_id
    assert await client.call("submit_many", []) == []


async def test_a_repeated_batch_makes_no_second_jobs(service: Service, caller: Callers) -> None:
    """CLI-01: the keys of the items are made once, before the first try."""
    async with line_to(service.url) as line:
        line.lose = 1
        items = [Submission("t.echo", args=[n]) for n in range(5)]
        answers = await caller(line.url).call("submit_many", items)
        assert line.lost == 1
    assert all(answer.accepted and answer.replayed for answer in answers)
    assert len([job async for job in caller(service.url).each("list")]) == 5


async def test_a_chain(service: Service, worker: WorkerOf, caller: Callers) -> None:
    """`then` takes steps and plain mappings; the result is the last step's."""
    client = caller(service.url)
    then = [Step("t.echo"), {"task": "t.echo", "args": ["last"], "immutable": True}]
    job = await client.call("submit", "t.echo", args=["first"], then=then)
    assert len(job.steps) == 3
    assert await client.call("result", job, 30) == "last"


async def test_lists_are_filtered(service: Service, caller: Callers) -> None:
    """By state, task and tag, page by page."""
    client = caller(service.url)
    for number in range(3):
        await client.call("submit", "t.echo", args=[number], tags=["mine"])
    odd = await client.call("submit", "t.fail", args=["x"], countdown=60)
    tagged = [job async for job in client.each("list", tag="mine")]
    assert [job.tags for job in tagged] == [["mine"]] * 3
    waiting = [job.job_id async for job in client.each("list", status="scheduled")]
    assert waiting == [odd.job_id]
    assert len([job async for job in client.each("list", limit=2)]) == 2


async def test_another_tenants_job_is_no_job(service: Service, caller: Callers) -> None:
    """I9: unknown and foreign are the same, for reads, waits, cancels and events."""
    job = await caller(service.url, tenant="a").call("submit", "t.echo")
    other = caller(service.url, tenant="b")
    for method in ("get", "wait", "cancel"):
        with pytest.raises(NotFound):
            await other.call(method, job)
    with pytest.raises(NotFound):
        await other.watch(job)


async def test_bad_requests_say_what_to_change(service: Service, caller: Callers) -> None:
    """Nothing is left behind by what is refused."""
    client = caller(service.url)
    with pytest.raises(InvalidRequest, match=r"t\.nobody"):
        await client.call("submit", "t.nobody")
    with pytest.raises(InvalidRequest, match="priority"):
        await client.call("submit", "t.echo", priority=99)
    assert [job async for job in client.each("list")] == []
