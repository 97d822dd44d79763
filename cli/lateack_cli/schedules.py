"""`lateack schedules`: periodic jobs, listed, made, changed, run and looked back at."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import click
import msgspec

from lateack import Job
from lateack.models import Schedule, ScheduleRequest
from lateack_cli import flags
from lateack_cli.remote import service
from lateack_cli.submit import read_json, read_pairs

Flagged = Callable[..., Any]

output = flags.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    help="A table, or a JSON array of the documents.",
)

_WHEN_AND_HOW = (
    flags.option("--cron", metavar="EXPRESSION", help='Five fields, such as "0 3 * * mon-fri".'),
    flags.option(
        "--every", "interval", type=float, metavar="SECONDS", help="An interval instead of --cron."
    ),
    flags.option("--anchor", metavar="TIME", help="What an interval counts from, with its zone."),
    flags.option("--zone", help="The IANA zone of --cron; UTC without it."),
    flags.option("--args", "positional", metavar="JSON", help="Positional arguments: an array."),
    flags.option("--queue", help="Another queue than the task's."),
    flags.option("--priority", type=click.IntRange(0, 9), help="0 to 9; higher runs first."),
    flags.option("--max-retries", type=click.IntRange(0), help="Another number than the task's."),
    flags.option(
        "--expires", type=float, metavar="SECONDS", help="Too late to start that long after a tick."
    ),
    flags.option(
        "--misfire",
        metavar="POLICY",
        help="What becomes of missed ticks: skip, once, or all(n), a job for each of the newest n.",
    ),
    flags.option(
        "--overlap",
        type=click.Choice(["allow", "skip"]),
        help="Whether a tick fires while a job of the schedule is waiting or running.",
    ),
)


def when_and_how(function: Flagged) -> Flagged:
    """The flags that say when a schedule fires and by which rules."""
    for option in reversed(_WHEN_AND_HOW):
        function = option(function)
    return function


@click.group("schedules", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Periodic jobs; without a further word they are listed.

    \b
    Example:
      lateack schedules create nightly reports.build lang=en --cron "0 3 * * *" --zone Europe/Berlin
      lateack schedules next nightly -n 5
      lateack schedules ticks nightly
    """
    if ctx.invoked_subcommand is None:
        with list_.make_context("list", [], parent=ctx) as listing:
            list_.invoke(listing)


@command.command("list")
@output
@flags.service
def list_(output: str, url: str, tenant: str | None, timeout: float) -> None:
    """List schedules with their next tick, and with what keeps one from firing.

    \b
    Example:
      lateack schedules list -o json
    """
    from lateack_cli import show

    with service(url, tenant, timeout) as client:
        found = list(client.schedules.list())
    if output == "json":
        click.echo(show.as_json(found))
    elif found:
        show.print_schedules(found)
    else:
        click.echo("no schedules", err=True)


@command.command("show")
@click.argument("name")
@flags.service
def show_(name: str, url: str, tenant: str | None, timeout: float) -> None:
    """Print the document of schedule NAME as JSON.

    \b
    Example:
      lateack schedules show nightly
    """
    with service(url, tenant, timeout) as client:
        _print(client.schedules.get(name))


@command.command("next")
@click.argument("name")
@flags.option("-n", "count", type=click.IntRange(1, 100), default=10, help="How many.")
@output
@flags.service
def next_(name: str, count: int, output: str, url: str, tenant: str | None, timeout: float) -> None:
    """Print when schedule NAME will fire, with changes of the clocks marked.

    \b
    Example:
      lateack schedules next nightly -n 10
    """
    from lateack_cli import show

    with service(url, tenant, timeout) as client:
        fires = client.schedules.next(name, count)
        paused = client.schedules.get(name).paused
    if output == "json":
        click.echo(show.as_json(fires))
        return
    for fire in fires:
        mark = f"  * {fire.clock_change}" if fire.clock_change else ""
        click.echo(f"{fire.local}  {show.stamp(fire.due_at)}{mark}")
    if paused:
        click.echo("it is paused: these ticks will be skipped", err=True)


@command.command("create")
@click.argument("name")
@click.argument("task")
@click.argument("pairs", nargs=-1, metavar="[KEY=VALUE]...")
@when_and_how
@flags.option("--paused", is_flag=True, default=None, help="Make it, and do not let it fire yet.")
@flags.service
def create(name: str, task: str, pairs: tuple[str, ...], **given: Any) -> None:
    """Make schedule NAME, which runs TASK.

    \b
    Example:
      lateack schedules create nightly reports.build lang=en --cron "0 3 * * *" --zone Europe/Berlin
      lateack schedules create poll feeds.poll --every 30 --overlap skip

    A schedule of that name that exists already says this from then on.
    """
    with service(given.pop("url"), given.pop("tenant"), given.pop("timeout")) as client:
        fields = {"task": task, "kwargs": read_pairs(pairs), **_fields(given)}
        _print(client.schedules.put_request(name, ScheduleRequest(**fields)))


@command.command("edit")
@click.argument("name")
@click.argument("pairs", nargs=-1, metavar="[KEY=VALUE]...")
@flags.option("--task", help="Another task.")
@when_and_how
@flags.service
def edit(name: str, pairs: tuple[str, ...], **given: Any) -> None:
    """Change what is given of schedule NAME and leave the rest.

    \b
    Example:
      lateack schedules edit nightly --cron "30 4 * * *"

    An edit of a schedule that the code declares holds until the declaration itself changes.
    """
    from lateack._schedules import request_of

    with service(given.pop("url"), given.pop("tenant"), given.pop("timeout")) as client:
        request = request_of(client.schedules.get(name))
        fields = _fields(given)
        if "cron" in fields:
            fields = {"interval": None, "anchor": None, "days": "either", **fields}
        if "interval" in fields:
            fields = {"cron": None, "days": "either", **fields}
        if pairs:
            fields["kwargs"] = {**request.kwargs, **read_pairs(pairs)}
        _print(client.schedules.put_request(name, msgspec.structs.replace(request, **fields)))


@command.command("run")
@click.argument("name")
@flags.service
def run(name: str, url: str, tenant: str | None, timeout: float) -> None:
    """Run schedule NAME now, paused or not, and print the job's id.

    \b
    Example:
      lateack schedules run nightly
    """
    with service(url, tenant, timeout) as client:
        job: Job = client.schedules.run(name)
    click.echo(job.job_id)


@command.command("pause")
@click.argument("name")
@flags.service
def pause(name: str, url: str, tenant: str | None, timeout: float) -> None:
    """Pause schedule NAME: its ticks are recorded as skipped. No deploy resumes it.

    \b
    Example:
      lateack schedules pause nightly
    """
    with service(url, tenant, timeout) as client:
        client.schedules.pause(name)
    click.echo(f"{name}  paused")


@command.command("resume")
@click.argument("name")
@flags.service
def resume(name: str, url: str, tenant: str | None, timeout: float) -> None:
    """Let schedule NAME fire again, from its next tick on.

    \b
    Example:
      lateack schedules resume nightly
    """
    from lateack_cli import show

    with service(url, tenant, timeout) as client:
        found = client.schedules.resume(name)
    click.echo(f"{name}  {show.stamp(found.next_due) or found.problem or 'nothing is to come'}")


@command.command("delete")
@click.argument("name")
@flags.service
def delete(name: str, url: str, tenant: str | None, timeout: float) -> None:
    """Delete schedule NAME with its ticks; jobs that it made stay.

    \b
    Example:
      lateack schedules delete nightly

    One that the code declares is refused: remove it there, or pause it.
    """
    with service(url, tenant, timeout) as client:
        client.schedules.delete(name)
    click.echo(f"{name}  deleted")


@command.command("ticks")
@click.argument("name")
@flags.option(
    "--outcome",
    type=click.Choice(["fired", "late", "skipped", "missed", "manual"]),
    help="Only these.",
)
@flags.option("--limit", type=click.IntRange(1, 200), default=20, help="At most so many.")
@output
@flags.service
def ticks(
    name: str,
    outcome: Any,
    limit: int,
    output: str,
    url: str,
    tenant: str | None,
    timeout: float,
) -> None:
    """Print what became of the ticks of schedule NAME, newest first.

    \b
    Example:
      lateack schedules ticks nightly --outcome missed
    """
    from lateack_cli import show

    with service(url, tenant, timeout) as client:
        found = client.schedules.ticks(name, limit=limit, outcome=outcome)
    if output == "json":
        click.echo(show.as_json(found))
    elif found:
        show.print_ticks(found)
    else:
        click.echo("no ticks yet", err=True)


def _fields(given: dict[str, Any]) -> dict[str, Any]:
    """What was given, as fields of a request."""
    fields = {name: value for name, value in given.items() if value is not None}
    if (positional := fields.pop("positional", None)) is not None:
        fields["args"] = read_json(positional, list, "--args")
    if (anchor := fields.get("anchor")) is not None:
        fields["anchor"] = _time(anchor)
    return fields


def _time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.UsageError(f"--anchor: {error}") from None
    if at.tzinfo is None:
        raise click.UsageError(f"--anchor: {text} needs its zone, such as {text}+00:00")
    return at


def _print(schedule: Schedule) -> None:
    from lateack_cli import show

    click.echo(show.as_json(schedule))
