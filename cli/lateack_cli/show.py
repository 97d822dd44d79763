"""Jobs and events on a terminal, and in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from lateack import Event, Job
from lateack.client import SyncClient
from lateack.models import Schedule, Tick

WIDE = 110  # columns

COLOURS = {
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
    "running": "cyan",
    "retrying": "magenta",
}


def as_json(value: object) -> str:
    """JSON that a person can read."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def print_table(jobs: Iterable[Job]) -> None:
    """A line for each job; a narrow terminal shows fewer columns."""
    out = _out()
    wide = out.width >= WIDE
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("job", "status", "done", "age"):
        table.add_column(name, no_wrap=True)
    for name in ("task", "error", *(("queue", "attempt") if wide else ())):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    now = datetime.now(UTC)
    for job in jobs:
        table.add_row(
            str(job.job_id),
            coloured(job.status),
            "" if job.progress is None else f"{job.progress:.0f} %",
            age((now - job.created_at).total_seconds()),
            Text(job.task),
            Text(job.error_code or ""),
            *((Text(job.queue), str(job.attempt)) if wide else ()),
        )
    out.print(table)


def age(seconds: float) -> str:
    """`42 s`, `7 min`, `3 h` or `12 d`."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def coloured(status: str) -> Text:
    """A status in its colour."""
    return Text(status, style=COLOURS.get(status, ""))


def follow(client: SyncClient, job: Job) -> Job:
    """Show a job's events until its end: a bar on a terminal, else a line for each event.

    Returns its last document.
    """
    if sys.stdout.isatty():
        _follow_with_bar(client, job)
    else:
        for event in client.watch(job):
            print(line_of(event), flush=True)
    return client.get(job)


def line_of(event: Event) -> str:
    """An event as a line of text: when, what, how far."""
    parts = [event.at.astimezone().strftime("%H:%M:%S"), event.status]
    if event.type == "gap":
        parts.append("(events were missed)")
    if event.attempt > 1:
        parts.append(f"attempt {event.attempt}")
    if event.progress is not None:
        parts.append(f"{event.progress:.0f} %")
    parts += [text for text in (event.step, event.message) if text]
    return "  ".join(parts)


def print_outcome(job: Job) -> None:
    """How a job ended: its result on standard output, or its error on standard error."""
    if job.status == "succeeded":
        print(as_json(job.result), flush=True)
        return
    why = f"{job.error_code}: {job.error_message}" if job.error_code else ""
    print(f"{job.status} {why}".rstrip(), file=sys.stderr)


def _follow_with_bar(client: SyncClient, job: Job) -> None:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[state]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=_out()) as progress:
        bar = progress.add_task(job.task, total=100.0, state=job.status)
        for event in client.watch(job):
            done = 100.0 if event.status == "succeeded" else event.progress
            parts = [event.status, event.step, event.message]
            if event.attempt > 1:
                parts.insert(1, f"attempt {event.attempt}")
            progress.update(bar, completed=done, state="  ".join(part for part in parts if part))


def print_schedules(schedules: Iterable[Schedule]) -> None:
    """A line for each schedule: when, what comes next, and what keeps it from firing."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("schedule", "when", "task", "next", "last", "state"):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    for one in schedules:
        when = f"every {one.interval:g} s" if one.interval is not None else f"{one.cron} {one.zone}"
        state = "retired" if one.retired else "paused" if one.paused else ""
        table.add_row(
            Text(one.name),
            Text(when),
            Text(one.task),
            stamp(one.next_due),
            "" if one.last is None else f"{stamp(one.last.due_at)} {one.last.outcome}",
            Text(one.problem or state, style="red" if one.problem else "yellow"),
        )
    _out().print(table)


def print_ticks(ticks: Iterable[Tick]) -> None:
    """A line for each tick: what became of it, why, and how its job does."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("due", "outcome", "why", "job", "status"):
        table.add_column(name, no_wrap=True)
    for tick in ticks:
        until = "" if tick.until is None else f" to {stamp(tick.until)}"
        table.add_row(
            stamp(tick.due_at) + until,
            tick.outcome,
            tick.reason or "",
            "" if tick.job_id is None else str(tick.job_id),
            coloured(tick.job_status or ""),
        )
    _out().print(table)


def stamp(at: datetime | None) -> str:
    """A time in UTC, to the second unless it has parts of one; empty when there is none."""
    return "" if at is None else at.astimezone(UTC).isoformat(" ").replace("+00:00", "Z")


def _out() -> Console:
    # A table in a pipe is not cut to the width of a terminal that is not there.
    return Console() if sys.stdout.isatty() else Console(width=200)
