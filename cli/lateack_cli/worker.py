"""`lateack worker`: runs jobs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from lateack_cli import flags
from lateack_cli.lifeline import tell_ready
from lateack_cli.signals import leave, on_quit, run
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
@flags.option(
    "--max-tasks-per-child",
    envvar="LATEACK_PROCESS_MAX_JOBS",
    type=click.IntRange(1),
    metavar="JOBS",
    help='Replace a child process (pool="process") after so many jobs.',
)
@flags.option(
    "--max-memory-per-child",
    envvar="LATEACK_PROCESS_MAX_MEMORY",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MIB",
    help="Replace a child process that holds more memory than this when its job has ended. In MiB, "
    "where Celery counts KiB.",
)
@flags.beat
@flags.log_level
def command(
    app_path: str,
    queues: str | None,
    concurrency: int,
    name: str | None,
    beat: bool,
    max_tasks_per_child: int | None,
    max_memory_per_child: float | None,
    log_level: str,
) -> None:
    """Run jobs of an app's tasks.

    \b
    Example:
      lateack worker -A tasks:app -Q documents,default -c 50

    \b
    How it stops; none of these costs a job an attempt:
      SIGTERM or Ctrl-C   warm: what runs may finish, for up to LATEACK_GRACE seconds; then soft
      the second of them  soft: bodies are interrupted, get 2 s to clean up, and jobs go back
      SIGQUIT             cold: bodies end where they are, and jobs go back within 2 s
    The exit status is 0; 75 when a cold stop left jobs to their leases, 70 when a task brought
    this worker down.
    """
    from lateack_consumers.worker import work
    from lateack_core.log import configure
    from lateack_core.schedules import declaration
    from lateack_core.settings import from_environment
    from lateack_scheduler import scheduler

    configure(log_level, process="worker")
    wanted = flags.split(queues)

    async def body(stop: asyncio.Event, hurry: asyncio.Event) -> int:
        settings = from_environment(
            log_level=log_level.upper(),
            process_max_jobs=max_tasks_per_child,
            process_max_memory=max_memory_per_child,
        )
        app = load_app(app_path)

        def also(ground: Ground) -> None:
            ground.loops.start("declare", declaration(ground, [app]))
            if beat:
                scheduler.start(ground)

        code = await work(
            settings,
            app,
            queues=wanted,
            slots=concurrency,
            name=name,
            app_path=app_path,
            stop=stop,
            hurry=hurry,
            ready=tell_ready,
            also=also,
            on_cold=on_quit,
        )
        leave(code)

    run(body, hosts_tasks=True)
