"""Reclaim: what was abandoned is found and run again once; what lives is left alone."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import UUID, uuid4

import msgspec

from lateack.models import Job
from lateack_cli.embedded import embedded_servers
from lateack_core.ground import open_ground
from lateack_core.progress import read_event
from lateack_core.settings import Settings
from lateack_core.stream import Entry
from tests.client.networks import line_to
from tests.consumers.conftest import Caller, result_of, until
from tests.consumers.faults import (
    all_ended,
    cleared,
    eventually,
    know_the_tasks,
    notes,
    outcomes,
    worker,
)


async def test_six_workers_reclaim_hundreds_at_the_same_instant(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """DEL-04: every abandoned job is begun once more, and no more than once."""
    effects = tmp_path / "effects"
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(worker(settings, tmp_path / "a.log", slots=300))
        jobs = list(
            await asyncio.gather(*(caller.submit("f.held", str(effects), 60.0) for _ in range(300)))
        )
        await until(lambda: len(notes(effects)) == 300, within=40)
        await asyncio.gather(
            *(
                stack.enter_async_context(worker(settings, tmp_path / f"{number}.log", slots=60))
                for number in range(6)
            )
        )
        # Their leases run out together, and six reclaimers look for them at every half a second.
        await first.kill()
        ended = await all_ended(caller, jobs)
        await cleared(caller.ground.broker)
    assert {(job.status, job.attempt) for job in ended} == {("succeeded", 2)}
    assert len(notes(effects, "start")) == 600
    again = [note for note in notes(effects, "start") if note.attempt == 2]
    assert {note.job_id for note in again} == {job.job_id for job in jobs}
    assert len({note.pid for note in again}) > 1


async def test_a_long_job_stays_with_its_worker(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """REC-01, I3: five leases long, with two more workers and the reaper around it."""
    effects = tmp_path / "effects"
    async with (
        worker(settings, tmp_path / "a.log", more=("-B",)),
        worker(settings, tmp_path / "b.log", more=("-B",)),
        worker(settings, tmp_path / "c.log", more=("-B",)),
    ):
        jobs = [await caller.submit("f.walks", str(effects), 5 * settings.lease) for _ in range(6)]
        ended = await all_ended(caller, jobs)
    assert {(job.status, job.attempt) for job in ended} == {("succeeded", 1)}
    assert Counter(note.word for note in notes(effects)) == {"start": 6, "end": 6}


async def test_what_a_frozen_worker_says_is_refused(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """REC-02, I2: it wakes while a second worker runs its jobs; one of them it ends at once, of the
    other it reports progress. Neither counts, nor does a watcher hear of it."""
    effects, broker = tmp_path / "effects", caller.ground.broker

    def ends_of(job: Job) -> list[int]:
        return [note.attempt for note in notes(effects, "end") if note.job_id == job.job_id]

    async with worker(settings, tmp_path / "a.log", slots=2) as first:
        ends = await caller.submit("f.held", str(effects), 0.5, 4.0)
        reports = await caller.submit("f.walks", str(effects), 3.0)
        await broker.open_progress(reports.job_id)
        await until(lambda: len(notes(effects)) == 2)
        first.signal(signal.SIGSTOP)
        async with worker(settings, tmp_path / "b.log"):
            await until(lambda: len(notes(effects, "start")) == 4)
            first.signal(signal.SIGCONT)
            # What it slept for is over.
            await until(lambda: ends_of(ends)[:1] == [1])
            ended = await all_ended(caller, [ends, reports])
            # The result is the attempt's number.
            assert [(job.status, result_of(job)) for job in ended] == [("succeeded", 2)] * 2
            assert ends_of(ends) == [1, 2]
            told = await broker.progress_range(reports.job_id, "0-1")
            again = await caller.submit("f.held", str(effects), 0.1)
            await caller.until(again.job_id)
            first.signal(signal.SIGTERM)
            assert await first.wait() == 0
            assert [await caller.job(job.job_id) for job in ended] == ended
            assert await broker.progress_range(reports.job_id, "0-1") == told
    events = [read_event(entry_id, body) for entry_id, body in told if body]
    assert [event.attempt for event in events] == sorted(event.attempt for event in events)
    assert events[-1].status == "succeeded"


async def test_the_abandoned_are_found_behind_pages_of_the_healthy(
    settings: Settings, tmp_path: Path
) -> None:
    """REC-03: a worker is cut off from the broker with hundreds of healthy jobs, whose entries look
    abandoned; those of a dead worker lie behind them. One with few slots finds the dead one's
    within a few sweeps, though there is no scheduler; nothing healthy is run twice."""
    healthy, abandoned = tmp_path / "healthy", tmp_path / "abandoned"
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(
            embedded_servers(tmp_path / "broker", postgres=False, broker_port=0, durable=False)
        )
        direct = msgspec.structs.replace(settings, redis_url=own.redis_url)
        line = await stack.enter_async_context(line_to(own.redis_url))
        far, (before, _, _) = line.url.removeprefix("http://"), own.redis_url.rpartition("@")
        through = msgspec.structs.replace(settings, redis_url=f"{before}@{far}")
        ground = await open_ground(direct, process="test")
        stack.push_async_callback(ground.close)
        ground.start()
        caller = Caller(ground)
        await know_the_tasks(ground.ledger)
        async with worker(through, tmp_path / "a.log", slots=350) as cut_off:
            long = await asyncio.gather(
                *(caller.submit("f.held", str(healthy), 120.0) for _ in range(350))
            )
            await until(lambda: len(notes(healthy)) == 350, within=40)
            async with worker(direct, tmp_path / "b.log", slots=20) as dies:
                short = await asyncio.gather(
                    *(caller.submit("f.held", str(abandoned), 60.0) for _ in range(20))
                )
                await until(lambda: len(notes(abandoned)) == 20)
                line.down = True
                line.cut()
                await dies.kill()
            async with worker(direct, tmp_path / "c.log", slots=5):
                began = time.monotonic()
                ended = await all_ended(caller, list(short))
                assert {(job.status, job.attempt) for job in ended} == {("succeeded", 2)}
                # Sweeps come every half a second; the first that can see them is one idle time on.
                assert time.monotonic() - began < settings.reclaim_idle + 8
                assert {note.word for note in notes(healthy)} == {"start"}
                line.down = False
                # They are their first owner's still, which ends them as it is told to.
                await ground.ledger.cancel("default", [job.job_id for job in long])
                lasting = await all_ended(caller, list(long))
                assert {(job.status, job.attempt) for job in lasting} == {("cancelled", 1)}
                await cleared(ground.broker)
            assert cut_off.returncode is None
    assert len(notes(healthy, "start")) == 350


async def test_a_worker_that_comes_back_under_its_name_is_another_one(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """REC-04: killed and at once restarted under a fixed name; its job is known as abandoned."""
    settings = msgspec.structs.replace(settings, reclaim_idle=600.0)
    effects, name = tmp_path / "effects", ("-n", "fixed", "-B")
    async with worker(settings, tmp_path / "a.log", more=name) as first:
        job = await caller.submit("f.held", str(effects), 60.0)
        await until(lambda: notes(effects))
        await first.kill()
    async with worker(settings, tmp_path / "b.log", more=name):
        ended = await caller.until(job.job_id, within=settings.lease + settings.reap_interval + 6)
        other = await caller.until((await caller.submit("f.nothing")).job_id)
    assert (ended.status, ended.attempt) == ("succeeded", 2)
    assert await outcomes(caller, job) == [(1, "lost", "WorkerLost"), (2, "succeeded", None)]
    assert other.status == "succeeded"


async def test_strays_are_set_aside_once_and_valid_jobs_go_on(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """REC-05: malformed and unknown messages, read anew and taken over from a dead consumer."""
    broker, unknown = caller.ground.broker, [str(uuid4()) for _ in range(3)]
    await know_the_tasks(caller.ground.ledger)
    fields: list[dict[str, str | bytes]] = [
        {"nonsense": "1"},
        {"job": "not-an-id"},
        {"job": b"\xff\xfe"},
        {"job": "a\x00b", "n\x00": "\x00"},
        {"job": ""},
        {"other": "x" * 100_000},
    ]
    fields += [{"job": job_id} for job_id in unknown]
    stream = broker.stream("q", 2)
    await broker.ensure_group(stream)

    async def add_all() -> None:
        for one in fields:
            await broker._redis.xadd(stream, one)  # type: ignore[arg-type]
            jobs.append(await caller.submit("f.nothing"))

    jobs: list[Job] = []
    await add_all()
    # Some of them are somebody's who died with them.
    taken: list[Entry] = []

    async def some_are_taken() -> bool:
        taken.extend(await broker.read([stream], "dead", 3))
        return len(taken) >= 3

    await eventually(some_are_taken)
    async with worker(settings, tmp_path / "a.log", slots=3) as running:
        await add_all()
        ended = await all_ended(caller, jobs)
        await cleared(broker)
        assert running.returncode is None
    assert {(job.status, job.attempt) for job in ended} == {("succeeded", 1)}
    found: list[tuple[str, str]] = []

    async def all_are_recorded() -> bool:
        async with caller.ground.postgres.transaction() as transaction:
            rows = await transaction._connection.fetch("SELECT * FROM lateack.strays")
        found[:] = [(row["reason"], row["fields"]) for row in rows]
        return len(found) >= 2 * len(fields)

    await eventually(all_are_recorded)
    assert len(found) == 2 * len(fields)
    assert Counter(reason for reason, _ in found) == {
        "no job id in it": 4,
        "not a job's id": 8,
        "no such job in the ledger": 6,
    }
    named = [
        msgspec.json.decode(kept)["job"] for reason, kept in found if reason.startswith("no such")
    ]
    assert sorted(named) == sorted(2 * [str(UUID(job_id)) for job_id in unknown])
