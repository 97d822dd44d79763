"""`lateack cancel`: asks for jobs to be cancelled."""

from __future__ import annotations

import sys

import click

from lateack import NotFound
from lateack_cli import flags
from lateack_cli.remote import service
from lateack_cli.trouble import MUST_CHANGE


@click.command("cancel")
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
@flags.service
def command(job_ids: tuple[str, ...], url: str, tenant: str | None, timeout: float) -> None:
    """Cancel jobs, and print the state of each.

    \b
    Example:
      lateack cancel 01976a1e-7c2f-7b52-9d1c-3a3f6c0e5d11

    A waiting job ends at once; one that runs is asked to stop, and stays `running` until it did.

    Exit code: 0, 2 one of them does not exist, 3 the service cannot be reached.
    """
    unknown = False
    with service(url, tenant, timeout) as client:
        for job_id in job_ids:
            try:
                job = client.cancel(job_id)
            except NotFound as error:
                click.echo(f"{job_id}  {error.detail}", err=True)
                unknown = True
            else:
                asked = "  (asked to stop)" if job.status == "running" else ""
                click.echo(f"{job_id}  {job.status}{asked}")
    sys.exit(MUST_CHANGE if unknown else 0)
