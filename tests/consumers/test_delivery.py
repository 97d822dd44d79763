"""Delivery: who gets a job when workers die, idle, differ in version, or lose their broker."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import msgspec

from lateack.models import Job
from lateack_cli.embedded import embedded_servers
from lateack_core.ground import open_ground
from lateack_core.settings import Settings
from lateack_core.stream import Hint
from tests.client.networks import line_to
from tests.consumers.conftest import Caller, lines, until
from tests.consumers.faults import (
    all_ended,
    cleared,
    eventually,
    know_the_tasks,
    notes,
    outcomes,
    serving,
    worker,
)


async def test_a_dead_workers_job_is_taken_over_after_a_lease_and_a_scan(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """DEL-01: however long entries have to be idle before they are taken over."""
    settings = msgspec.structs.replace(settings, reclaim_idle=600.0)
    effects = tmp_path / "effects"
    async with worker(settings, tmp_path / "a.log") as first:
        job = await caller.submit("f.held", str(effects), 60.0)
        await until(lambda: notes(effects))
        async with worker(settings, tmp_path / "b.log", more=("-B",)):
            await first.kill()
            bound = settings.lease + settings.reap_interval
            # What a busy machine takes on top is no matter of leases.
            ended = await caller.until(job.job_id, within=bound + 6)
    assert (ended.status, ended.attempt) == ("succeeded", 2)
    assert await outcomes(caller, job) == [(1, "lost", "WorkerLost"), (2, "succeeded", None)]


async def test_a_hint_for_a_job_whose_owner_died_is_kept(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """DEL-02: delivered again while the dead owner's lease lasts, it is neither dropped nor
    acknowledged; after that the new owner runs the job, with no scheduler anywhere."""
    settings = msgspec.structs.replace(settings, lease=5.0, heartbeat=1.0, reclaim_idle=5.5)
    effects, broker = tmp_path / "effects", caller.ground.broker
    async with worker(settings, tmp_path / "a.log") as first:
        job = await caller.submit("f.held", str(effects), 60.0)
        await until(lambda: notes(effects))
        async with worker(settings, tmp_path / "b.log"):
            await first.kill()
            await broker.publish([Hint(job.job_id, "q", job.priority)])

            async def both_are_pending() -> bool:
                return await broker.depth("q") == (0, 2)

            await eventually(both_are_pending, within=4)
            assert (await caller.job(job.job_id)).status == "running"
            ended = await caller.until(job.job_id)
            await cleared(broker)
    assert (ended.status, ended.attempt) == ("succeeded", 2)
    assert [note.attempt for note in notes(effects, "start")] == [1, 2]


async def test_an_acknowledgement_that_is_lost_with_the_link_starts_nothing(
    settings: Settings, tmp_path: Path
) -> None:
    """DEL-03: the job ends while its worker cannot reach the broker; another one is given its
    entry, runs nothing and clears it."""
    effects = tmp_path / "effects"
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(
            embedded_servers(tmp_path / "broker", postgres=False, broker_port=0, durable=False)
        )
        direct = msgspec.structs.replace(settings, redis_url=own.redis_url)
        line = await stack.enter_async_context(line_to(own.redis_url))
        far = line.url.removeprefix("http://")
        before, _, _ = own.redis_url.rpartition("@")
        through = msgspec.structs.replace(settings, redis_url=f"{before}@{far}")
        ground = await open_ground(direct, process="test")
        stack.push_async_callback(ground.close)
        ground.start()
        caller = Caller(ground)
        first = await stack.enter_async_context(worker(through, tmp_path / "a.log"))
        job = await caller.submit("f.held", str(effects), 0.7)
        await until(lambda: notes(effects, "start"))
        line.down = True
        assert line.cut()
        ended = await caller.until(job.job_id)
        assert await ground.broker.depth("q") == (0, 1)
        second = await stack.enter_async_context(worker(direct, tmp_path / "b.log"))
        await cleared(ground.broker)
        line.down = False
        # Both go on working, and what the first one still says changes nothing.
        more = [await caller.submit("f.held", str(effects), 0.2) for _ in range(20)]
        await all_ended(caller, more)
        await cleared(ground.broker)
        assert first.returncode is second.returncode is None
        assert await caller.job(job.job_id) == ended
    starts = Counter(note.job_id for note in notes(effects, "start"))
    assert set(starts.values()) == {1}
    assert len(starts) == 21


async def test_equal_jobs_are_spread_over_idle_workers(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """DEL-05: nobody takes more than it has slots for, everybody gets some, nothing runs twice."""
    effects, workers, slots = tmp_path / "effects", 10, 4
    async with AsyncExitStack() as stack:
        running = await asyncio.gather(
            *(
                stack.enter_async_context(worker(settings, tmp_path / f"{number}.log", slots=slots))
                for number in range(workers)
            )
        )
        jobs = await asyncio.gather(
            *(caller.submit("f.held", str(effects), 0.4) for _ in range(300))
        )
        ended = await all_ended(caller, list(jobs))
        assert {(job.status, job.attempt) for job in ended} == {("succeeded", 1)}
        assert {one.returncode for one in running} == {None}
    assert len(notes(effects, "start")) == len(notes(effects, "end")) == 300
    assert len({note.pid for note in notes(effects)}) == workers
    held: Counter[int] = Counter()
    for note in notes(effects):
        held[note.pid] += 1 if note.word == "start" else -1
        assert held[note.pid] <= slots


async def test_what_waits_inside_a_worker_is_not_run_by_another(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """DEL-05: jobs that wait in one worker for a free process, for longer than a lease."""
    effects = tmp_path / "effects"
    async with worker(settings, tmp_path / "a.log", slots=8):
        jobs = [await caller.submit("f.in_process", str(effects), 1.2) for _ in range(8)]
        for job in jobs:
            await caller.until(job.job_id, "running", "succeeded")
        async with worker(settings, tmp_path / "b.log", more=("-B",)):
            ended = await all_ended(caller, jobs)
    assert {(job.status, job.attempt) for job in ended} == {("succeeded", 1)}
    assert Counter(note.job_id for note in notes(effects, "start")).total() == 8


async def test_a_flood_of_urgent_jobs_starves_nobody(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """DEL-06: every tenth fetch begins with a lower level, each in its turn. So what is low goes
    on, and what lies between two floods does too; nothing is failed by the pending limit."""
    settings = msgspec.structs.replace(settings, pending_timeout="60")
    effects = tmp_path / "effects"
    await know_the_tasks(caller.ground.ledger)
    flooding, gone_by = asyncio.Event(), Counter[int]()

    async def flood(priority: int) -> None:
        """Keep a hundred waiting, of the highest or of the lowest priority."""
        sent: list[Job] = []
        while True:
            found = await caller.ground.ledger.get("default", [job.job_id for job in sent])
            gone_by[priority] += sum(one.status == "succeeded" for one in found.values())
            sent = [job for job in sent if not found[job.job_id].ended]
            more = [caller.submit("f.nothing", priority=priority) for _ in range(100 - len(sent))]
            sent += await asyncio.gather(*more)
            flooding.set()
            await asyncio.sleep(0.05)

    floods = [asyncio.create_task(flood(priority)) for priority in (9, 0)]
    try:
        await flooding.wait()
        jobs = [
            await caller.submit("f.held", str(effects), 0.0, priority=priority)
            for priority in (3, 4, 5, 7)
            for _ in range(2)
        ]
        async with worker(settings, tmp_path / "a.log", slots=1, more=("-B",)):
            ended = await all_ended(caller, jobs, within=50)
            waiting, _ = await caller.ground.broker.depth("q")
            # The floods have not run dry meanwhile: they were not what let the others by.
            assert waiting > 50
            await until(lambda: 0 < gone_by[0] < gone_by[9])
    finally:
        for task in floods:
            task.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
    assert {(job.status, job.attempt) for job in ended} == {("succeeded", 1)}


async def test_a_new_task_is_left_to_new_workers(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """DEL-07: an old worker beside a new one neither runs nor discards what it does not know, and
    it costs no attempt. No scheduler is there to find what would have been lost."""
    effects, versions = tmp_path / "effects", "tests.consumers.fault_tasks"
    async with (
        worker(settings, tmp_path / "a.log", app_path=f"{versions}:old") as first,
        worker(settings, tmp_path / "b.log", app_path=f"{versions}:new") as second,
    ):
        jobs = [
            await caller.submit(name, str(effects))
            for name in ("v.added", "v.known")
            for _ in range(8)
        ]
        ended = await all_ended(caller, jobs, within=60)
        await cleared(caller.ground.broker)
        assert first.returncode is second.returncode is None
    assert {(job.status, job.attempt) for job in ended} == {("succeeded", 1)}
    assert {note.pid for note in notes(effects, "added")} == {second.pid}
    assert len(notes(effects)) == 16


async def test_a_task_that_nobody_knows_fails_within_its_limit(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """DEL-07: it goes round among old workers until its pending limit, and not for a day."""
    settings = msgspec.structs.replace(settings, pending_timeout="3")
    await know_the_tasks(caller.ground.ledger)
    path = "tests.consumers.fault_tasks:old"
    async with (
        worker(settings, tmp_path / "a.log", app_path=path, more=("-B",)),
        worker(settings, tmp_path / "b.log", app_path=path),
    ):
        jobs = [await caller.submit("v.added", "nowhere") for _ in range(5)]
        began = time.monotonic()
        ended = await all_ended(caller, jobs, within=3 + 5)
        assert time.monotonic() - began > 2.9
        await cleared(caller.ground.broker)
    assert {(job.status, job.error_code, job.attempt) for job in ended} == {
        ("failed", "UnknownTask", 0)
    }
    assert "no live worker knows the task v.added" in (ended[0].error_message or "")


async def test_an_effect_outside_is_repeated_with_the_same_token(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """DEL-09: the worker dies after the effect and before any record; the outside system sees one
    token twice, and another one for another job."""
    effects = tmp_path / "effects"
    tokens = []
    for number in range(2):
        async with worker(settings, tmp_path / f"a{number}.log") as first:
            job = await caller.submit("f.charges", str(effects))
            await first.wait()
        async with worker(settings, tmp_path / f"b{number}.log", more=("-B",)):
            ended = await caller.until(job.job_id)
        assert (ended.status, ended.attempt) == ("succeeded", 2)
        tokens.append(msgspec.json.decode(ended.result or b""))
    assert lines(effects) == [tokens[0], tokens[0], tokens[1], tokens[1]]
    assert tokens[0] != tokens[1]


async def test_the_queues_view_agrees_with_the_jobs(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """DEL-12: counts and the oldest age, of a backlog, under load, and of an empty queue."""
    effects, ledger = tmp_path / "effects", caller.ground.ledger
    await know_the_tasks(ledger)
    async with (
        serving(settings, tmp_path / "api.log") as (url, _),
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):

        async def view() -> dict[str, int | float | None]:
            items = (await http.get("/v1/queues")).json()["items"]
            (item,) = [one for one in items if one["queue"] == "q"]
            return {**item["counts"], "oldest": item["oldest_age"]}

        async def pending() -> int:
            return sum(r["jobs"] for r in await ledger.queue_counts() if r["status"] == "pending")

        assert await view() == {"oldest": None}
        began = time.monotonic()
        jobs = [await caller.submit("f.held", str(effects), 0.1) for _ in range(200)]
        later = await caller.submit("f.nothing", countdown=600)
        at_rest = await view()
        oldest = at_rest.pop("oldest")
        assert at_rest == {"pending": 200, "scheduled": 1}
        assert isinstance(oldest, float)
        assert abs(oldest - (time.monotonic() - began)) < 2
        seen = []
        async with worker(settings, tmp_path / "a.log", slots=10):
            while (most := await pending()) > 0:
                told = (await view()).get("pending", 0)
                # Nothing is added: what was told lies between what was and what is.
                assert isinstance(told, int)
                assert await pending() <= told <= most
                seen.append(told)
            await all_ended(caller, jobs)
        assert len(set(seen)) > 3
        assert await view() == {"scheduled": 1, "oldest": None}
        await ledger.cancel("default", [later.job_id])
        assert await view() == {"oldest": None}
