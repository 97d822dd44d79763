"""`lateack get`: prints a job's document."""

from __future__ import annotations

import click

from lateack_cli import flags
from lateack_cli.remote import service


@click.command("get")
@click.argument("job_id", metavar="ID")
@flags.service
def command(job_id: str, url: str, tenant: str | None, timeout: float) -> None:
    """Print the document of job ID as JSON: its state, result, error and times.

    \b
    Example:
      lateack get 01976a1e-7c2f-7b52-9d1c-3a3f6c0e5d11

    Exit code: 0, 2 no such job, 3 the service cannot be reached.
    """
    from lateack_cli.show import as_json

    with service(url, tenant, timeout) as client:
        click.echo(as_json(client.get(job_id)))
