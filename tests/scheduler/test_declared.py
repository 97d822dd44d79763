"""Schedules of the code beside edited ones: who wins, and what a bad one does to the others."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from lateack import App
from lateack_core.identifiers import uuid7
from lateack_core.jobs import Term
from lateack_core.registry import entries_of
from tests.scheduler.clockwork import Clockwork


async def test_bad_schedules_among_good_ones(clock: Clockwork) -> None:
    """SCH-10: each bad one is reported with its reason, and all others fire on time."""
    app = App("bad ones")
    app.beat_schedule = {
        "expression": {"task": "t.work", "schedule": "61 * * * *"},
        "date": {"task": "t.work", "schedule": "0 0 30 2 *"},
        "task": {"task": "t.never", "schedule": 60.0},
        "arguments": {"task": "t.strict", "schedule": 60.0, "args": [1, 2, 3]},
        "good": {"task": "t.work", "schedule": 60.0},
        "fields": {"task": "t.work", "schedule": "* * *"},
    }

    @app.periodic("* * * * *", name="zone", zone="Mars/Olympus")
    @app.task(name="t.strict")
    def strict(one: int = 1) -> None: ...

    await clock.desk.ledger.register_tasks(entries_of(app))
    await clock.schedules.declare(app)
    await clock.add("another", cron="* * * * *")
    # One that became bad in the ledger itself, and one that cannot be written.
    await clock.add("broken", cron="* * * * *")
    await clock.add("unwritable", cron="* * * * *")
    await clock.desk.connection.execute(
        "UPDATE lateack.schedules SET zone = 'Atlantis' WHERE name = 'broken'"
    )
    await clock.desk.connection.execute(
        "UPDATE lateack.schedules SET queue = 'a b' WHERE name = 'unwritable'"
    )
    for _ in range(2):
        await clock.step(seconds=60)
        await clock.turn()
    assert await clock.told("good") == ["12:01:00 fired", "12:02:00 fired"]
    assert await clock.told("another") == ["12:01:00 fired", "12:02:00 fired"]
    assert await clock.told("task") == [f"12:0{m}:00 skipped unknown_task" for m in (1, 2)]
    assert await clock.told("arguments") == [
        f"12:0{m}:00 skipped invalid_arguments" for m in (1, 2)
    ]
    page = await clock.schedules.page("default", after=None, most=50)
    problems = {one.name: one.problem for one in page}
    assert problems.pop("good") is None
    assert problems.pop("another") is None
    words = {
        "expression": "minute",
        "date": "day-of-month",
        "fields": "3 fields",
        "zone": "Mars/Olympus",
        "broken": "Atlantis",
        "unwritable": "queue's name",
        "task": "no worker ever registered a task t.never",
        "arguments": "takes at most 1 positional arguments, got 3",
    }
    assert problems.keys() == words.keys()
    for name, word in words.items():
        assert word in (problems[name] or ""), name

    # A worker that knows the task comes: the reason is gone, and the next tick fires.
    late = App("late")
    late.task(name="t.never")(strict.function)
    await clock.desk.ledger.register_tasks(entries_of(late))
    assert (await clock.get("task")).problem is None
    await clock.step(seconds=60)
    await clock.turn()
    assert (await clock.told("task"))[-1] == "12:03:00 fired"


async def test_a_scheduler_that_is_restarted_every_hour(clock: Clockwork) -> None:
    """SCH-12: what was planned is in the ledger, so a daily job is daily; so are a deploy's
    declarations, an hourly one included."""
    app = App("daily")
    app.beat_schedule = {"daily": {"task": "t.work", "schedule": "30 3 * * *"}}
    days = 3
    for epoch in range(24 * days):
        await clock.step(hours=1)
        await clock.desk.connection.execute(
            "INSERT INTO lateack.leader VALUES ('restarted', $1, $2, lateack.now()) "
            "ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, epoch = excluded.epoch",
            holder := uuid7(),
            epoch,
        )
        again = Clockwork(clock.desk)
        await again.schedules.declare(app)
        await again.turn(Term("restarted", holder, epoch))
    ticks = await clock.ticks("daily")
    assert [tick["due_at"].day for tick in ticks] == [2, 3, 4]
    assert [tick["outcome"] for tick in ticks] == ["late"] * days


async def test_the_last_word_wins(clock: Clockwork) -> None:
    """An edit holds until the declaration changes; what is declared no longer is retired."""

    def app(**schedules: Any) -> App:
        app = App("code")
        app.beat_schedule = {
            name: {"task": "t.work", "schedule": when} for name, when in schedules.items()
        }
        return app

    async def state(name: str) -> tuple[Any, ...]:
        found = await clock.get(name)
        return found.interval, found.origin, found.edited, found.retired, found.paused

    await clock.schedules.declare(app(a=60, b=60))
    assert await state("a") == (60, "code", False, False, False)
    await clock.add("a", interval=10)
    await clock.schedules.pause("default", "a", paused=True)
    # A deploy of the same declaration.
    await clock.schedules.declare(app(a=60, b=60))
    assert await state("a") == (10, "code", True, False, True)
    # Of a changed one.
    await clock.schedules.declare(app(a=90, b=60))
    assert await state("a") == (90, "code", False, False, True)
    assert await clock.schedules.delete("default", "a") == (False, "code")

    await clock.schedules.declare(app(a=90))
    assert await state("b") == (60, "code", False, True, False)
    await clock.step(seconds=60)
    await clock.turn()
    assert await clock.told("b") == []
    await clock.schedules.declare(app(a=90, b=60))
    assert await state("b") == (60, "code", False, False, False)
    await clock.schedules.declare(app(a=90))
    # Somebody wants to keep it.
    await clock.add("b", interval=60)
    await clock.schedules.declare(app(a=90))
    assert await state("b") == (60, "api", False, False, False)
    assert await clock.schedules.delete("default", "b") == (True, None)
    assert await clock.schedules.delete("default", "b") is None

    # Another app does not take a name that is declared.
    other = App("other")
    other.beat_schedule = {"a": {"task": "t.work", "schedule": 5}}
    await clock.schedules.declare(other)
    assert (await clock.get("a")).app == "code"


async def test_an_edit_of_something_else_loses_no_tick(clock: Clockwork) -> None:
    """A tick that is due while the schedule is edited fires, with what it says now."""
    await clock.add(interval=60)
    await clock.step(seconds=60)
    await clock.add(interval=60, args=[7])
    assert await clock.turn() == 1
    assert await clock.told() == ["12:01:00 fired"]
    await clock.add(interval=45)
    assert (await clock.get()).next_due == datetime(2026, 1, 1, 12, 1, 30, tzinfo=UTC)
