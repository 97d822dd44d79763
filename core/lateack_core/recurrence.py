"""When a schedule fires: cron expressions and intervals as instants, clock changes included.

A cron expression names times on the wall, and a wall's clock is put forward and back. The rule:

- an expression that runs in *every hour* (`0 * * * *`) follows real time: it fires whenever the
  clock shows such a time, so twice in an hour that is repeated, and not in one that is left out;
- every *other* expression (`30 2 * * *`) fires once for each time that it names: when that time is
  left out, as soon as the clocks have changed; when it comes twice, the first time.

Where clocks move by less than an hour (Lord Howe: half of one), a time that is left out fires when
the clocks have changed under either rule, since a part of its hour remains.
An interval knows no clocks: its ticks are the anchor plus n times the interval, always.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import NamedTuple
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from lateack.models import Days, Fire

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# No clock was ever put back by more.
LONGEST_REPEAT = timedelta(hours=3)
HOUR = timedelta(hours=1)
_MOMENT = timedelta(microseconds=1)


class Unplannable(Exception):
    """A schedule whose ticks cannot be told; the message says why."""


class Timing(msgspec.Struct, frozen=True):
    """What says when: `cron` in `zone`, or `every` so many seconds from `anchor`."""

    cron: str | None
    days: Days
    every: float | None
    anchor: datetime | None
    zone: str


class Instant(NamedTuple):
    """A tick, and the time on the wall that a cron expression named for it."""

    at: datetime
    wall: datetime | None


def instants(timing: Timing, after: datetime) -> Iterator[Instant]:
    """The ticks later than `after`, soonest first; none when there will be none.

    Raises:
        Unplannable: at once, not at the first tick.
    """
    zone = _zone(timing.zone)
    if timing.every is not None:
        return _intervals(timing.every, timing.anchor or EPOCH, after)
    return _cron_instants(_parsed(timing, EPOCH), timing, zone, after)


def following(timing: Timing, after: datetime) -> datetime:
    """The first tick later than `after`.

    Raises:
        Unplannable: it cannot be told, or there is none.
    """
    for instant in instants(timing, after):
        return instant.at
    raise Unplannable(f"cron {timing.cron!r} names a date that never comes")


def newest(timing: Timing, since: datetime, until: datetime, most: int) -> list[datetime]:
    """The ticks from `since` to `until`, both included; of many the newest `most`.

    Its cost goes with `most`, however long the time between: it looks back further and further.

    Raises:
        Unplannable
    """
    reach = HOUR
    while True:
        start = max(since, until - reach)
        ticks = (instant.at for instant in instants(timing, start - _MOMENT))
        found = deque(takewhile(lambda at: at <= until, ticks), maxlen=most)
        if len(found) == most or start == since:
            return list(found)
        reach *= 4


def coming(timing: Timing, after: datetime, count: int) -> list[Fire]:
    """The next ticks as people read them, with what clock changes do to them.

    Raises:
        Unplannable
    """
    zone, fires, before = _zone(timing.zone), list[Fire](), after
    for instant in instants(timing, after):
        if len(fires) >= count:
            break
        notes = [*_moved(instant, zone), *_changed(zone, before, instant.at)]
        local = instant.at.astimezone(zone).isoformat()
        fires.append(
            Fire(due_at=instant.at, local=local, clock_change="; ".join(notes) if notes else None)
        )
        before = instant.at
    if not fires:
        raise Unplannable(f"cron {timing.cron!r} names a date that never comes")
    return fires


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise Unplannable(
            f"there is no zone {name[:100]!r}; an IANA name is meant, such as Europe/Berlin"
        ) from None


def _intervals(every: float, anchor: datetime, after: datetime) -> Iterator[Instant]:
    step = timedelta(seconds=every)
    number = (after - anchor) // step + 1
    while True:
        yield Instant((anchor + number * step).astimezone(UTC), None)
        number += 1


def _parsed(timing: Timing, start: datetime) -> CronSim:
    expression = timing.cron or ""
    if len(expression.split()) != 5:
        raise Unplannable(
            f"cron {expression!r} has {len(expression.split())} fields; five are meant: minute, "
            "hour, day of month, month, day of week"
        )
    try:
        sim = CronSim(expression, start)
    except CronSimError as error:
        raise Unplannable(f"cron {expression!r}: {str(error).lower()}") from None
    if timing.days == "both":
        sim.day_and = True
    return sim


def _cron_instants(
    sim: CronSim, timing: Timing, zone: ZoneInfo, after: datetime
) -> Iterator[Instant]:
    hourly = len(sim.hours) == 24
    start = after.astimezone(zone).replace(tzinfo=None, fold=0)
    if hourly and _offset(zone, after + LONGEST_REPEAT) < _offset(zone, after):
        # Times that were shown already may be shown again.
        start -= LONGEST_REPEAT
    last, waiting = after, list[Instant]()
    for wall in _parsed(timing, start):
        found = _shown(wall, zone, hourly=hourly)
        # What the clock shows for the second time comes after all that it shows for the first.
        while found and waiting and waiting[0].at < found[0].at:
            due = heapq.heappop(waiting)
            if due.at > last:
                last = due.at
                yield due
        for instant in found:
            heapq.heappush(waiting, instant)
    yield from (due for due in sorted(waiting) if due.at > last)


def _shown(wall: datetime, zone: ZoneInfo, *, hourly: bool) -> list[Instant]:
    """The instants at which an expression that names the time `wall` fires."""
    first = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    second = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    if first == second:
        return [Instant(first, wall)]
    if first < second:
        return [Instant(first, wall), Instant(second, wall)][: 2 if hourly else 1]
    if hourly and first - second >= HOUR:
        return []
    return [Instant(_change(zone, second, first), wall)]


def _change(zone: ZoneInfo, early: datetime, late: datetime) -> datetime:
    """The instant between the two at which the clocks change, to the second."""
    offset = _offset(zone, late)
    while late - early > timedelta(seconds=1):
        middle = early + timedelta(seconds=(late - early) // timedelta(seconds=2))
        if _offset(zone, middle) == offset:
            late = middle
        else:
            early = middle
    return late.replace(microsecond=0)


def _offset(zone: ZoneInfo, at: datetime) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta()


def _moved(instant: Instant, zone: ZoneInfo) -> Iterator[str]:
    if instant.wall is None:
        return
    local = instant.at.astimezone(zone)
    if local.replace(tzinfo=None, fold=0) != instant.wall:
        yield f"{instant.wall:%H:%M} is left out on this day: it fires when the clocks have changed"
    elif _offset(zone, instant.at) != (local.replace(fold=1 - local.fold).utcoffset()):
        yield f"{instant.wall:%H:%M} comes twice: this is the {'second' if local.fold else 'first'}"


def _changed(zone: ZoneInfo, before: datetime, at: datetime) -> Iterator[str]:
    old, new = _offset(zone, before), _offset(zone, at)
    if old == new:
        return
    change = _change(zone, before, at)
    shown = (change - timedelta(seconds=1)).astimezone(zone) + timedelta(seconds=1)
    way = "forward" if new > old else "back"
    became = change.astimezone(zone)
    yield f"clocks went {way} before it: {shown:%Y-%m-%d %H:%M} became {became:%H:%M}"
