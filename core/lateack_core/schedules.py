"""Periodic jobs in the ledger: what is declared, what was edited, what became of each tick.

Who wins: the last word. A declaration in the code speaks when it is new or has changed, an edit
over HTTP when it is made. So an edit holds through every deploy that declares what was declared
before. What the leader does with them is in ticks.py.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from lateack.app import App
from lateack.errors import DeclarationError
from lateack.models import Schedule, ScheduleRequest, Tick
from lateack.schedules import Declaration

from .ground import Ground
from .postgres import Blocked, Postgres, Row
from .process import Body, Loop
from .recurrence import Timing, Unplannable, following

log = logging.getLogger("lateack.schedules")

_encode = msgspec.json.Encoder().encode
_sorted = msgspec.json.Encoder(order="sorted").encode


class Run(NamedTuple):
    """What a run by hand came to: a job, or what stands in its way."""

    job_id: UUID | None
    hindrance: str | None


class Schedules:
    """The schedules, over a pool of connections."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def declare(self, app: App) -> None:
        """Take what an app declares; what it declares no longer is retired.

        Raises:
            DeclarationError: its `beat_schedule` was changed in place to what cannot be taken over.
            LedgerUnavailable
        """
        now = await self.now()
        rows = [_declared(one, now) for one in app.schedules]
        answer = await self._postgres.fetch("declare_schedules", app.name, _encode(rows).decode())
        for row in answer:
            if row["outcome"] == "taken":
                log.warning(
                    "schedule %s is declared by another app too, whose word stands", row["name"]
                )
            else:
                log.info("schedule %s: %s", row["name"], _WORDS[row["outcome"]])
        for declared in rows:
            if declared["problem"] is not None:
                log.error("schedule %s: %s", declared["name"], declared["problem"])

    async def now(self) -> datetime:
        """The ledger's clock, which is the one that decides."""
        now: datetime = (await self._postgres.fetch("ledger_now"))[0]["now"]
        return now

    async def put(
        self, tenant_id: str, name: str, request: ScheduleRequest, next_due: datetime
    ) -> bool:
        """Make a schedule or replace what it says; whether it is new."""
        rows = await self._postgres.fetch(
            "put_schedule",
            tenant_id,
            name,
            request.task,
            _encode(request.args).decode(),
            _encode(request.kwargs).decode(),
            request.queue,
            request.priority,
            request.max_retries,
            request.expires,
            request.cron,
            request.days,
            request.interval,
            request.anchor,
            request.zone,
            request.misfire,
            request.overlap,
            request.paused,
            next_due,
        )
        return bool(rows[0]["created"])

    async def page(self, tenant_id: str, *, after: str | None, most: int) -> list[Schedule]:
        """A tenant's schedules, by name."""
        rows = await self._postgres.fetch("list_schedules", tenant_id, None, after, most)
        return [_document(row) for row in rows]

    async def get(self, tenant_id: str, name: str) -> Schedule | None:
        """One of a tenant's schedules."""
        row = await self._row(tenant_id, name)
        return None if row is None else _document(row)

    async def pause(self, tenant_id: str, name: str, *, paused: bool) -> bool:
        """Pause a schedule or let it go on; false when there is none."""
        return bool(await self._postgres.fetch("pause_schedule", tenant_id, name, paused))

    async def delete(self, tenant_id: str, name: str) -> tuple[bool, str | None] | None:
        """Delete a schedule with its ticks: whether it was, and the app that declares it still.

        None when there is none.
        """
        rows = await self._postgres.fetch("delete_schedule", tenant_id, name)
        return (rows[0]["deleted"], rows[0]["app"]) if rows else None

    async def run(self, tenant_id: str, name: str, key: str | None) -> Run | None:
        """Run a schedule now; None when there is none, or it was retired.

        Raises:
            Blocked: it is being changed all the time, or the key is in use.
        """
        for _ in range(20):
            row = await self._row(tenant_id, name)
            if row is None or row["retired_at"] is not None:
                return None
            rows = await self._postgres.fetch("run_schedule", tenant_id, name, row["revision"], key)
            if rows:
                return Run(rows[0]["job_id"], rows[0]["hindrance"])
        raise Blocked("the schedule is being changed")

    async def ticks(
        self,
        tenant_id: str,
        name: str,
        *,
        before: datetime | None,
        outcomes: Sequence[str] | None,
        most: int,
    ) -> list[Tick]:
        """What became of a schedule's ticks, newest first."""
        rows = await self._postgres.fetch("list_ticks", tenant_id, name, before, outcomes, most)
        return [
            Tick(
                due_at=row["due_at"],
                until=row["until"],
                outcome=row["outcome"],
                reason=row["reason"],
                job_id=row["job_id"],
                job_status=row["status"],
                decided_at=row["decided_at"],
            )
            for row in rows
        ]

    async def _row(self, tenant_id: str, name: str) -> Row | None:
        rows = await self._postgres.fetch("list_schedules", tenant_id, [name], None, 1)
        return rows[0] if rows else None


_WORDS = {"spoke": "declared", "retired": "retired, since the code declares it no longer"}


def declaration(ground: Ground, apps: Sequence[App]) -> Body:
    """The body of a loop that declares the schedules of `apps` once the ledger is there."""

    async def body(loop: Loop) -> None:
        left = list(apps)
        while not loop.stopping:
            loop.beat()
            if ground.fit.is_set() and left:
                try:
                    await Schedules(ground.postgres).declare(left[0])
                except DeclarationError as error:
                    log.error("the schedules of %s are not taken: %s", left[0].name, error)
                left.pop(0)
            await loop.pause(0.2 if left else 2.0)

    return body


def timing_of(request: ScheduleRequest) -> Timing:
    """What a request says of when."""
    return Timing(request.cron, request.days, request.interval, request.anchor, request.zone)


def _declared(one: Declaration, now: datetime) -> dict[str, Any]:
    request, problem, next_due = one.request, None, None
    try:
        next_due = following(timing_of(request), now)
    except Unplannable as error:
        problem = str(error)
    fields = {name: getattr(request, name) for name in request.__struct_fields__}
    return {
        **fields,
        "every": fields.pop("interval"),
        "tenant_id": one.tenant,
        "name": one.name,
        "declared": hashlib.sha256(_sorted(one)).hexdigest(),
        "next_due": next_due,
        "problem": problem,
    }


def _document(row: Row) -> Schedule:
    last = None
    if row["last_due"] is not None:
        last = Tick(
            due_at=row["last_due"],
            until=row["last_until"],
            outcome=row["last_outcome"],
            reason=row["last_reason"],
            job_id=row["last_job_id"],
            job_status=row["last_job_status"],
            decided_at=row["last_decided_at"],
        )
    return Schedule(
        name=row["name"],
        task=row["task"],
        cron=row["cron"],
        interval=row["every"],
        anchor=row["anchor"],
        zone=row["zone"],
        days=row["days"],
        args=msgspec.json.decode(row["args"]),
        kwargs=msgspec.json.decode(row["kwargs"]),
        queue=row["queue"],
        priority=row["priority"],
        max_retries=row["max_retries"],
        expires=row["expires"],
        misfire=row["misfire"],
        overlap=row["overlap"],
        paused=row["paused_at"] is not None,
        origin=row["origin"],
        app=row["app"],
        edited=row["edited_at"] is not None,
        retired=row["retired_at"] is not None,
        next_due=row["next_due"],
        problem=row["problem"],
        last=last,
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
