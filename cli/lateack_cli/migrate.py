"""`lateack migrate`: brings the database's schema up to date."""

from __future__ import annotations

import asyncio

import click

from lateack.errors import DeclarationError
from lateack_cli import flags
from lateack_cli.signals import run
from lateack_core.loading import load_app


@click.command("migrate")
@flags.option(
    "-A",
    "--app",
    "app_paths",
    envvar="LATEACK_APP",
    metavar="MODULE:APP",
    multiple=True,
    help="An app whose tasks are registered too, so that jobs are accepted before the first "
    "worker runs; can be repeated.",
)
@flags.option("--check", is_flag=True, help="Change nothing; exit 1 when a migration is missing.")
@flags.log_level
def command(app_paths: tuple[str, ...], check: bool, log_level: str) -> None:
    """Bring the database's schema up to date.

    \b
    Example:
      DATABASE_URL=postgresql://db/lateack lateack migrate -A tasks:app

    Migrations go forward only. Run it before the new release starts: workers of the release
    before go on with the new schema. Several at once wait for one another.
    """
    from lateack_core.log import configure

    configure(log_level, process="migrate")

    async def body(stop: asyncio.Event, hurry: asyncio.Event) -> int:
        return await _migrate(app_paths, check)

    run(body)


async def _migrate(app_paths: tuple[str, ...], check: bool) -> int:
    from lateack_core.jobs import Ledger
    from lateack_core.migrate import migrate, pending
    from lateack_core.postgres import connect
    from lateack_core.registry import entries_of
    from lateack_core.schedules import Schedules
    from lateack_core.settings import from_environment

    settings = from_environment()
    if not settings.database_url:
        raise DeclarationError("DATABASE_URL must be set, such as postgresql://user@host/lateack")
    apps = [load_app(path) for path in app_paths]
    postgres = await connect(
        settings.database_url,
        size=1,
        prepared_statements=settings.prepared_statements,
        name="lateack migrate",
    )
    try:
        if check:
            missing = await pending(postgres)
            for name in missing:
                click.echo(f"missing {name}")
            return 1 if missing else 0
        done = await migrate(postgres)
        for name in done:
            click.echo(f"applied {name}")
        if not done:
            click.echo("the schema is up to date")
        for app in apps:
            await Ledger(postgres).register_tasks(entries_of(app))
            await Schedules(postgres).declare(app)
            click.echo(f"registered {len(app.tasks)} tasks of {app.name}")
            if count := len(app.schedules):
                click.echo(f"declared {count} schedules of {app.name}")
    finally:
        await postgres.close()
    return 0
