"""`lateack serve`: the HTTP API."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import click

from lateack_cli import flags
from lateack_cli.lifeline import tell_ready
from lateack_cli.signals import Interrupted, beside, leave, run, unless
from lateack_core.loading import load_app

if TYPE_CHECKING:
    from lateack_core.ground import Ground

log = logging.getLogger("lateack.serve")


@click.command("serve")
@flags.option(
    "-A",
    "--app",
    "app_paths",
    envvar="LATEACK_APP",
    metavar="MODULE:APP",
    multiple=True,
    help="An app whose tasks are registered at start, so that jobs are accepted before the first "
    "worker runs; can be repeated.",
)
@flags.host
@flags.port
@flags.beat
@flags.log_level
def command(app_paths: tuple[str, ...], host: str, port: int, beat: bool, log_level: str) -> None:
    """Serve the HTTP API: submit, get, wait, watch, cancel.

    \b
    Example:
      DATABASE_URL=postgresql://db/lateack REDIS_URL=redis://broker lateack serve --port 8000

    Any number of these can run side by side. An address other than loopback is refused unless
    LATEACK_TRUST_TENANT_HEADER=1 says that a gateway in front sets X-Tenant-ID.
    """
    from lateack_core.log import configure
    from lateack_core.settings import from_environment
    from lateack_scheduler.scheduler import schedule
    from lateack_service.server import serve

    configure(log_level, process="serve")

    def ready(url: str) -> None:
        log.info("listening at %s", url)
        tell_ready(url)

    async def body(stop: asyncio.Event, hurry: asyncio.Event) -> int:
        settings = from_environment(log_level=log_level.upper())
        apps = [load_app(path) for path in app_paths]
        schedulers: list[Ground] = []
        work = serve(
            settings, host=host, port=port, apps=apps, stop=stop, ready=ready, beside=schedulers
        )
        if beat:
            second = schedule(settings, stop=stop, ready=lambda: None, opened=schedulers.append)
            work = beside(stop, work, second)
        try:
            await unless(hurry, work)
        except Interrupted:
            log.warning("stopped in haste")
            # Watchers and long polls that are still open have nothing to clean up, and each would
            # be told of as an error.
            leave(0)
        return 0

    run(body)
