"""`lateack worker`: runs jobs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from lateack_cli import flags
from lateack_cli.lifeline import tell_ready
from lateack_cli.signals import leave, run
from lateack_core.loading import load_app

if TYPE_CHECKING:
    from lateack_core.ground import Ground


@click.command("worker")
@flags.app(required=True, what="The app whose tasks are run.")
@flags.queues
@flags.concurrency
@flags.option(
    "-n",
    "--name",
    envvar="LATEACK_WORKER_NAME",
    help="What this worker is called in lists and logs; without it, after host and process.",
)
@flags.beat
@flags.log_level
def command(
    app_path: str,
    queues: str | None,
    concurrency: int,
    name: str | None,
    beat: bool,
    log_level: str,
) -> None:
    """Run jobs of an app's tasks.

    \b
    Example:
      lateack worker -A tasks:app -Q documents,default -c 50

    SIGTERM or Ctrl-C once: finish what runs, for up to LATEACK_GRACE seconds, then hand back the
    rest; twice: hand back at once. Neither costs a job an attempt.
    """
    from lateack_consumers.worker import work
    from lateack_core.log import configure
    from lateack_core.settings import from_environment
    from lateack_scheduler import scheduler

    configure(log_level, process="worker")
    wanted = flags.split(queues)

    def add_scheduler(ground: Ground) -> None:
        scheduler.start(ground)

    async def body(stop: asyncio.Event, hurry: asyncio.Event) -> int:
        settings = from_environment(log_level=log_level.upper())
        code = await work(
            settings,
            load_app(app_path),
            queues=wanted,
            slots=concurrency,
            name=name,
            app_path=app_path,
            stop=stop,
            hurry=hurry,
            ready=tell_ready,
            also=add_scheduler if beat else None,
        )
        leave(code)

    run(body, hosts_tasks=True)
