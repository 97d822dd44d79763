"""The group of verbs. Each verb is a module of its own name, imported when it is asked for."""

from __future__ import annotations

from importlib import import_module

import click

from lateack import __version__

# In the order of a first day with lateack.
VERBS = (
    "up",
    "serve",
    "worker",
    "scheduler",
    "migrate",
    "submit",
    "get",
    "watch",
    "jobs",
    "cancel",
    "retry",
    "dead",
    "schedules",
    "chaos",
)


class Verbs(click.Group):
    """Commands that live in `lateack_cli.<verb>`, as the attribute `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f"lateack_cli.{cmd_name}").command
        return command


@click.group(
    cls=Verbs,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "LATEACK",
        "show_default": True,
        "max_content_width": 100,
    },
)
@click.version_option(__version__, prog_name="lateack", message="%(prog)s %(version)s")
def lateack() -> None:
    """Jobs that are tried as often as needed and take effect once.

    \b
    Start everything on this machine:   lateack up -A tasks:app
    Submit a job and watch it:          lateack submit tasks.report report_id=42 --watch

    DATABASE_URL and REDIS_URL name the servers; without them `lateack up` starts its own.
    """
