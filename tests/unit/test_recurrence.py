"""When schedules fire, over both changes of the clocks."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest

from lateack.models import Days
from lateack_core.recurrence import Timing, Unplannable, coming, following, instants, newest

# Changes at 1, 2, 3 and 24 o'clock, by an hour and by half of one, in both halves of the world.
ZONES = (
    "Europe/Berlin",
    "Europe/London",
    "America/New_York",
    "America/Santiago",
    "America/Havana",
    "Africa/Cairo",
    "Asia/Beirut",
    "Australia/Sydney",
    "Australia/Lord_Howe",
    "Pacific/Chatham",
)
HALF_AN_HOUR = "Australia/Lord_Howe"


def cron(expression: str, zone: str = "UTC", days: Days = "either") -> Timing:
    return Timing(expression, days, None, None, zone)


def every(seconds: float, anchor: str | None = None) -> Timing:
    at = None if anchor is None else datetime.fromisoformat(anchor)
    return Timing(None, "either", seconds, at, "UTC")


def year(timing: Timing, number: int = 2026) -> list[datetime]:
    """The ticks of a year, as its zone counts it."""
    zone = ZoneInfo(timing.zone)
    begin, end = (datetime(y, 1, 1, tzinfo=zone).astimezone(UTC) for y in (number, number + 1))
    ticks = (instant.at for instant in instants(timing, begin - timedelta(seconds=1)))
    return list(takewhile(lambda at: at < end, ticks))


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("minute", [0, 1, 30, 59])
def test_daily_jobs_run_once_a_local_day(zone: str, minute: int) -> None:
    """SCH-06: at whichever time of the day, through both changes: one tick on each local day."""
    for hour in (0, 1, 2, 3, 12, 23):
        ticks = year(cron(f"{minute} {hour} * * *", zone))
        dates = Counter(at.astimezone(ZoneInfo(zone)).date() for at in ticks)
        assert len(dates) == 365, (hour, minute)
        assert set(dates.values()) == {1}, [d for d, n in dates.items() if n > 1]


@pytest.mark.parametrize("zone", [zone for zone in ZONES if zone != HALF_AN_HOUR])
@pytest.mark.parametrize("expression", ["0 * * * *", "30 * * * *", "59 0-23 * * *"])
def test_hourly_jobs_run_once_a_real_hour(zone: str, expression: str) -> None:
    """SCH-06: exactly an hour apart, all the year; the hour that comes twice has two."""
    ticks = year(cron(expression, zone))
    assert len(ticks) == 365 * 24
    assert {later - earlier for earlier, later in pairwise(ticks)} == {timedelta(hours=1)}


@pytest.mark.parametrize("expression", ["0 * * * *", "30 * * * *"])
def test_hourly_jobs_where_clocks_move_by_half_an_hour(expression: str) -> None:
    """SCH-06: what the wall calls the full hour moves by half of one against real time, so that one
    gap is half an hour off; no hour of the year is without a tick."""
    ticks = year(cron(expression, HALF_AN_HOUR))
    assert 365 * 24 <= len(ticks) <= 365 * 24 + 1
    gaps = Counter((later - earlier) / timedelta(minutes=1) for earlier, later in pairwise(ticks))
    assert set(gaps) <= {30, 60, 90}
    assert gaps[30] + gaps[90] == 2


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        # The time is left out: as soon as the clocks have changed.
        ("30 2 * * *", "Europe/Berlin", "2026-03-29T00:00+01:00", ["03:00+02:00", "02:30+02:00"]),
        ("0 1 * * *", "Europe/London", "2026-03-29T00:00+00:00", ["02:00+01:00", "01:00+01:00"]),
        ("15 2 * * *", "America/New_York", "2026-03-08T00:00-05:00", ["03:00-04:00"]),
        ("0 0 * * *", "America/Santiago", "2026-09-05T12:00-04:00", ["01:00-03:00"]),
        ("30 0 * * *", "Africa/Cairo", "2026-04-23T12:00+02:00", ["01:00+03:00", "00:30+03:00"]),
        ("10 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00+10:30", ["02:30+11:00"]),
        ("30 2 * * *", "Pacific/Chatham", "2026-09-26T12:00+12:45", ["02:30+12:45", "02:30+13:45"]),
        # Several of them: together, once.
        ("*/20 2 * * *", "Europe/Berlin", "2026-03-29T00:00+01:00", ["03:00+02:00", "02:00+02:00"]),
        # The time comes twice: the first.
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:00+02:00", ["02:30+02:00", "02:30+01:00"]),
        ("30 1 * * *", "America/New_York", "2026-11-01T00:00-04:00", ["01:30-04:00"]),
        ("30 23 * * *", "America/Santiago", "2026-04-04T12:00-03:00", ["23:30-03:00"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-05T00:00+11:00", ["01:45+11:00"]),
        ("45 2 * * *", "Pacific/Chatham", "2026-04-05T00:00+13:45", ["02:45+13:45"]),
        # Every hour: whatever the clock shows, when it shows it.
        ("0 * * * *", "Europe/Berlin", "2026-03-29T00:30+01:00", ["01:00+01:00", "03:00+02:00"]),
        (
            "*/30 * * * *",
            "Europe/Berlin",
            "2026-10-25T02:00+02:00",
            ["02:30+02:00", "02:00+01:00", "02:30+01:00", "03:00+01:00"],
        ),
        # … asked in the first of two hours of one name, and in the second.
        ("0 * * * *", "Europe/Berlin", "2026-10-25T02:30+02:00", ["02:00+01:00", "03:00+01:00"]),
        ("0 * * * *", "Europe/Berlin", "2026-10-25T02:00+01:00", ["03:00+01:00"]),
        (
            "0 * * * *",
            "Australia/Lord_Howe",
            "2026-04-05T00:30+11:00",
            ["01:00+11:00", "02:00+10:30", "03:00+10:30"],
        ),
        (
            "0 * * * *",
            "Australia/Lord_Howe",
            "2026-10-04T00:30+10:30",
            ["01:00+10:30", "02:30+11:00", "03:00+11:00"],
        ),
        # Every second hour is a time on the wall: it is not repeated.
        ("0 */2 * * *", "Europe/Berlin", "2026-10-25T01:00+02:00", ["02:00+02:00", "04:00+01:00"]),
    ],
)
def test_changes_of_the_clocks(expression: str, zone: str, after: str, expected: list[str]) -> None:
    """SCH-06: the documented rule, change by change."""
    found = coming(cron(expression, zone), datetime.fromisoformat(after), len(expected))
    assert [f"{fire.local[11:16]}{fire.local[19:]}" for fire in found] == expected


def test_coming_ticks_tell_of_changes() -> None:
    found = coming(cron("30 2 * * *", "Europe/Berlin"), datetime(2026, 3, 28, tzinfo=UTC), 3)
    assert [fire.local for fire in found] == [
        "2026-03-28T02:30:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]
    assert [bool(fire.clock_change) for fire in found] == [False, True, False]
    assert found[1].clock_change == (
        "02:30 is left out on this day: it fires when the clocks have changed; "
        "clocks went forward before it: 2026-03-29 02:00 became 03:00"
    )
    (twice,) = coming(cron("30 2 * * *", "Europe/Berlin"), datetime(2026, 10, 25, tzinfo=UTC), 1)
    assert twice.clock_change == "02:30 comes twice: this is the first"
    # An interval knows no clocks; whoever reads it does.
    interval = Timing(None, "either", 86400.0, None, "Europe/Berlin")
    fires = coming(interval, datetime(2026, 3, 28, 12, tzinfo=UTC), 2)
    assert [fire.local[11:16] for fire in fires] == ["01:00", "02:00"]
    assert [bool(fire.clock_change) for fire in fires] == [False, True]


def test_intervals_keep_their_phase() -> None:
    """I6: ticks are the anchor plus n intervals, whoever asks and when."""
    timing = every(90, "2026-01-01T00:00:10+00:00")
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert following(timing, at) == at + timedelta(seconds=10)
    assert following(timing, at + timedelta(seconds=10)) == at + timedelta(seconds=100)
    assert following(timing, at - timedelta(days=1)) > at - timedelta(days=1)
    # No drift, also where seconds have parts.
    timing, at = every(1.1), datetime(2026, 1, 1, tzinfo=UTC)
    ticks = newest(timing, at, at + timedelta(days=1), 1000)
    assert all(
        (tick - datetime(1970, 1, 1, tzinfo=UTC)) % timedelta(seconds=1.1) == timedelta(0)
        for tick in ticks
    )


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("0 9-17/4 * * mon-fri", "2026-01-03T00:00Z", ["05 09:00", "05 13:00", "05 17:00"]),
        ("*/20 0 1,15 feb *", "2026-01-03T00:00Z", ["01 00:00", "01 00:20", "01 00:40"]),
        ("0 0 L * *", "2026-01-03T00:00Z", ["31 00:00", "28 00:00"]),
        ("0 0 * * sun", "2026-01-03T00:00Z", ["04 00:00", "11 00:00"]),
        ("0 0 * * 7", "2026-01-03T00:00Z", ["04 00:00", "11 00:00"]),
        ("0 0 29 2 *", "2026-01-03T00:00Z", ["29 00:00"]),
        # Either of the days, as cron has it.
        ("0 0 13 * fri", "2026-01-03T00:00Z", ["09 00:00", "13 00:00", "16 00:00"]),
    ],
)
def test_five_fields(expression: str, after: str, expected: list[str]) -> None:
    ticks = instants(cron(expression), datetime.fromisoformat(after))
    assert [f"{next(ticks).at:%d %H:%M}" for _ in expected] == expected


def test_both_days() -> None:
    """Celery's rule: Friday the 13th."""
    ticks = instants(cron("0 0 13 * 5", days="both"), datetime(2026, 1, 1, tzinfo=UTC))
    assert [next(ticks).at.date().isoformat() for _ in range(2)] == ["2026-02-13", "2026-03-13"]


@pytest.mark.parametrize(
    ("timing", "words"),
    [
        (cron("61 * * * *"), "minute"),
        (cron("* * * *"), "4 fields"),
        (cron("0 0 * * * *"), "6 fields"),
        (cron("0 0 30 2 *"), "day-of-month"),
        (cron("0 0 30 feb fri", days="both"), "never comes"),
        (cron("0 0 x * *"), "day-of-month"),
        (cron(""), "0 fields"),
        (cron("0 0 * * *", "Mars/Olympus"), "Mars/Olympus"),
        (cron("0 0 * * *", "../../etc/passwd"), "zone"),
        (cron("0 0 * * *", ""), "zone"),
    ],
)
def test_what_cannot_be_planned_says_why(timing: Timing, words: str) -> None:
    """SCH-10: an invalid expression, an impossible date, an unknown zone: each in words."""
    with pytest.raises(Unplannable, match=words):
        following(timing, datetime(2026, 1, 1, tzinfo=UTC))


def test_the_newest_of_very_many() -> None:
    """Its cost goes with how many are wanted, not with how many there were."""
    timing = cron("* * * * *", "Europe/Berlin")
    begin, end = datetime(1990, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
    found = newest(timing, begin, end, 1000)
    assert (len(found), found[-1]) == (1000, end)
    assert found[0] == end - timedelta(minutes=999)
    assert newest(timing, end, end, 1000) == [end]
    assert newest(timing, end + timedelta(seconds=1), end + timedelta(seconds=2), 5) == []
