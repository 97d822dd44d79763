"""Declaring schedules, and what is decided about their ticks: both without a server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from lateack import App, DeclarationError, crontab
from lateack.models import ScheduleRequest
from lateack.schedules import caught_up, misfire_problem
from lateack_core.recurrence import Timing
from lateack_core.ticks import Due, Plan
from lateack_scheduler.periodic import MOST_TICKS, decide

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


# -- declarations ---------------------------------------------------------------------------------


def test_a_periodic_task() -> None:
    app = App("a", timezone="Asia/Shanghai")

    @app.periodic("0  3 * * *", misfire="all(3)", overlap="skip", expires=timedelta(hours=1))
    @app.periodic(timedelta(minutes=5), name="often", args=[1], zone="UTC", tenant="acme")
    @app.task(name="t.nightly", queue="reports")
    def nightly(number: int = 0) -> int:
        return number

    assert nightly(7) == 7
    assert [task.name for task in app.tasks.values()] == ["t.nightly"]
    often, named = app.schedules
    assert (often.name, often.tenant, often.request.interval) == ("often", "acme", 300.0)
    assert often.request.args == [1]
    assert named == type(named)(
        "default",
        "t.nightly",
        ScheduleRequest(
            task="t.nightly",
            cron="0 3 * * *",
            zone="Asia/Shanghai",
            misfire="all(3)",
            overlap="skip",
            expires=3600.0,
            paused=False,
        ),
    )


def test_a_plain_function_becomes_a_task() -> None:
    app = App("a")

    @app.periodic(30)
    async def poll() -> None: ...

    assert list(app.tasks) == [poll.name]
    assert app.schedules[0].request.interval == 30.0


@pytest.mark.parametrize(
    ("when", "options", "words"),
    [
        (0.5, {}, "interval is seconds"),
        (float("nan"), {}, "interval is seconds"),
        (object(), {}, "does not say when"),
        (True, {}, "does not say when"),
        ("* * * * *", {"name": "a/b"}, "a schedule's name"),
        ("* * * * *", {"misfire": "all"}, "misfire is"),
        ("* * * * *", {"misfire": "all(0)"}, "misfire is"),
        ("* * * * *", {"misfire": "all(1001)"}, "misfire is"),
        ("* * * * *", {"priority": 10}, "priority is 0 to 9"),
        ("* * * * *", {"queue": "a b"}, "a queue's name"),
        ("* * * * *", {"tenant": "a b"}, "a tenant's name"),
        ("* * * * *", {"expires": 0}, "expires is seconds"),
        ("* * * * *", {"anchor": NOON}, "anchor is for an interval"),
        ("* * * * *", {"args": [1, 2]}, "takes at most 1 positional"),
        ("* * * * *", {"args": ["\x00"]}, "NUL"),
        ("* * * * *", {"args": [object()]}, "JSON"),
        ("* * * * *" + " " * 10 + "x" * 200, {}, "200 characters"),
    ],
)
def test_declarations_that_cannot_work(when: Any, options: dict[str, Any], words: str) -> None:
    """What can be seen in the code is refused where it is written."""
    app = App("a")
    with pytest.raises(DeclarationError, match=words):

        @app.periodic(when, **options)
        @app.task(name="t.x")
        def x(value: Any = None) -> None: ...


def test_a_bad_expression_does_not_keep_an_app_from_starting() -> None:
    """SCH-10: the scheduler reports it with the schedule; the other ones fire."""
    app = App("a")
    app.beat_schedule = {"bad": {"task": "t.x", "schedule": crontab(minute="61")}}
    assert app.schedules[0].request.cron == "61 * * * *"


def test_two_schedules_of_one_name() -> None:
    app = App("a")
    with pytest.raises(DeclarationError, match=r"two schedules are called t\.x; .*name="):

        @app.periodic(10)
        @app.periodic(20)
        @app.task(name="t.x")
        def x() -> None: ...

    app = App("a")
    app.periodic(10, name="it")(x_of(app))
    with pytest.raises(DeclarationError, match="two schedules are called it"):
        app.beat_schedule = {"it": {"task": "t.x", "schedule": 5}}


def x_of(app: App) -> Any:
    @app.task(name="t.x")
    def x() -> None: ...

    return x


class CelerysCrontab:
    """What Celery's own crontab keeps."""

    _orig_minute = 0
    _orig_hour = "8,20"
    _orig_day_of_week = "mon-fri"
    _orig_day_of_month = "*"
    _orig_month_of_year = "*"


class CelerysSchedule:
    """What Celery's own schedule keeps."""

    run_every = timedelta(seconds=90)


def test_a_beat_schedule_is_taken_over() -> None:
    app = App("a", timezone="Europe/Berlin")
    app.beat_schedule = {
        "add-every-30-seconds": {"task": "tasks.add", "schedule": 30.0, "args": (16, 16)},
        "send reports (daily)": {
            "task": "tasks.report",
            "schedule": crontab(hour=7, minute=30, day_of_week=1),
            "kwargs": {"lang": "de"},
            "options": {
                "queue": "reports",
                "priority": 3,
                "expires": timedelta(minutes=10),
                "serializer": "json",
                "routing_key": "r",
            },
        },
        "delta": {"task": "tasks.add", "schedule": timedelta(minutes=1), "relative": True},
        "theirs": {"task": "tasks.add", "schedule": CelerysCrontab()},
        "theirs too": {"task": "tasks.add", "schedule": CelerysSchedule(), "options": None},
    }
    found = {one.name: one.request for one in app.schedules}
    assert found["add-every-30-seconds"].args == [16, 16]
    daily = found["send reports (daily)"]
    assert (daily.cron, daily.days, daily.zone) == ("30 7 * * 1", "both", "Europe/Berlin")
    assert (daily.kwargs, daily.queue, daily.priority) == ({"lang": "de"}, "reports", 3)
    assert daily.expires == 600.0
    assert found["delta"].interval == 60.0
    assert found["theirs"].cron == "0 8,20 * * 1-5"
    assert found["theirs too"].interval == 90.0


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"task": "t.x"}, "has task and schedule"),
        ({"task": "t.x", "schedule": 10, "tasks": 1}, "has task and schedule"),
        ({"task": "t.x", "schedule": 10, "options": {"link": 1}}, "link mean nothing"),
        ({"task": "t.x", "schedule": 10, "options": {"expires": NOON}}, "not a time"),
        ({"task": "t x", "schedule": 10}, "task"),
    ],
)
def test_beat_entries_that_cannot_be_taken_over(entry: dict[str, Any], words: str) -> None:
    app = App("a")
    with pytest.raises(DeclarationError, match=words):
        app.beat_schedule = {"it": entry}


@pytest.mark.parametrize(
    ("given", "expression"),
    [
        ({}, "* * * * *"),
        ({"minute": 0, "hour": "*/3"}, "0 */3 * * *"),
        ({"minute": {30, 0}, "hour": [8, 20]}, "0,30 8,20 * * *"),
        ({"hour": "22-3", "minute": "0"}, "0 22,23,0,1,2,3 * * *"),
        ({"hour": "20-4/3", "minute": "0"}, "0 20,23,2 * * *"),
        ({"day_of_week": "fri-mon"}, "* * * * 5,6,0,1"),
        ({"day_of_week": "Sunday, thu"}, "* * * * 0,4"),
        ({"month_of_year": "Jan-mar,12", "day_of_month": "2-30/2"}, "* * 2-30/2 1-3,12 *"),
        ({"minute": "what"}, "what * * * *"),
    ],
)
def test_crontab(given: dict[str, Any], expression: str) -> None:
    """Celery's words in cron's."""
    assert crontab(**given).expression == expression


def test_misfire_policies() -> None:
    assert [caught_up(policy) for policy in ("skip", "once", "all(7)")] == [0, 1, 7]
    assert misfire_problem("all(1000)") is None
    assert misfire_problem("all(-1)") is not None


# -- decisions ------------------------------------------------------------------------------------


def due(next_due: datetime, *, cron: str = "0 * * * *", **fields: Any) -> Due:
    given = {"misfire": "once", "overlap": "allow", "expires": None, "paused": False, "now": NOON}
    timing = Timing(cron, "either", None, None, "UTC")
    return Due(id=UUID(int=250), revision=1, next_due=next_due, timing=timing, **(given | fields))


def told(plan: Plan) -> list[str]:
    return [" ".join(filter(None, (f"{t.due_at:%H:%M}", t.outcome, t.reason))) for t in plan.ticks]


def test_on_time_and_late() -> None:
    for seconds, expected in ((0, "fired"), (4, "fired"), (6, "late"), (119, "late")):
        plan = decide(due(NOON, now=NOON + timedelta(seconds=seconds)))
        assert told(plan) == [f"12:00 {expected}"]
        assert plan.ticks[0].run_at is None
        assert plan.next_due == NOON + timedelta(hours=1)


@pytest.mark.parametrize(
    ("misfire", "expected"),
    [
        ("skip", ["missed misfire"] * 5),
        ("once", ["missed misfire"] * 4 + ["late catch_up"]),
        ("all(3)", ["missed misfire"] * 2 + ["late catch_up"] * 3),
        ("all(100)", ["late catch_up"] * 5),
    ],
)
def test_misfires(misfire: str, expected: list[str]) -> None:
    """SCH-07: as many jobs as the policy states, the newest ticks; the tick of now fires anyway."""
    plan = decide(due(NOON - timedelta(hours=5), misfire=misfire))
    hours = [f"{hour:02}:00" for hour in range(7, 12)]
    assert told(plan) == [
        *(f"{hour} {what}" for hour, what in zip(hours, expected, strict=True)),
        "12:00 fired",
    ]


def test_catching_up_is_spread() -> None:
    """SCH-07: a tenth of the interval apart, from a second to a minute."""
    plan = decide(due(NOON - timedelta(hours=5), misfire="all(3)"))
    starts = [tick.run_at for tick in plan.ticks if tick.run_at is not None]
    first, minute = NOON + timedelta(seconds=15), timedelta(minutes=1)
    assert starts == [first, first + minute, first + 2 * minute]
    plan = decide(due(NOON - timedelta(hours=5), cron="* * * * *", misfire="all(5)"))
    starts = [tick.run_at for tick in plan.ticks if tick.run_at is not None]
    assert [later - starts[0] for later in starts] == [timedelta(seconds=6) * n for n in range(5)]


def test_expired_ticks_make_no_job() -> None:
    plan = decide(due(NOON - timedelta(hours=3), misfire="all(10)", expires=5400.0))
    assert told(plan) == [
        "09:00 missed expired",
        "10:00 missed expired",
        "11:00 late catch_up",
        "12:00 fired",
    ]


def test_without_overlap_only_the_newest_fires() -> None:
    """SCH-08: of what is due together, one; the others are recorded."""
    plan = decide(due(NOON - timedelta(hours=2), misfire="all(10)", overlap="skip"))
    assert told(plan) == ["10:00 skipped overlap", "11:00 skipped overlap", "12:00 fired"]
    late = NOON + timedelta(minutes=30)
    plan = decide(due(NOON - timedelta(hours=1), misfire="once", overlap="skip", now=late))
    assert told(plan) == ["11:00 missed misfire", "12:00 late catch_up"]


def test_paused_ticks_are_skipped() -> None:
    plan = decide(due(NOON - timedelta(hours=1), paused=True, misfire="all(10)"))
    assert told(plan) == ["11:00 skipped paused", "12:00 skipped paused"]


def test_very_many_ticks_share_a_row() -> None:
    """SCH-07: a schedule that was away for years: a thousand rows, and one for all before them."""
    begin = NOON - timedelta(days=2000)
    plan = decide(due(begin, cron="* * * * *", misfire="all(2)"))
    assert len(plan.ticks) == MOST_TICKS + 1
    span = plan.ticks[0]
    assert (span.due_at, span.outcome, span.until) == (begin, "missed", plan.ticks[1].due_at)
    assert sum(tick.outcome != "missed" for tick in plan.ticks) == 2 + 3


def test_what_cannot_be_planned_waits_with_its_reason() -> None:
    """SCH-10"""
    plan = decide(due(NOON, cron="0 0 30 2 *"))
    assert (plan.next_due, list(plan.ticks)) == (None, [])
    assert plan.problem is not None
    assert "day-of-month" in plan.problem
