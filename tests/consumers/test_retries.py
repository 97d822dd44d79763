"""Retries, lost workers and time limits: what counts as an attempt, and what ends a job."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from lateack_core.settings import Settings, environment_of
from tests.consumers.conftest import Caller, result_of, until
from tests.consumers.faults import (
    all_ended,
    cleared,
    kept_alive,
    know_the_tasks,
    notes,
    outcomes,
    worker,
)
from tests.consumers.processes import process

LIMITED = "tests.consumers.fault_tasks:limited"


async def test_a_job_that_kills_every_worker_takes_no_other_job_with_it(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """RTY-01: its worker dies each time, with whatever else runs there. It ends as WorkerLost and
    is delivered no more; those that were lost with it, again and again, finish all the same."""
    effects = tmp_path / "effects"
    await know_the_tasks(caller.ground.ledger)
    poison = await caller.submit("f.kills_its_worker", str(effects), 0.7)
    others = [await caller.submit("f.held", str(effects), 1.5, 1.5) for _ in range(6)]
    async with kept_alive(settings, tmp_path, more=("-B",)) as started:
        killer = await caller.until(poison.job_id, within=60)
        ended = await all_ended(caller, others)
        await cleared(caller.ground.broker)
        assert len(started) == 4
    assert (killer.status, killer.error_code, killer.attempt) == ("failed", "WorkerLost", 3)
    assert await outcomes(caller, poison) == [(n, "lost", "WorkerLost") for n in (1, 2, 3)]
    assert len([note for note in notes(effects) if note.job_id == poison.job_id]) == 3
    assert {job.status for job in ended} == {"succeeded"}
    assert max(job.attempt for job in ended) == 3


@pytest.mark.parametrize(("moment", "attempts"), [("before", 3), ("after", 2)])
async def test_a_retry_survives_the_death_of_its_worker(
    settings: Settings, caller: Caller, tmp_path: Path, moment: str, attempts: int
) -> None:
    """RTY-02: dead before the retry is recorded, the attempt was lost and is made again; dead after
    it, before anything else, it was asked for once and comes once."""
    effects = tmp_path / "effects"
    await know_the_tasks(caller.ground.ledger)
    job = await caller.submit("f.asks_again", str(effects), attempts, 0.3)
    words = (sys.executable, "-m", "tests.consumers.dying", moment)
    async with process(environment_of(settings), tmp_path / "a.log", *words) as dying:
        assert await dying.wait() == -signal.SIGKILL
    async with worker(settings, tmp_path / "b.log", more=("-B",)):
        ended = await caller.until(job.job_id)
        await cleared(caller.ground.broker)
    assert (ended.status, result_of(ended)) == ("succeeded", attempts)
    assert [note.attempt for note in notes(effects)] == list(range(1, attempts + 1))
    first = {"before": "lost", "after": "retried"}[moment]
    told = [outcome for _, outcome, _ in await outcomes(caller, job)]
    assert told == [first, *["retried"] * (attempts - 2), "succeeded"]


async def test_retries_survive_a_worker_that_is_killed_again_and_again(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """RTY-02: at random moments, for forty jobs that ask again and again; no retry is forgotten,
    and each attempt counts once."""
    settings = msgspec.structs.replace(settings, max_worker_losses=1000)
    effects, draw = tmp_path / "effects", random.Random(2)
    await know_the_tasks(caller.ground.ledger)
    jobs = [
        await caller.submit("f.asks_again", str(effects), 6, 0.2, max_retries=100)
        for _ in range(40)
    ]
    async with kept_alive(settings, tmp_path, slots=8, more=("-B",)) as started:
        for number in range(1, 6):
            await until(lambda n=number: len(started) >= n)
            await asyncio.sleep(draw.uniform(0.1, 0.8))
            await started[-1].kill()
        ended = await all_ended(caller, jobs)
        await cleared(caller.ground.broker)
    begun = Counter((note.job_id, note.attempt) for note in notes(effects))
    assert set(begun.values()) == {1}
    for job in ended:
        told = await outcomes(caller, job)
        assert (job.status, result_of(job)) == ("succeeded", job.attempt)
        # Nothing is counted twice, and nothing is left out.
        assert [attempt for attempt, _, _ in told] == list(range(1, job.attempt + 1))
        assert {outcome for _, outcome, _ in told[:-1]} <= {"retried", "lost"}
        assert job.attempt >= 6


@pytest.mark.parametrize("scheduler", [("-B",), ()])
async def test_a_last_attempt_that_loses_its_worker_fails(
    settings: Settings, caller: Caller, tmp_path: Path, scheduler: tuple[str, ...]
) -> None:
    """RTY-03, RTY-04: it never stays running; the history shows the cause. By the reaper after a
    lease and a scan, and without one by a worker that is given its entry."""
    effects = tmp_path / "effects"
    async with worker(settings, tmp_path / "a.log") as first:
        only = await caller.submit("f.held", str(effects), 60.0, max_retries=0)
        again = await caller.submit("f.asks_again", str(effects), 2, 0.1, max_retries=1)
        await caller.until(again.job_id)
        last = await caller.submit("f.kills_its_worker", str(effects), max_retries=0)
        await first.wait()
    scan = settings.reap_interval if scheduler else settings.reclaim_interval
    idle = settings.lease if scheduler else settings.reclaim_idle
    async with worker(settings, tmp_path / "b.log", more=scheduler):
        for job in (only, last):
            ended = await caller.until(job.job_id, within=idle + scan + 8)
            assert (ended.status, ended.error_code, ended.attempt) == ("failed", "WorkerLost", 1)
            assert await outcomes(caller, job) == [(1, "lost", "WorkerLost")]
        await cleared(caller.ground.broker)
    assert Counter(note.word for note in notes(effects)) == {"start": 4}


async def test_a_polite_stop_does_not_use_up_the_only_attempt(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """RTY-04, I10: handed back at the end of the grace, however often; the history shows it."""
    settings = msgspec.structs.replace(settings, grace=0.0)
    effects = tmp_path / "effects"
    await know_the_tasks(caller.ground.ledger)
    job = await caller.submit("f.held", str(effects), 1.5, max_retries=0)
    for number in (1, 2):
        async with worker(settings, tmp_path / f"{number}.log") as polite:
            await until(lambda n=number: len(notes(effects, "start")) == n)
            polite.signal(signal.SIGTERM)
            assert await polite.wait() == 0
        waiting = await caller.job(job.job_id)
        assert (waiting.status, waiting.attempt) == ("pending", 0)
    async with worker(settings, tmp_path / "last.log"):
        ended = await caller.until(job.job_id)
    assert (ended.status, ended.attempt) == ("succeeded", 1)
    told = [outcome for _, outcome, _ in await outcomes(caller, job)]
    assert told[:2] == ["handed_back", "handed_back"]


async def test_a_short_limit_of_the_app_does_not_touch_those_with_their_own(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """RTY-05: past the app's soft and hard limit, a task with a longer one or none is neither
    interrupted nor failed nor begun again; one with none of its own is ended."""
    effects = tmp_path / "effects"
    names = ("longer", "longer_in_thread", "none", "none_in_process")
    async with (
        worker(settings, tmp_path / "a.log", app_path=LIMITED, more=("-B",)),
        worker(settings, tmp_path / "b.log", app_path=LIMITED, more=("-B",)),
    ):
        jobs = [await caller.submit(f"l.{name}", str(effects), 4.0) for name in names]
        usual = await caller.submit("l.usual", str(effects), 4.0)
        ended = await all_ended(caller, jobs)
        limited = await caller.until(usual.job_id)
    assert {(job.status, job.attempt) for job in ended} == {("succeeded", 1)}
    own = [note for note in notes(effects) if note.job_id != usual.job_id]
    assert Counter(note.word for note in own) == {"start": 4, "end": 4}
    assert (limited.status, limited.error_code) == ("failed", "SoftTimeLimitExceeded")


async def test_a_very_long_limit_does_not_delay_the_rescue(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """RTY-06: of a short job, and of one with that limit too: the lease decides."""
    settings = msgspec.structs.replace(settings, reclaim_idle=600.0)
    effects = tmp_path / "effects"
    async with worker(settings, tmp_path / "a.log") as first:
        jobs = [
            await caller.submit(name, str(effects), 60.0) for name in ("f.held", "f.long_limit")
        ]
        await until(lambda: len(notes(effects)) == 2)
        async with worker(settings, tmp_path / "b.log", more=("-B",)):
            await first.kill()
            bound = settings.lease + settings.reap_interval
            ended = await all_ended(caller, jobs, within=bound + 6)
    assert {(job.status, job.attempt) for job in ended} == {("succeeded", 2)}


async def test_thousands_of_failures_lose_no_job(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """RTY-07: the delay grows to its cap and stays there; each job ends after its last attempt."""
    settings = msgspec.structs.replace(settings, relay_interval=0.05)
    async with worker(settings, tmp_path / "a.log", slots=60, more=("-B",)):
        jobs = [await caller.submit("f.always_fails") for _ in range(50)]
        ended = await all_ended(caller, jobs, within=90)
        await cleared(caller.ground.broker)
    assert {(job.status, job.error_code, job.attempt) for job in ended} == {
        ("failed", "TransientError", 41)
    }
    rows = await caller.ground.ledger.attempts("default", jobs[0].job_id)
    assert [row["attempt"] for row in rows] == list(range(1, 42))
    assert [row["outcome"] for row in rows] == ["retried"] * 40 + ["failed"]
    waits = [
        (later["started_at"] - earlier["ended_at"]).total_seconds()
        for earlier, later in itertools.pairwise(rows)
    ]
    for number, waited in enumerate(waits):
        assert waited >= min(0.01 * 2**number, 0.05) - 0.001


async def test_a_latest_start_time_is_kept_while_no_worker_is_there(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """RTY-09: workers that return after it do not run the job, with no scheduler to end it; what
    runs already when its time passes is not stopped."""
    effects = tmp_path / "effects"
    await know_the_tasks(caller.ground.ledger)
    late = [await caller.submit("f.held", str(effects), 0.1, expires=0.3) for _ in range(5)]
    await asyncio.sleep(0.4)
    async with worker(settings, tmp_path / "a.log"):
        running = await caller.submit("f.held", str(effects), 3.0, expires=1.5)
        ended = await all_ended(caller, [running, *late])
        await cleared(caller.ground.broker)
    assert ended[0].expires_at is not None
    assert ended[0].completed_at is not None
    assert (ended[0].status, ended[0].attempt) == ("succeeded", 1)
    assert ended[0].completed_at > ended[0].expires_at
    assert {(job.status, job.error_code, job.attempt) for job in ended[1:]} == {
        ("failed", "Expired", 0)
    }
    assert {note.job_id for note in notes(effects)} == {running.job_id}
