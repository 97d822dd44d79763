"""Periodic jobs: each tick becomes one job or a reason why not, and always a row.

A turn reads the schedules whose next tick is due, decides about them (`decide`, a pure function of
what was read and of the ledger's clock), and writes what it decided in one statement under the
leader's term. A leader that was frozen in between, a second one, a clock that is wrong: the
statement finds another term, another revision or a tick that is not due, and does nothing.

A tick found within `GRACE` of its time fires. An older one is a misfire, and the schedule's policy
says what becomes of it. Catching up is spread over time.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from lateack.schedules import MOST_CAUGHT_UP, caught_up
from lateack_core.ground import Ground
from lateack_core.jobs import Term
from lateack_core.log import Throttled
from lateack_core.postgres import Blocked
from lateack_core.recurrence import Unplannable, following, newest
from lateack_core.ticks import Due, Plan, Planned, Recorded, Ticks, Unwritable, Verdict

log = logging.getLogger("lateack.periodic")

# How often somebody looks: one index probe.
LOOK = 0.5
# Longer than any change of leaders, or a minute without writes, takes: within it no tick is lost.
GRACE = timedelta(seconds=120)
# What fires later than this is recorded as late.
LATE = timedelta(seconds=5)
# Misses of one outage that get a row each; the older ones share one.
MOST_TICKS = MOST_CAUGHT_UP
# Schedules read at once, and ticks written at once.
BATCH = 200
MOST_WRITTEN = 2000
# Seconds that a turn may take before the loop shows that it is alive; the next one goes on.
LONGEST_TURN = 5.0
# Jobs of one schedule that are caught up with start so far apart: a tenth of its own interval.
SPACING = (timedelta(seconds=1), timedelta(seconds=60))


class Periodic:
    """The leader's loop over schedules."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._ticks = Ticks(ground.postgres)
        self._epoch = -1
        self._troubles = Throttled(log)

    async def turn(self, term: Term) -> int:
        """Deal with everything that is due; returns how many jobs were made.

        Raises:
            LedgerUnavailable
        """
        fired, end = 0, time.monotonic() + LONGEST_TURN
        try:
            if term.epoch != self._epoch:
                await self._plan_anew(term)
                self._epoch = term.epoch
            while not self._ground.loops.stopping.is_set():
                due = await self._ticks.due(BATCH)
                recorded = await self._carry_out(term, [decide(one) for one in due])
                fired += sum(tick.job_id is not None for tick in recorded)
                self._tell(recorded)
                # Nothing: the term is over, or all that is left is being changed.
                if len(due) < BATCH or not recorded or time.monotonic() > end:
                    break
        except Blocked as error:
            self._troubles.warning(f"ticks have to wait: {error}", time.monotonic())
        return fired

    async def _carry_out(self, term: Term, plans: Sequence[Plan]) -> list[Recorded]:
        recorded: list[Recorded] = []
        for batch in _batches(plans):
            recorded += await self._fire(term, batch)
        return recorded

    async def _fire(self, term: Term, plans: Sequence[Plan]) -> list[Recorded]:
        """Write a batch; one schedule that cannot be written does not hold up the others."""
        try:
            return await self._ticks.fire(term, plans)
        except Unwritable as error:
            if len(plans) == 1:
                log.error("schedule %s is put aside: %s", plans[0].schedule_id, error)
                await self._ticks.hold(term, plans[0], f"its tick cannot be written: {error}")
                return []
        middle = len(plans) // 2
        return await self._fire(term, plans[:middle]) + await self._fire(term, plans[middle:])

    async def _plan_anew(self, term: Term) -> None:
        """Plan every schedule again: since it was planned, rules of zones may have changed."""
        after, corrected = None, 0
        while page := await self._ticks.planned(after, 1000):
            after = page[-1].id
            plans = [plan for one in page if (plan := plan_anew(one)) is not None]
            corrected += await self._ticks.replan(term, plans) if plans else 0
        if corrected:
            log.info("the next ticks of %d schedules were corrected", corrected)

    def _tell(self, recorded: Sequence[Recorded]) -> None:
        for tick in recorded:
            if tick.outcome == "skipped" and tick.reason in ("unknown_task", "invalid_arguments"):
                self._troubles.warning(
                    f"schedule {tick.name} cannot fire: {tick.reason}", time.monotonic()
                )
        counts = Counter(tick.outcome for tick in recorded if tick.outcome)
        if counts["missed"] or counts["late"]:
            log.warning(
                "%d ticks were missed, %d fire late, %d fire on time",
                counts["missed"],
                counts["late"],
                counts["fired"],
            )
        elif counts["fired"]:
            log.debug("%d ticks fire", counts["fired"])


def decide(due: Due) -> Plan:
    """What becomes of the ticks of a schedule up to now, and which one comes next."""
    try:
        ticks = newest(due.timing, due.next_due, due.now, MOST_TICKS + 1)
        coming = following(due.timing, due.now)
    except Unplannable as error:
        return Plan(due.id, due.revision, [], None, str(error))
    found = [_span(due, ticks.pop(0), ticks)] if len(ticks) > MOST_TICKS else []
    if due.paused:
        found += [Verdict(at, "skipped", "paused") for at in ticks]
    else:
        found += _verdicts(due, ticks, coming)
    return Plan(due.id, due.revision, found, coming, None)


def plan_anew(planned: Planned) -> Plan | None:
    """The correction of a next tick, None when it is right."""
    coming, problem = None, None
    try:
        coming = following(planned.timing, planned.now)
    except Unplannable as error:
        problem = str(error)
    if (coming, problem) == (planned.next_due, planned.problem):
        return None
    return Plan(planned.id, planned.revision, [], coming, problem)


def _span(due: Due, last: datetime, ticks: Sequence[datetime]) -> Verdict:
    """One row for ticks too many and too old to be written one by one."""
    outcome, reason = ("skipped", "paused") if due.paused else ("missed", "misfire")
    return Verdict(min(due.next_due, last), outcome, reason, until=ticks[0])


def _verdicts(due: Due, ticks: Sequence[datetime], coming: datetime) -> list[Verdict]:
    old = [at for at in ticks if due.now - at > GRACE]
    again = old[max(0, len(old) - caught_up(due.misfire)) :]
    spacing = _spacing(coming - ticks[-1]) if ticks else SPACING[0]
    # Schedules that come back together do not start together.
    share = due.id.int % 1000 / 1000
    verdicts = [Verdict(at, "missed", "misfire") for at in old[: len(old) - len(again)]]
    verdicts += [
        Verdict(at, "late", "catch_up", due.now + spacing * (share + number))
        for number, at in enumerate(again)
    ]
    verdicts += [
        Verdict(at, "late" if due.now - at > LATE else "fired") for at in ticks[len(old) :]
    ]
    verdicts = [_unless_expired(due, verdict) for verdict in verdicts]
    return _without_overlap(verdicts) if due.overlap == "skip" else verdicts


def _spacing(interval: timedelta) -> timedelta:
    return min(max(interval / 10, SPACING[0]), SPACING[1])


def _unless_expired(due: Due, verdict: Verdict) -> Verdict:
    """A job that could no longer start in time is not made."""
    if due.expires is None or verdict.outcome == "missed":
        return verdict
    if (verdict.run_at or due.now) < verdict.due_at + timedelta(seconds=due.expires):
        return verdict
    return Verdict(verdict.due_at, "missed", "expired")


def _without_overlap(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Of ticks that would fire together only the newest does."""
    firing = [verdict.due_at for verdict in verdicts if verdict.outcome in ("fired", "late")]
    return [
        Verdict(verdict.due_at, "skipped", "overlap") if verdict.due_at in firing[:-1] else verdict
        for verdict in verdicts
    ]


def _batches(plans: Sequence[Plan]) -> Iterator[list[Plan]]:
    """Plans in portions that one statement writes quickly."""
    batch, size = list[Plan](), 0
    for plan in plans:
        if batch and size + len(plan.ticks) > MOST_WRITTEN:
            yield batch
            batch, size = [], 0
        batch.append(plan)
        size += len(plan.ticks)
    if batch:
        yield batch
