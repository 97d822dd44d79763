"""Periodic jobs on a real ledger, whose clock stands where the test puts it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from lateack_core.jobs import Term
from lateack_core.leader import Leadership
from lateack_core.schedules import Schedules
from lateack_core.ticks import Ticks
from lateack_scheduler.periodic import decide
from lateack_scheduler.scheduler import start
from tests.scheduler.clockwork import Clockwork
from tests.sql.desk import Desk, until


async def test_a_tick_is_a_job_and_a_row(clock: Clockwork) -> None:
    """I6: at its time, not before, and once, however often somebody looks."""
    await clock.add(
        cron="0 * * * *", args=[1], kwargs={"a": [2.50]}, queue="other", priority=8, expires=60
    )
    await clock.set("2026-01-01T12:59:59.999999+00:00")
    assert await clock.turn() == 0
    await clock.set("2026-01-01T13:00:00+00:00")
    assert [await clock.turn() for _ in range(3)] == [1, 0, 0]
    (tick,) = await clock.ticks()
    job = (await clock.desk.ledger.get("default", [tick["job_id"]]))[tick["job_id"]]
    assert (job.task, job.queue, job.priority, job.status) == ("t.work", "other", 8, "pending")
    assert job.meta == {"schedule": "it", "due_at": "2026-01-01T13:00:00.000000Z"}
    assert job.expires_at == clock.now + timedelta(seconds=60)
    assert await clock.desk.count("outbox") == 1
    found = await clock.get()
    assert found.next_due == clock.now + timedelta(hours=1)
    assert found.last is not None
    assert (found.last.outcome, found.last.job_id) == ("fired", tick["job_id"])


async def test_a_replica_that_was_frozen_after_deciding(clock: Clockwork) -> None:
    """SCH-03: the decision of a term that is over is refused; the tick is one job of the new."""
    desk = clock.desk
    await clock.add(interval=10)
    old = Leadership(desk.ground.postgres, ttl=5)
    assert await old.campaign()
    assert old.term is not None
    await clock.step(seconds=10)
    ticks = Ticks(desk.ground.postgres)
    decided = [decide(due) for due in await ticks.due(10)]
    new = Leadership(desk.ground.postgres, ttl=5)
    assert await new.campaign()
    assert new.term is not None
    assert await ticks.fire(old.term, decided) == []
    assert await clock.turn(new.term) == 1
    # It wakes and says it again, and so does the new leader: the tick was decided about.
    assert await ticks.fire(old.term, decided) == []
    assert await ticks.fire(new.term, decided) == []
    assert await clock.told() == ["12:00:10 fired"]
    assert await desk.count("jobs") == 1


async def test_deciders_at_the_same_moment(clock: Clockwork) -> None:
    """I6: within one term too: many decide the same, one writes."""
    for number in range(20):
        await clock.add(f"s{number}", interval=10)
    await clock.step(seconds=10)
    term = await clock.desk.lead()
    ticks = Ticks(clock.desk.ground.postgres)
    decided = [decide(due) for due in await ticks.due(100)]
    done = await asyncio.gather(*(ticks.fire(term, decided) for _ in range(6)))
    assert sum(map(len, done)) == 20
    assert await clock.desk.count("jobs") == 20


async def test_nothing_fires_before_the_ledgers_clock_says_so(clock: Clockwork) -> None:
    """SCH-04: a replica that takes it for later than it is decides, and is refused."""
    await clock.add(interval=10)
    await clock.step(seconds=10)
    ticks = Ticks(clock.desk.ground.postgres)
    decided = [decide(due) for due in await ticks.due(10)]
    await clock.step(seconds=-5)
    assert await ticks.fire(await clock.desk.lead(), decided) == []
    await clock.step(seconds=5)
    assert await clock.turn() == 1


async def test_a_clock_that_goes_backwards(clock: Clockwork) -> None:
    """I6: what has fired does not fire again, though its time comes again."""
    await clock.add(interval=60)
    for _ in range(3):
        await clock.step(seconds=60)
        await clock.turn()
    await clock.set("2026-01-01T12:00:00+00:00")
    # A new leader plans anew, by the clock that it finds.
    await clock.desk.connection.execute("UPDATE lateack.leader SET epoch = epoch + 1")
    term = await clock.desk.lead()
    term = Term(term.name, term.holder, term.epoch + 1)
    for _ in range(4):
        await clock.step(seconds=60)
        await clock.turn(term)
    assert await clock.told() == [f"12:0{minute}:00 fired" for minute in range(1, 5)]
    assert await clock.desk.count("jobs") == 4


@pytest.mark.parametrize(
    ("zone", "changes"),
    [
        ("Europe/Berlin", ("2026-03-28", "2026-10-24")),
        ("America/New_York", ("2026-03-07", "2026-10-31")),
        ("Australia/Lord_Howe", ("2026-04-04", "2026-10-03")),
        ("America/Santiago", ("2026-04-03", "2026-09-05")),
        ("Africa/Cairo", ("2026-04-23", "2026-10-29")),
    ],
)
async def test_days_on_which_clocks_change(
    clock: Clockwork, zone: str, changes: Sequence[str]
) -> None:
    """SCH-06: three days around each change, turn by turn: daily jobs once per local day, hourly
    ones once per real hour (at Lord Howe once per hour that the clock shows)."""
    daily = {"half past two": "30 2 * * *", "midnight": "0 0 * * *", "late": "45 23 * * *"}
    for change in changes:
        begin = datetime.fromisoformat(change).replace(tzinfo=ZoneInfo(zone))
        await clock.set(begin - timedelta(seconds=1))
        for name, expression in {**daily, "hourly": "0 * * * *"}.items():
            await clock.add(f"{change} {name}", cron=expression, zone=zone)
        end = begin + timedelta(days=3)
        while clock.now.astimezone(UTC) < end.astimezone(UTC) - timedelta(minutes=15):
            await clock.set(clock.now.astimezone(UTC) + timedelta(minutes=15))
            await clock.turn()
        days = {(begin + timedelta(days=n)).date() for n in range(3)}
        for name in daily:
            fired = Counter(
                tick["due_at"].astimezone(ZoneInfo(zone)).date()
                for tick in await clock.ticks(f"{change} {name}")
                if tick["job_id"] is not None
            )
            assert fired == dict.fromkeys(days, 1), name
        hourly = [tick["due_at"] for tick in await clock.ticks(f"{change} hourly")]
        gaps = {b - a for a, b in pairwise(hourly)}
        if zone == "Australia/Lord_Howe":
            assert gaps <= {timedelta(minutes=minutes) for minutes in (30, 60, 90)}
        else:
            assert gaps == {timedelta(hours=1)}
        # The hours in between, the one that was left out or came twice included.
        real = (end.astimezone(UTC) - begin.astimezone(UTC)) / timedelta(hours=1)
        assert abs(len(hourly) - real) < 1
        await clock.desk.connection.execute("DELETE FROM lateack.schedules")


async def test_a_scheduler_that_was_away_for_six_hours(clock: Clockwork) -> None:
    """SCH-07: each policy makes the jobs that it states, spread over time; every tick is a row."""
    for policy in ("skip", "once", "all(4)", "all(100)"):
        await clock.add(policy, cron="*/30 * * * *", misfire=policy)
    await clock.add("secondly", interval=1, misfire="all(5)")
    await clock.turn()
    await clock.set("2026-01-01T18:10:00+00:00")
    await clock.turn()
    expected = {"skip": 0, "once": 1, "all(4)": 4, "all(100)": 12}
    for policy, count in expected.items():
        ticks = await clock.ticks(policy)
        assert [tick["due_at"] for tick in ticks] == [
            datetime(2026, 1, 1, 12, tzinfo=UTC) + timedelta(minutes=30 * n) for n in range(1, 13)
        ]
        jobs = [tick for tick in ticks if tick["job_id"] is not None]
        assert [tick["outcome"] for tick in ticks] == ["missed"] * (12 - count) + ["late"] * count
        assert {tick["reason"] for tick in jobs} <= {"catch_up"}
        starts = [tick["run_at"] for tick in jobs]
        # Nothing at once, nothing together.
        assert all(start >= clock.now for start in starts)
        assert starts == sorted(set(starts))
        assert all(b - a == timedelta(minutes=1) for a, b in pairwise(starts))
        assert {tick["status"] for tick in jobs} <= {"scheduled"}
    secondly = await clock.ticks("secondly")
    assert len(secondly) == 1001
    assert secondly[0]["until"] == secondly[1]["due_at"]
    reasons = Counter(tick["reason"] for tick in secondly)
    assert reasons["catch_up"] == 5
    # And it goes on as if nothing had been.
    await clock.set("2026-01-01T18:30:00+00:00")
    await clock.turn()
    assert (await clock.told("skip"))[-1] == "18:30:00 fired"


async def test_runs_do_not_overlap(clock: Clockwork) -> None:
    """SCH-08: a run that outlasts its interval: one is live, and skipped ticks are rows."""
    await clock.add(interval=60, overlap="skip")
    live = []
    for minute in range(6):
        await clock.step(seconds=60)
        await clock.turn()
        live.append(await clock.desk.count("jobs", "completed_at IS NULL"))
        if minute == 3:
            await clock.end_jobs()
    assert live == [1, 1, 1, 1, 1, 1]
    assert await clock.told() == [
        "12:01:00 fired",
        "12:02:00 skipped overlap",
        "12:03:00 skipped overlap",
        "12:04:00 skipped overlap",
        "12:05:00 fired",
        "12:06:00 skipped overlap",
    ]


async def test_a_run_by_hand_counts_as_a_run(clock: Clockwork) -> None:
    """SCH-08: at most one queued or running, whoever started it, also at the same moment."""
    await clock.add(interval=60, overlap="skip")
    run = await clock.schedules.run("default", "it", None)
    assert run is not None
    assert run.job_id is not None
    again = await clock.schedules.run("default", "it", None)
    assert again is not None
    assert (again.job_id, again.hindrance) == (None, "overlap")
    await clock.step(seconds=60)
    assert await clock.turn() == 0
    await clock.end_jobs()
    await clock.step(seconds=60)
    runs = await asyncio.gather(
        clock.turn(), *(clock.schedules.run("default", "it", None) for _ in range(4))
    )
    made = [run for run in runs[1:] if not isinstance(run, int) and run and run.job_id]
    await clock.turn()
    assert len(made) + Counter(await clock.told())["12:02:00 fired"] == 1
    assert await clock.desk.count("jobs", "completed_at IS NULL") == 1


async def test_a_paused_schedule(clock: Clockwork) -> None:
    """Its ticks are rows; it goes on with its next tick; pausing is not undone by an edit."""
    await clock.add(interval=60)
    assert await clock.schedules.pause("default", "it", paused=True)
    await clock.step(seconds=60)
    assert await clock.turn() == 0
    await clock.add(interval=60, misfire="all(5)")
    assert (await clock.get()).paused
    await clock.step(seconds=60)
    assert await clock.turn() == 0
    assert await clock.schedules.pause("default", "it", paused=False)
    await clock.step(seconds=60)
    assert await clock.turn() == 1
    assert await clock.told() == [
        "12:01:00 skipped paused",
        "12:02:00 skipped paused",
        "12:03:00 fired",
    ]


async def test_inserts_that_are_blocked(desk: Desk) -> None:
    """SCH-09: for a minute nothing can be inserted, and the leader's row can still be had now and
    then; when it is freed every schedule goes on, and no tick of that minute is lost."""
    clock = Clockwork(desk)
    requests = {"often": 5.0, "seldom": 20.0}
    for name, interval in requests.items():
        clock.now = await clock.schedules.now()
        await clock.add(name, interval=interval)
    began = clock.now
    desk.ground.start()
    start(desk.ground)

    async def fired(name: str) -> set[datetime]:
        return {tick["due_at"] for tick in await clock.ticks(name) if tick["job_id"] is not None}

    async with desk.open_transaction() as holder:
        await holder.execute("LOCK TABLE lateack.jobs IN SHARE MODE")
        for _ in range(6):
            await desk.pass_time(10)
            await desk.blocked()
        assert await fired("often") == set()
    freed = await clock.schedules.now()
    for name, interval in requests.items():
        first = -(-began.timestamp() // interval) * interval
        due = {
            datetime.fromtimestamp(first + n * interval, UTC)
            for n in range(int((freed.timestamp() - first) // interval) + 1)
        }

        async def caught(name: str = name, due: set[datetime] = due) -> bool:
            return due - {began} <= await fired(name)

        await until(caught)


async def test_new_rules_of_a_zone(clock: Clockwork) -> None:
    """What was planned by old rules is planned anew by the next leader."""
    await clock.add("yearly", cron="0 3 1 7 *", zone="Europe/Berlin")
    right = (await clock.get("yearly")).next_due
    await clock.desk.connection.execute(
        "UPDATE lateack.schedules SET next_due = next_due + interval '1 hour'"
    )
    await clock.turn()
    assert (await clock.get("yearly")).next_due == right


async def test_ten_thousand_schedules(clock: Clockwork) -> None:
    """What is not due is not read: a turn goes by the index, and all that is due at once fires."""
    connection = clock.desk.connection
    await clock.add("one", interval=3600)
    await connection.execute(
        "INSERT INTO lateack.schedules (id, tenant_id, name, task, every, origin, next_due, "
        "created_at, updated_at) SELECT lateack.uuid7(), 'default', 'n' || n, 't.work', 3600, "
        "'api', lateack.now() + interval '1 hour' * (1 + n % 10), lateack.now(), lateack.now() "
        "FROM generate_series(1, 9999) AS n"
    )
    await connection.execute("ANALYZE lateack.schedules")
    plan = "\n".join(
        row[0]
        for row in await connection.fetch(
            "EXPLAIN SELECT id FROM lateack.schedules WHERE next_due <= lateack.now() "
            "ORDER BY next_due LIMIT 200"
        )
    )
    assert "schedules_due" in plan
    await clock.step(hours=1)
    # Those that have an hour to go, and the one made by hand.
    due = await clock.desk.count("schedules", "next_due <= lateack.now()")
    assert due == 1000
    assert await clock.turn() == due
    assert await clock.turn() == 0
    assert await Schedules(clock.desk.ground.postgres).page("other", after=None, most=5) == []
