"""`lateack dead`: lists what failed for good, and the steps whose effect is not known."""

from __future__ import annotations

from datetime import UTC, datetime

import click
from rich.table import Table
from rich.text import Text

from lateack.client import EndedFilters, SyncClient
from lateack_cli import flags
from lateack_cli.ended import (
    filters,
    new_table,
    plural,
    print_counts,
    print_table,
    read_moment,
)
from lateack_cli.remote import service
from lateack_cli.show import age, as_json, coloured


@click.command("dead")
@filters
@flags.option("--summary", is_flag=True, help="Count them by task and error instead.")
@flags.option("--steps", is_flag=True, help="List the steps in doubt instead.")
@flags.option("--limit", type=click.IntRange(1), default=20, help="At most so many.")
@flags.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    help="A table, or JSON.",
)
@flags.service
def command(
    task: str | None,
    queue: str | None,
    tag: str | None,
    error_code: str | None,
    since: str | None,
    until: str | None,
    summary: bool,
    steps: bool,
    limit: int,
    output: str,
    url: str,
    tenant: str | None,
    timeout: float,
) -> None:
    """List dead letters: jobs that failed and were not run again, newest first.

    \b
    Examples:
      lateack dead --summary
      lateack dead --error-code WorkerLost --since 2h
      lateack dead --steps

    `attempts` counts the bodies that started, `lost` those of them whose worker was lost. Run them
    again with `lateack retry`.

    With --steps: steps that began, never ended, and whose attempt is over, so that only the outside
    system knows whether they took effect; ask it with the key that is shown.
    """
    chosen: EndedFilters = {
        "task": task,
        "queue": queue,
        "tag": tag,
        "error_code": error_code,
        "since": read_moment(since, "--since"),
        "until": read_moment(until, "--until"),
    }
    if steps and (summary or any(value is not None for value in chosen.values())):
        raise click.UsageError("--steps goes with --limit only")
    as_table = output == "table"
    with service(url, tenant, timeout) as client:
        if steps:
            _steps(client, limit, as_table=as_table)
        elif summary:
            _summary(client, chosen, as_table=as_table)
        else:
            _letters(client, chosen, limit, as_table=as_table)


def _letters(client: SyncClient, chosen: EndedFilters, limit: int, *, as_table: bool) -> None:
    found = list(client.dead(limit=limit, **chosen))
    if not as_table:
        click.echo(as_json(found))
        return
    table = new_table("job", "ended", "task", "error", "attempts", "lost", "message")
    now = datetime.now(UTC)
    for letter in found:
        table.add_row(
            str(letter.job_id),
            age((now - letter.completed_at).total_seconds()),
            Text(letter.task),
            Text(letter.error_code),
            str(letter.attempt),
            str(letter.worker_losses or ""),
            Text(_one_line(letter.error_message)),
        )
    _print(table, "no dead letters")


def _summary(client: SyncClient, chosen: EndedFilters, *, as_table: bool) -> None:
    found = client.dead_counts(**chosen)
    if not as_table:
        click.echo(as_json(found))
        return
    if found.items:
        print_counts(found.items)
    click.echo(plural(found.total, "dead letter"), err=True)


def _steps(client: SyncClient, limit: int, *, as_table: bool) -> None:
    found = list(client.steps_in_doubt(limit=limit))
    if not as_table:
        click.echo(as_json(found))
        return
    table = new_table("job", "status", "task", "step", "since", "begun", "key", "error")
    now = datetime.now(UTC)
    for step in found:
        table.add_row(
            str(step.job_id),
            coloured(step.status),
            Text(step.task),
            Text(step.name),
            age((now - step.since).total_seconds()),
            str(step.begun),
            Text(step.key),
            Text(_one_line(step.error)),
        )
    _print(table, "no steps in doubt")


def _print(table: Table, otherwise: str) -> None:
    if table.row_count:
        print_table(table)
    else:
        click.echo(otherwise, err=True)


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())
