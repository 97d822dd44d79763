"""`lateack submit`: submits a job, and waits for it if asked to."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

import click
import msgspec

from lateack.client import SubmitOptions
from lateack.models import Step
from lateack_cli import flags
from lateack_cli.remote import service
from lateack_cli.trouble import UNSUCCESSFUL


@click.command("submit")
@click.argument("task")
@click.argument("pairs", nargs=-1, metavar="[KEY=VALUE]...")
@flags.option("--args", "positional", metavar="JSON", help="Positional arguments: a JSON array.")
@flags.option("--kwargs", "named", metavar="JSON", help="Arguments by name: a JSON object.")
@flags.option("--key", help="The idempotency key: the same key again is the same job.")
@flags.option("--queue", help="Another queue than the task's.")
@flags.option("--priority", type=click.IntRange(0, 9), help="0 to 9; higher runs first.")
@flags.option("--countdown", type=float, metavar="SECONDS", help="Run it that much later.")
@flags.option("--eta", metavar="TIME", help="Run it at 2030-01-31T08:00:00+01:00, with its zone.")
@flags.option("--expires", type=float, metavar="SECONDS", help="Too late to start after that.")
@flags.option("--max-retries", type=click.IntRange(0), help="Another number than the task's.")
@flags.option(
    "--then",
    multiple=True,
    metavar="STEP",
    help="A next step, which gets the result: a task's name, or a JSON object such as "
    '{"task": "tasks.index", "kwargs": {"into": "docs"}}; can be repeated.',
)
@flags.option("--tag", "tags", multiple=True, help="A tag to find it by; can be repeated.")
@flags.option("--wait", is_flag=True, help="Wait for the end and print the result as JSON.")
@flags.option("--watch", is_flag=True, help="Show its progress until the end, then the result.")
@flags.service
def command(
    task: str,
    pairs: tuple[str, ...],
    positional: str | None,
    named: str | None,
    key: str | None,
    queue: str | None,
    priority: int | None,
    countdown: float | None,
    eta: str | None,
    expires: float | None,
    max_retries: int | None,
    then: tuple[str, ...],
    tags: tuple[str, ...],
    wait: bool,
    watch: bool,
    url: str,
    tenant: str | None,
    timeout: float,
) -> None:
    """Submit a job of TASK and print its id.

    \b
    Examples:
      lateack submit reports.build report_id=42 lang=en --watch
      lateack submit sums.add --args '[1, 2]' --wait

    A VALUE is read as JSON if it is JSON, else taken as text: 42 is a number, "42" (with its
    quotes) a text.

    \b
    Exit code: 0 accepted (with --wait or --watch: succeeded), 1 failed or cancelled,
    2 something has to change, 3 the service cannot be reached or takes no more.
    """
    from lateack_cli.show import follow, print_outcome

    options: SubmitOptions = {
        "args": read_json(positional, list, "--args") or [],
        "kwargs": {**(read_json(named, dict, "--kwargs") or {}), **read_pairs(pairs)},
        "idempotency_key": key,
        "queue": queue,
        "priority": priority,
        "countdown": countdown,
        "eta": None if eta is None else read_time(eta),
        "expires": expires,
        "max_retries": max_retries,
        "then": [read_step(text) for text in then],
        "tags": tags,
    }
    with service(url, tenant, timeout) as client:
        job = client.submit(task, **options)
        if job.replayed:
            click.echo("this key is known: nothing new was made", err=True)
        if not (wait or watch):
            click.echo(job.job_id)
            return
        click.echo(job.job_id, err=True)
        ended = follow(client, job) if watch else client.wait(job)
        print_outcome(ended)
    sys.exit(0 if ended.status == "succeeded" else UNSUCCESSFUL)


def read_json(text: str | None, kind: type[Any], flag: str) -> Any:
    """The JSON value of a flag; None when it was not given.

    Raises:
        click.UsageError: it is no JSON, or of another kind.
    """
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise click.UsageError(f"{flag}: {error}") from None


def read_pairs(pairs: tuple[str, ...]) -> dict[str, Any]:
    """`a=1 b=text` as arguments by name.

    Raises:
        click.UsageError: one has no name or no value.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{pair!r}: write KEY=VALUE, or use --args")
        try:
            values[name] = msgspec.json.decode(text)
        except msgspec.MsgspecError:
            values[name] = text
    return values


def read_time(text: str) -> datetime:
    """A time with its zone.

    Raises:
        click.UsageError: it is none, or has no zone.
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.UsageError(f"--eta: {error}") from None
    if at.tzinfo is None:
        raise click.UsageError(f"--eta: {text} needs its zone, such as {text}+00:00")
    return at


def read_step(text: str) -> Step:
    """A step: the name of a task, or a JSON object.

    Raises:
        click.UsageError: it is no step.
    """
    if not text.lstrip().startswith("{"):
        return Step(task=text)
    try:
        return msgspec.json.decode(text, type=Step)
    except msgspec.MsgspecError as error:
        raise click.UsageError(f"--then: {error}") from None
