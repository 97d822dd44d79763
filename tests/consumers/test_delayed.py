"""Delayed jobs, while what promotes them and what carries them are killed again and again."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path

import msgspec

from lateack_cli.embedded import EmbeddedServers
from lateack_core.ground import open_ground
from lateack_core.settings import Settings
from lateack_core.stream import Hint
from tests.consumers.conftest import Caller
from tests.consumers.faults import all_ended, cleared, know_the_tasks, notes, worker
from tests.consumers.processes import Process, lateack

JOBS, FIRST, LAST = 300, 3.0, 9.0
# A relay that was killed with rows in its hand delays those by its lease, five seconds.
LATE = 5.0 + 10.0


async def test_delayed_jobs_survive_the_deaths_of_relay_and_broker(
    own_servers: EmbeddedServers, own_settings: Settings, tmp_path: Path
) -> None:
    """DEL-10: three hundred jobs come due over six seconds, in which the one process that promotes
    them is killed and restarted all the time, and the broker three times. Each runs once, never
    early though it is hinted at, and at most a few seconds late."""
    effects = tmp_path / "effects"
    # The relay of everybody else looks once in ten minutes.
    lazy = msgspec.structs.replace(own_settings, relay_interval=600.0)
    ground = await open_ground(lazy, process="test")
    deaths: Counter[str] = Counter()

    async def killed_again_and_again() -> None:
        number = 0
        while True:
            number += 1
            log = tmp_path / f"s{number}.log"
            async with lateack(own_settings, log, "scheduler") as scheduler:
                await _leads(scheduler)
                await asyncio.sleep(0.7)
            deaths["scheduler"] += 1

    async def broken_down() -> None:
        for _ in range(3):
            await asyncio.sleep(2.0)
            await own_servers.broker.kill()
            await own_servers.broker.start()
            deaths["broker"] += 1

    try:
        ground.start()
        caller = Caller(ground)
        await know_the_tasks(ground.ledger)
        async with worker(lazy, tmp_path / "w.log", slots=20) as running:
            killing = asyncio.create_task(killed_again_and_again())
            try:
                step = (LAST - FIRST) / JOBS
                jobs = [
                    await caller.submit(
                        "f.held", str(effects), 0.0, countdown=FIRST + number * step
                    )
                    for number in range(JOBS)
                ]
                # Hints that come before their time, as from a broker's old snapshot.
                await ground.broker.publish([Hint(job.job_id, "q", 5) for job in jobs[::3]])
                await broken_down()
            finally:
                killing.cancel()
                await asyncio.wait({killing})
            async with lateack(own_settings, tmp_path / "last.log", "scheduler"):
                ended = await all_ended(caller, jobs, within=60)
                await cleared(ground.broker)
            assert running.returncode is None
    finally:
        await ground.close()
    assert {(job.status, job.attempt) for job in ended} == {("succeeded", 1)}
    assert Counter(note.word for note in notes(effects)) == {"start": JOBS, "end": JOBS}
    assert deaths["broker"] == 3
    assert deaths["scheduler"] >= 3
    waits = [(job.started_at - job.run_at).total_seconds() for job in ended if job.started_at]
    assert len(waits) == JOBS
    assert min(waits) >= 0
    assert max(waits) < LATE


async def _leads(scheduler: Process) -> None:
    """Wait until it has started; it may lead or not, every process's relay promotes."""
    for _ in range(400):
        with contextlib.suppress(FileNotFoundError):
            if "scheduler" in scheduler.log.read_text():
                return
        await asyncio.sleep(0.02)
