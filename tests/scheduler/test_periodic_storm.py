"""An hour of schedules, with four replicas whose own clocks are wrong and which are frozen, killed
and cut off at random: each tick is one job, and none is early (SCH-03, SCH-04, I6)."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lateack_core.recurrence import newest
from lateack_core.schedules import timing_of
from lateack_core.settings import Settings
from tests.scheduler.clockwork import Clockwork
from tests.scheduler.replicas import Replica, replica
from tests.sql.desk import Desk, until

SHIFTED = Path(__file__).with_name("shifted.py")
SHIFTS = ("-5", "-1.7", "3.2", "5")
SCHEDULES: dict[str, dict[str, Any]] = {
    "seconds": {"interval": 7},
    "minutes": {"cron": "* * * * *"},
    "quarters": {"cron": "*/15 * * * *", "zone": "Australia/Lord_Howe"},
    "odd": {"interval": 61.5, "anchor": datetime(2026, 1, 1, 0, 0, 3, tzinfo=UTC)},
}


class Storm:
    """Four places for replicas; whatever happens to one, another takes its place."""

    def __init__(self, desk: Desk, settings: Settings, stack: AsyncExitStack, seed: int) -> None:
        self.desk = desk
        self.settings = settings
        self.stack = stack
        self.dice = random.Random(seed)
        self.replicas: list[Replica] = []
        self.frozen: list[Replica] = []
        self.done: Counter[str] = Counter()

    async def start(self, shift: str) -> Replica:
        found = await self.stack.enter_async_context(replica(self.settings, shift, script=SHIFTED))
        await found.hear("ready")
        # What it says from now on is not read here, and must not fill its pipe.
        self.stack.callback(asyncio.create_task(_drain(found)).cancel)
        return found

    async def strike(self) -> None:
        """Something happens to one of them, or one that was frozen wakes."""
        what = self.dice.choice(["freeze", "freeze", "wake", "wake", "kill", "cut", "nothing"])
        place = self.dice.randrange(len(self.replicas))
        victim = self.replicas[place]
        if what == "freeze" and len(self.frozen) < 3 and victim not in self.frozen:
            victim.signal(signal.SIGSTOP)
            self.frozen.append(victim)
        elif what == "wake" and self.frozen:
            self.frozen.pop(self.dice.randrange(len(self.frozen))).signal(signal.SIGCONT)
        elif what == "kill" and self.done["kill"] < 6:
            victim.signal(signal.SIGKILL)
            if victim in self.frozen:
                self.frozen.remove(victim)
            self.replicas[place] = await self.start(SHIFTS[place])
        elif what == "cut":
            # Every session of every replica, in the middle of whatever it does.
            await self.desk.connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = 'lateack scheduler'"
            )
        else:
            what = "nothing"
        self.done[what] += 1

    def calm(self) -> None:
        """Everybody who is frozen wakes."""
        while self.frozen:
            self.frozen.pop().signal(signal.SIGCONT)


async def _drain(found: Replica) -> None:
    assert found.process.stderr is not None
    while await found.process.stderr.readline():
        pass


@pytest.mark.chaos
@pytest.mark.timeout(400)
async def test_an_hour_of_schedules(desk: Desk, settings: Settings) -> None:
    """SCH-04: four replicas with clocks up to 5 s off, frozen, killed and cut off at random: each
    tick of the hour is exactly one job, and none is early (I6)."""
    clock = Clockwork(desk)
    clock.now = begin = await clock.schedules.now()
    for name, when in SCHEDULES.items():
        # However long nobody could lead: a job for each tick.
        await clock.add(name, misfire="all(1000)", **when)
    planned = {name: await clock.get(name) for name in SCHEDULES}
    settings = msgspec.structs.replace(settings, leader_ttl=0.9)
    async with AsyncExitStack() as stack:
        storm = Storm(desk, settings, stack, seed=1)
        storm.replicas = list(await asyncio.gather(*(storm.start(shift) for shift in SHIFTS)))
        end = begin + timedelta(hours=1)
        while await clock.schedules.now() < end:
            # Somebody may get to lead in between; nobody has to.
            await desk.pass_time(storm.dice.uniform(20, 60))
            await storm.strike()
            await asyncio.sleep(storm.dice.uniform(0.1, 0.8))
        storm.calm()

        async def all_is_decided() -> bool:
            return all(
                found.next_due is not None and found.next_due > end
                for found in [await clock.get(name) for name in SCHEDULES]
            )

        await until(all_is_decided, 60)
    assert storm.done["freeze"] > 3
    assert storm.done["kill"] > 3
    assert storm.done["cut"] > 3

    jobs: list[object] = []
    for name, before in planned.items():
        assert before.next_due is not None
        request = clock.requests[name]
        expected = newest(timing_of(request), before.next_due, end, 10_000)
        ticks = [tick for tick in await clock.ticks(name) if tick["due_at"] <= end]
        assert [tick["due_at"] for tick in ticks] == expected, name
        assert all(tick["job_id"] is not None for tick in ticks), name
        assert all(tick["due_at"] <= tick["decided_at"] for tick in ticks), name
        assert all(tick["due_at"] <= tick["run_at"] for tick in ticks), name
        jobs += [tick["job_id"] for tick in ticks]
    assert len(set(jobs)) == len(jobs)
    # And no job that no tick knows of.
    all_ticks = await desk.count("ticks", "job_id IS NOT NULL")
    assert await desk.count("jobs") == all_ticks
    epochs = await desk.connection.fetchval("SELECT count(DISTINCT epoch) FROM lateack.ticks")
    assert epochs > 5
