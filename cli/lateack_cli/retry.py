"""`lateack retry`: runs ended jobs again, some by name or many by filter."""

from __future__ import annotations

import sys
from typing import Any

import click

from lateack import Conflict, NotFound
from lateack.client import RetryFilters, SyncClient
from lateack_cli import flags
from lateack_cli.ended import filters, plural, print_counts, read_moment
from lateack_cli.remote import service
from lateack_cli.trouble import MUST_CHANGE


@click.command("retry")
@click.argument("job_ids", metavar="[ID]...", nargs=-1)
@flags.option(
    "--status", type=click.Choice(["failed", "cancelled"]), help="Which, if not those that failed."
)
@filters
@flags.option("--limit", type=click.IntRange(1), help="At most so many, the oldest first.")
@flags.option("--yes", is_flag=True, help="Do it; without it, matching jobs are only counted.")
@flags.service
def command(
    job_ids: tuple[str, ...],
    status: Any,
    task: str | None,
    queue: str | None,
    tag: str | None,
    error_code: str | None,
    since: str | None,
    until: str | None,
    limit: int | None,
    yes: bool,
    url: str,
    tenant: str | None,
    timeout: float,
) -> None:
    """Run jobs that failed or were cancelled again, as new jobs.

    \b
    Examples:
      lateack retry 01976a1e-7c2f-7b52-9d1c-3a3f6c0e5d11
      lateack retry --task mail.send --error-code WorkerLost --since 2h
      lateack retry --task mail.send --error-code WorkerLost --since 2h --yes

    A job is run again once: when its successor fails too, retry the successor. The new job has a
    fresh budget of attempts and a fresh latest start; steps that were finished are not run again,
    and the idempotency key now stands for the new job. The old one stays as it ended. Workflows
    and their steps are not run again.

    \b
    Exit code: 0, 2 one of the named jobs does not exist or cannot be retried, 3 the service cannot
    be reached.
    """
    chosen: RetryFilters = {
        "task": task,
        "queue": queue,
        "tag": tag,
        "error_code": error_code,
        "since": read_moment(since, "--since"),
        "until": read_moment(until, "--until"),
    }
    if status is not None:
        chosen["status"] = status
    filtered = any(value is not None for value in chosen.values())
    if bool(job_ids) == filtered:
        raise click.UsageError("name jobs by their ids, or give filters such as --task or --status")
    if job_ids and limit is not None:
        raise click.UsageError("--limit goes with filters, not with ids")
    with service(url, tenant, timeout) as client:
        if job_ids:
            sys.exit(0 if _retry(client, job_ids) else MUST_CHANGE)
        if yes:
            answer = client.retry_many(dry_run=False, limit=limit, **chosen)
            click.echo(f"{plural(answer.retried, 'job')} retried")
        else:
            _count(client, chosen, limit)


def _retry(client: SyncClient, job_ids: tuple[str, ...]) -> bool:
    """Retry these one by one; whether each of them runs again."""
    all_well = True
    for job_id in job_ids:
        try:
            job = client.retry(job_id)
        except (NotFound, Conflict) as error:
            click.echo(f"{job_id}  {error.detail}", err=True)
            all_well = False
            continue
        click.echo(f"{job_id}  {job.job_id}  {job.status}")
        if job.replayed:
            more = "; when it is to run once more, retry that one" if job.ended else ""
            click.echo(f"{job_id} was retried before, as {job.job_id}{more}", err=True)
    return all_well


def _count(client: SyncClient, chosen: RetryFilters, limit: int | None) -> None:
    answer = client.retry_many(limit=limit, **chosen)
    if answer.counts:
        print_counts(answer.counts)
    if not answer.matched:
        click.echo("no jobs to retry", err=True)
        return
    count = answer.matched if limit is None else min(limit, answer.matched)
    of_all = f" of {answer.matched}" if count < answer.matched else ""
    click.echo(f"{plural(count, 'job')}{of_all} would be retried; add --yes to do it", err=True)
