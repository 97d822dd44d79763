"""Watching over lines that break (I8)."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable

import pytest

from lateack import Event, InvalidRequest, Job, NotFound, Unreachable
from lateack.client import Client
from tests.client.callers import Caller
from tests.client.networks import line_to
from tests.client.services import Service, WorkerOf, gates

Callers = Callable[..., Caller]

STEPS = 6


def make_gates(name: str) -> None:
    """Gates for a job of `t.steps`, all closed."""
    gates.update({f"{name}-{number}": asyncio.Event() for number in range(STEPS)})


def steps_of(events: list[Event]) -> list[str]:
    """The steps that were told, in order; those that follow tell the step they are in once more."""
    return [step for step, _ in itertools.groupby(event.step for event in events) if step]


async def test_every_event_until_the_end(
    service: Service, worker: WorkerOf, caller: Callers
) -> None:
    """I8: a snapshot, each step in order, and the end."""
    client = caller(service.url)
    make_gates("all")
    job = await client.call("submit", "t.steps", args=["all", STEPS])
    seen: list[Event] = []
    async for event in client.each("watch", job):
        seen.append(event)
        told = steps_of(seen)
        if event.status == "running" and len(told) < STEPS:
            gates[f"all-{len(told)}"].set()
    assert seen[0].type == "snapshot"
    assert steps_of(seen) == [f"step {number}" for number in range(STEPS)]
    assert (seen[-1].status, seen[-1].ended) == ("succeeded", True)
    assert all(event.job_id == job.job_id for event in seen)


@pytest.mark.parametrize("how", ["cut", "restart"])
async def test_a_broken_line_loses_and_repeats_nothing(
    service: Service, worker: WorkerOf, caller: Callers, how: str
) -> None:
    """I8: connections are cut, or the service restarts, after each second step."""
    async with line_to(service.url) as line:
        client = caller(line.url)
        make_gates(how)
        job = await client.call("submit", "t.steps", args=[how, STEPS])
        seen: list[Event] = []
        async for event in client.each("watch", job):
            seen.append(event)
            told = len(steps_of(seen))
            if event.status == "running" and told % 2:
                line.cut()
                if how == "restart" and told == 3:
                    await service.stop()
                    await service.start()
            if event.status == "running" and told < STEPS:
                gates[f"{how}-{told}"].set()
    assert steps_of(seen) == [f"step {number}" for number in range(STEPS)]
    assert len({event.id for event in seen}) == len(seen)
    assert seen[-1].status == "succeeded"


async def test_watching_goes_on_from_an_event(
    service: Service, worker: WorkerOf, caller: Callers
) -> None:
    """I8: `after` gives what came after it, and nothing else."""
    client = caller(service.url)
    make_gates("after")
    job = await client.call("submit", "t.steps", args=["after", STEPS])
    seen: list[Event] = []
    async for event in client.each("watch", job):
        seen.append(event)
        for gate in gates.values():
            gate.set()
    again = await client.watch(job, after=seen[0].id)
    assert again[-1].status == "succeeded"
    assert seen[0].id not in {event.id for event in again}
    # Even of a job whose last word was heard, the end is told again.
    assert (await client.watch(job, after=seen[-1].id))[-1].status == "succeeded"


async def test_no_such_job(service: Service, caller: Callers) -> None:
    """An error of its own, at once."""
    with pytest.raises(NotFound):
        await caller(service.url).watch(uuid.uuid4())


async def test_a_cursor_that_is_none(service: Service, caller: Callers) -> None:
    """Said at once rather than tried again."""
    client = caller(service.url)
    job = await client.call("submit", "t.echo", countdown=60)
    with pytest.raises(InvalidRequest):
        await client.watch(job, after="x")


async def test_a_service_that_is_not_there(service: Service, caller: Callers) -> None:
    """Watching is given up when the first connection cannot be had within the budget."""
    async with line_to(service.url) as line:
        line.down = True
        with pytest.raises(Unreachable):
            await caller(line.url, timeout=1).watch(uuid.uuid4())


async def test_watching_can_be_left(service: Service, worker: WorkerOf) -> None:
    """Leaving the loop, or a cancelled task, leaves the client usable."""
    async with Client(service.url) as jobs:
        job = await jobs.submit("t.echo", countdown=60)
        async for event in jobs.watch(job):
            assert event.status == "scheduled"
            break
        looking = asyncio.create_task(look_on(jobs, job))
        await asyncio.sleep(0.1)
        looking.cancel()
        await asyncio.wait((looking,))
        assert (await jobs.cancel(job)).status == "cancelled"


async def look_on(jobs: Client, job: Job) -> None:
    """Watch until told otherwise."""
    async for _ in jobs.watch(job):
        pass
