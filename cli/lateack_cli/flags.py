"""Flags that several verbs share. Each has its environment variable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

LEVELS = ("debug", "info", "warning", "error")


def option(*names: str, envvar: str | None = None, **settings: Any) -> Decorator:
    """A flag whose variable is shown in --help; without `envvar` it is LATEACK_<VERB>_<FLAG>."""
    return click.option(*names, envvar=envvar, show_envvar=True, **settings)


def app(*, required: bool, what: str) -> Decorator:
    """-A module:app."""
    return option(
        "-A",
        "--app",
        "app_path",
        envvar="LATEACK_APP",
        metavar="MODULE:APP",
        required=required,
        help=f"{what} It is looked for in the current folder first.",
    )


queues = option(
    "-Q",
    "--queues",
    envvar="LATEACK_QUEUES",
    metavar="NAME,NAME",
    help="The queues to take jobs from; without it, every queue that the tasks name.",
)

concurrency = option(
    "-c",
    "--concurrency",
    envvar="LATEACK_CONCURRENCY",
    type=click.IntRange(1, 10_000),
    default=100,
    help="How many jobs a worker runs at once.",
)

beat = option(
    "-B",
    "--beat",
    envvar="LATEACK_BEAT",
    is_flag=True,
    help="Run the scheduler's loops in this process too; safe in any number of processes.",
)

log_level = option(
    "-l",
    "--log-level",
    "--loglevel",
    "log_level",
    envvar="LATEACK_LOG_LEVEL",
    type=click.Choice(LEVELS, case_sensitive=False),
    default="info",
    help="The least that is logged, to standard error.",
)

host = option(
    "--host", envvar="LATEACK_HOST", default="127.0.0.1", help="The address to listen on."
)

port = option(
    "--port",
    envvar="LATEACK_PORT",
    type=click.IntRange(0, 65_535),
    default=8000,
    help="The port to listen on; 0 is a free one.",
)

_url = option(
    "--url",
    envvar="LATEACK_URL",
    default="http://127.0.0.1:8000",
    help="Where the service is.",
)

_tenant = option("--tenant", envvar="LATEACK_TENANT", help="On whose behalf to ask.")

_timeout = option(
    "--timeout",
    envvar="LATEACK_TIMEOUT",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    metavar="SECONDS",
    help="How long to try to reach the service, retries included.",
)


def service(function: Callable[..., Any]) -> Callable[..., Any]:
    """--url, --tenant and --timeout, for verbs that talk to the service."""
    return _url(_tenant(_timeout(function)))


def split(queues: str | None) -> list[str] | None:
    """`a,b` as a list; None when there is none.

    Raises:
        click.UsageError: a name cannot be a queue's.
    """
    from lateack.names import queue_problem

    names = [name for part in (queues or "").split(",") if (name := part.strip())]
    for name in names:
        if reason := queue_problem(name):
            raise click.UsageError(f"-Q {name!r}: {reason}")
    return list(dict.fromkeys(names)) or None
