"""`lateack jobs`: lists jobs."""

from __future__ import annotations

from typing import Any, get_args

import click

from lateack.states import Status
from lateack_cli import flags
from lateack_cli.remote import service


@click.command("jobs")
@flags.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(get_args(Status)),
    help="Jobs in this state; can be repeated.",
)
@flags.option("--task", help="Jobs of this task.")
@flags.option("--queue", help="Jobs of this queue.")
@flags.option("--tag", help="Jobs with this tag.")
@flags.option("--limit", type=click.IntRange(1), default=20, help="At most so many.")
@flags.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    help="A table, or a JSON array of the jobs' documents.",
)
@flags.service
def command(
    statuses: tuple[Any, ...],
    task: str | None,
    queue: str | None,
    tag: str | None,
    limit: int,
    output: str,
    url: str,
    tenant: str | None,
    timeout: float,
) -> None:
    """List jobs, newest first.

    \b
    Example:
      lateack jobs --status failed --queue documents -o json
    """
    from lateack_cli.show import as_json, print_table

    with service(url, tenant, timeout) as client:
        found = list(
            client.list(limit=limit, status=statuses or None, task=task, queue=queue, tag=tag)
        )
    if output == "json":
        click.echo(as_json(found))
    elif found:
        print_table(found)
    else:
        click.echo("no jobs", err=True)
