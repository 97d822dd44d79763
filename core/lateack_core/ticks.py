"""Ticks in the ledger: what is due, what was decided, and that it is decided once (I6).

Whoever decides reads schedules with their revision, and writes ticks, jobs and the next due time in
one statement that carries the revision and the leader's term.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from .jobs import Term
from .postgres import Duplicate, Postgres, Row
from .recurrence import Timing

# What a row can be refused for, by SQLSTATE: it does not become better by being sent again.
_REFUSALS = ("22", "23", "42704")


class Unwritable(Exception):
    """The ledger refuses what some plan says; the message is its own."""


@dataclass(frozen=True, slots=True)
class Due:
    """A schedule whose next tick is due, as it was read; `now` is the ledger's clock."""

    id: UUID
    revision: int
    next_due: datetime
    timing: Timing
    misfire: str
    overlap: str
    expires: float | None
    paused: bool
    now: datetime


class Verdict(NamedTuple):
    """What is to become of a tick; `run_at` is None for a job that runs at once."""

    due_at: datetime
    outcome: str
    reason: str | None = None
    run_at: datetime | None = None
    until: datetime | None = None


class Plan(NamedTuple):
    """What was decided about a schedule: its ticks, then what comes next, or why nothing does."""

    schedule_id: UUID
    revision: int
    ticks: Sequence[Verdict]
    next_due: datetime | None
    problem: str | None


class Recorded(NamedTuple):
    """A tick as it was written down; without a time when its schedule moved on without any."""

    tenant_id: str
    name: str
    due_at: datetime | None
    outcome: str | None
    reason: str | None
    job_id: UUID | None


class Planned(NamedTuple):
    """A schedule and its next tick, to be looked at anew."""

    id: UUID
    revision: int
    next_due: datetime | None
    timing: Timing
    problem: str | None
    now: datetime


class Ticks:
    """The ticks, over a pool of connections."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def due(self, most: int) -> list[Due]:
        """Schedules whose next tick is due, the longest overdue first."""
        return [
            Due(
                id=row["id"],
                revision=row["revision"],
                next_due=row["next_due"],
                timing=_timing(row),
                misfire=row["misfire"],
                overlap=row["overlap"],
                expires=row["expires"],
                paused=row["paused"],
                now=row["now"],
            )
            for row in await self._postgres.fetch("due_schedules", most)
        ]

    async def fire(self, term: Term, plans: Sequence[Plan]) -> list[Recorded]:
        """Carry out plans, all in one statement; what changed meanwhile is left and not returned.

        Raises:
            Unwritable: one of them cannot be carried out; nothing was written.
            Blocked: something else holds what it needs; nothing was written.
            LedgerUnavailable
        """
        try:
            return await self._fire(term, plans)
        except Duplicate as error:
            raise Unwritable(str(error)) from error
        except Exception as error:
            if str(getattr(error, "sqlstate", "")).startswith(_REFUSALS):
                raise Unwritable(str(error)) from error
            raise

    async def _fire(self, term: Term, plans: Sequence[Plan]) -> list[Recorded]:
        ticks = [(plan.schedule_id, tick) for plan in plans for tick in plan.ticks]
        rows = await self._postgres.fetch(
            "fire_ticks",
            *term,
            [plan.schedule_id for plan in plans],
            [plan.revision for plan in plans],
            [plan.ticks[-1].due_at if plan.ticks else None for plan in plans],
            [plan.next_due for plan in plans],
            [plan.problem for plan in plans],
            [schedule_id for schedule_id, _ in ticks],
            [tick.due_at for _, tick in ticks],
            [tick.until for _, tick in ticks],
            [tick.outcome for _, tick in ticks],
            [tick.reason for _, tick in ticks],
            [tick.run_at for _, tick in ticks],
        )
        return [
            Recorded(
                row["tenant_id"],
                row["name"],
                row["due_at"],
                row["outcome"],
                row["reason"],
                row["job_id"],
            )
            for row in rows
        ]

    async def hold(self, term: Term, plan: Plan, problem: str) -> None:
        """Take a schedule out of the row, with the reason."""
        await self._postgres.fetch("hold_schedule", *term, plan.schedule_id, plan.revision, problem)

    async def planned(self, after: UUID | None, most: int) -> list[Planned]:
        """A page of schedules of which nothing is due, by id."""
        return [
            Planned(
                row["id"],
                row["revision"],
                row["next_due"],
                _timing(row),
                row["problem"],
                row["now"],
            )
            for row in await self._postgres.fetch("plan_schedules", after, most)
        ]

    async def replan(self, term: Term, plans: Sequence[Plan]) -> int:
        """Correct next ticks; returns how many were corrected."""
        rows = await self._postgres.fetch(
            "replan_schedules",
            *term,
            [plan.schedule_id for plan in plans],
            [plan.revision for plan in plans],
            [plan.next_due for plan in plans],
            [plan.problem for plan in plans],
        )
        return len(rows)


def _timing(row: Row) -> Timing:
    return Timing(row["cron"], row["days"], row["every"], row["anchor"], row["zone"])
