"""Cancelling: at the last moment, between attempts, and while nobody works."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from uuid import UUID

import httpx
import msgspec

from lateack.models import Event
from lateack_cli.embedded import EmbeddedServers
from lateack_core.ground import open_ground
from lateack_core.progress import read_event
from lateack_core.settings import Settings
from tests.consumers.conftest import Caller, until
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


async def test_a_cancel_at_the_last_moment_has_one_outcome(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """CAN-01, I2: in each kind of body; stored and announced once, and the reply agrees with it."""
    effects, broker, draw = tmp_path / "effects", caller.ground.broker, random.Random(1)
    async with (
        worker(settings, tmp_path / "a.log", slots=40),
        serving(settings, tmp_path / "api.log") as (url, _),
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):

        async def told_to_watchers(job_id: UUID) -> list[Event]:
            rows = await broker.progress_range(job_id, "0-1")
            return [read_event(entry_id, body) for entry_id, body in rows if body]

        async def race(task: str) -> tuple[str, str]:
            job = await caller.submit(task, str(effects), 0.6)
            await broker.open_progress(job.job_id)
            await until(lambda: job.job_id in {note.job_id for note in notes(effects)})
            await asyncio.sleep(draw.uniform(0.4, 0.7))
            reply = await http.post(f"/v1/jobs/{job.job_id}/cancel", json={})
            told = str(reply.json()["status"])
            ended = await caller.until(job.job_id)

            async def announced() -> bool:
                return any(event.ended for event in await told_to_watchers(job.job_id))

            await eventually(announced)
            events = await told_to_watchers(job.job_id)
            assert [event.status for event in events if event.ended] == [ended.status]
            assert events[-1].ended
            # A reply that is final stays so; one that says "running" leaves it open.
            assert told in ("running", ended.status)
            assert await caller.job(job.job_id) == ended
            return told, ended.status

        kinds = ["f.held"] * 8 + ["f.in_thread"] * 8 + ["f.in_process"] * 2
        seen: Counter[tuple[str, str]] = Counter()
        for _ in range(3):
            seen.update(await asyncio.gather(*(race(task) for task in kinds)))
        await cleared(broker)
    assert {ended for _, ended in seen} <= {"succeeded", "cancelled"}
    # Each began once: a late cancel never costs a success that then has to be made again.
    begun = Counter(note.job_id for note in notes(effects, "start"))
    assert (len(begun), set(begun.values())) == (54, {1})


async def test_an_outcome_that_waits_for_the_database_is_not_interrupted(
    own_servers: EmbeddedServers, own_settings: Settings, tmp_path: Path
) -> None:
    """CAN-01, DBS-02, I2: the body has ended well, then come its limits, and a cancel with the
    database's return; the success stands and nothing runs again."""
    effects = tmp_path / "effects"
    ground = await open_ground(own_settings, process="test")
    try:
        ground.start()
        caller = Caller(ground)
        path = "tests.consumers.fault_tasks:limited"
        async with worker(own_settings, tmp_path / "a.log", app_path=path):
            jobs = [await caller.submit("l.usual", str(effects), 0.3) for _ in range(5)]
            await until(lambda: len(notes(effects, "start")) == 5)
            await own_servers.postgres.kill()
            await until(lambda: len(notes(effects, "end")) == 5)
            # Past the soft limit of 0.5 s and the hard one of 1 s.
            await asyncio.sleep(1.5)
            await own_servers.postgres.start()
            ended = await all_ended(caller, jobs)
            await cleared(ground.broker)
        assert {(job.status, job.attempt) for job in ended} == {("succeeded", 1)}
        assert len(notes(effects, "start")) == 5
    finally:
        await ground.close()


async def test_a_job_between_two_attempts_is_cancelled(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """CAN-02: it waits for its next attempt, which never starts, though its time comes."""
    effects = tmp_path / "effects"
    async with worker(settings, tmp_path / "a.log", more=("-B",)):
        jobs = [await caller.submit("f.asks_again", str(effects), 9, 1.0) for _ in range(5)]
        for job in jobs:
            await caller.until(job.job_id, "retrying")
        await caller.ground.ledger.cancel("default", [job.job_id for job in jobs])
        later = await caller.submit("f.nothing", countdown=2.0)
        await caller.until(later.job_id)
        found = [await caller.job(job.job_id) for job in jobs]
        await cleared(caller.ground.broker)
    assert {(job.status, job.attempt) for job in found} == {("cancelled", 1)}
    assert len(notes(effects)) == 5


async def test_a_job_that_is_just_failing_is_cancelled(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """CAN-02: whenever the cancel comes between two failures, no attempt starts after it."""
    effects, draw = tmp_path / "effects", random.Random(3)
    settings = msgspec.structs.replace(settings, relay_interval=0.02)
    async with worker(settings, tmp_path / "a.log", slots=40, more=("-B",)):
        jobs = [
            await caller.submit("f.asks_again", str(effects), 10_000, 0.0, max_retries=100_000)
            for _ in range(30)
        ]
        await until(lambda: {note.job_id for note in notes(effects)} >= {j.job_id for j in jobs})
        for job in jobs:
            await asyncio.sleep(draw.uniform(0.0, 0.05))
            await caller.ground.ledger.cancel("default", [job.job_id])
        ended = await all_ended(caller, jobs)
        await cleared(caller.ground.broker)
        begun = Counter(note.job_id for note in notes(effects))
        assert {job.status for job in ended} == {"cancelled"}
        for job in ended:
            told = await outcomes(caller, job)
            # Nothing was retried after the cancel, and each attempt is accounted for.
            assert {outcome for _, outcome, _ in told[:-1]} <= {"retried"}
            assert begun[job.job_id] <= job.attempt
            assert [await caller.job(job.job_id)] == [job]


async def test_what_was_cancelled_while_nobody_worked_never_runs(
    own_servers: EmbeddedServers, own_settings: Settings, tmp_path: Path
) -> None:
    """CAN-03: with no worker, and the broker down in between; then the broker starts, and then the
    workers: published, unpublished and delayed jobs stay cancelled, the others run."""
    effects = tmp_path / "effects"
    ground = await open_ground(own_settings, process="test")
    try:
        ground.start()
        caller = Caller(ground)
        await know_the_tasks(ground.ledger)
        published = [await caller.submit("f.held", str(effects), 0.0) for _ in range(20)]
        delayed = [
            await caller.submit("f.held", str(effects), 0.0, countdown=1.0) for _ in range(10)
        ]

        async def all_are_published() -> bool:
            return (await ground.broker.depth("q"))[0] >= 20

        for stream in ground.broker.streams("q"):
            await ground.broker.ensure_group(stream)
        await eventually(all_are_published)
        await own_servers.broker.stop()
        unpublished = [await caller.submit("f.held", str(effects), 0.0) for _ in range(20)]
        everything = [*published, *delayed, *unpublished]
        cancelled, kept = everything[::2], everything[1::2]
        await ground.ledger.cancel("default", [job.job_id for job in cancelled])
        await own_servers.broker.start()
        async with (
            worker(own_settings, tmp_path / "a.log", more=("-B",)),
            worker(own_settings, tmp_path / "b.log"),
        ):
            ran = await all_ended(caller, kept)
            await cleared(ground.broker)
            never = await all_ended(caller, cancelled)
    finally:
        await ground.close()
    assert {(job.status, job.attempt) for job in ran} == {("succeeded", 1)}
    assert {(job.status, job.attempt, job.started_at) for job in never} == {("cancelled", 0, None)}
    assert {note.job_id for note in notes(effects)} == {job.job_id for job in kept}
