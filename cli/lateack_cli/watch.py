"""`lateack watch`: shows a job's progress until its end."""

from __future__ import annotations

import sys

import click

from lateack_cli import flags
from lateack_cli.remote import service
from lateack_cli.trouble import UNSUCCESSFUL


@click.command("watch")
@click.argument("job_id", metavar="ID")
@flags.service
def command(job_id: str, url: str, tenant: str | None, timeout: float) -> None:
    """Show the progress of job ID, live, until its end; then its result.

    \b
    Example:
      lateack watch 01976a1e-7c2f-7b52-9d1c-3a3f6c0e5d11

    A bar on a terminal, a line for each event elsewhere. It survives restarts of the service.

    \b
    Exit code: 0 succeeded, 1 failed or cancelled, 2 no such job, 3 the service cannot be reached.
    """
    from lateack_cli.show import follow, print_outcome

    with service(url, tenant, timeout) as client:
        job = follow(client, client.get(job_id))
        print_outcome(job)
    sys.exit(0 if job.status == "succeeded" else UNSUCCESSFUL)
