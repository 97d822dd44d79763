"""What `lateack retry` and `lateack dead` share: which ended jobs, and how they are counted."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lateack.ended import RedriveCount
from lateack_cli import flags

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(s|m|min|h|d)")


def read_moment(text: str | None, flag: str) -> datetime | None:
    """`2h`, that long ago, or a time with its zone; None when it was not given.

    Raises:
        click.UsageError: it is neither.
    """
    if text is None:
        return None
    try:
        if found := _DURATION.fullmatch(text):
            return datetime.now(UTC) - timedelta(seconds=float(found[1]) * _UNITS[found[2]])
        at = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise click.UsageError(
            f"{flag} {text!r}: write 90s, 30m, 2h or 7d, or 2030-01-31T08:00:00Z"
        ) from None
    if at.tzinfo is None:
        raise click.UsageError(f"{flag}: {text} needs its zone, such as {text}+00:00")
    return at


_flags = (
    flags.option("--task", help="Jobs of this task."),
    flags.option("--queue", help="Jobs of this queue."),
    flags.option("--tag", help="Jobs with this tag."),
    flags.option("--error-code", help="Jobs that failed with this error, such as WorkerLost."),
    flags.option("--since", metavar="WHEN", help="Ended since: 2h, or a time."),
    flags.option("--until", metavar="WHEN", help="Ended before: 10m, or a time."),
)


def filters(function: Callable[..., Any]) -> Callable[..., Any]:
    """--task, --queue, --tag, --error-code, --since and --until."""
    for flag in reversed(_flags):
        function = flag(function)
    return function


def print_counts(counts: Iterable[RedriveCount]) -> None:
    """A line for each task and error."""
    table = new_table("task", "error", "jobs", "in workflows", "workers lost")
    for count in counts:
        table.add_row(
            Text(count.task),
            Text(count.error_code or ""),
            str(count.jobs),
            str(count.in_workflows or ""),
            str(count.worker_losses or ""),
        )
    print_table(table)


def new_table(*columns: str) -> Table:
    """An empty table in the style of the other verbs."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    return table


def print_table(table: Table) -> None:
    """Print it; in a pipe nothing is cut."""
    console = Console() if sys.stdout.isatty() else Console(width=240)
    console.print(table)


def plural(count: int, noun: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
