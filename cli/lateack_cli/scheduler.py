"""`lateack scheduler`: clean-up, rescue, periodic chores."""

from __future__ import annotations

import asyncio
import logging

import click

from lateack_cli import flags
from lateack_cli.lifeline import tell_ready
from lateack_cli.signals import Interrupted, run, unless

log = logging.getLogger("lateack.scheduler")


@click.command("scheduler")
@flags.log_level
def command(log_level: str) -> None:
    """Run the scheduler: it cleans up stale jobs and rescues those whose worker was lost.

    \b
    Example:
      DATABASE_URL=postgresql://db/lateack REDIS_URL=redis://broker lateack scheduler

    Run as many as you like: one leads, another takes over within seconds. `worker -B` and
    `serve -B` run the same loops inside those processes.
    """
    from lateack_core.log import configure
    from lateack_core.settings import from_environment
    from lateack_scheduler.scheduler import schedule

    configure(log_level, process="scheduler")

    async def body(stop: asyncio.Event, hurry: asyncio.Event) -> int:
        settings = from_environment(log_level=log_level.upper())
        try:
            await unless(hurry, schedule(settings, stop=stop, ready=tell_ready))
        except Interrupted:
            log.warning("stopped in haste")
        return 0

    run(body)
