"""Bringing the ledger's schema up to date: forward only, checksummed, one at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from lateack_sql import Migration, migrations, query

from .postgres import Blocked, Duplicate, LedgerUnfit, Postgres

log = logging.getLogger("lateack.migrate")

T = TypeVar("T")

# Each waits for its locks for five seconds.
TRIES = 60


async def migrate(postgres: Postgres) -> list[str]:
    """Apply what is missing and return its names. Several processes may call it at once.

    Raises:
        LedgerUnfit: the server is too old, or an applied migration is not the one we know.
    """
    await postgres.check()
    await _patiently(_create_schema, postgres)
    done = []
    for migration in migrations():
        if await _patiently(_apply, postgres, migration):
            log.info("applied migration %04d %s", migration.number, migration.name)
            done.append(f"{migration.number:04d} {migration.name}")
    return done


async def pending(postgres: Postgres) -> list[str]:
    """The names of the migrations that are missing.

    Raises:
        LedgerUnfit: an applied migration is not the one we know.
    """
    if not (await postgres.fetch("has_schema"))[0]["present"]:
        return [f"{m.number:04d} {m.name}" for m in migrations()]
    applied = {row["number"]: row["checksum"] for row in await postgres.fetch("applied_migrations")}
    for migration in migrations():
        _compare(migration, applied.get(migration.number))
    return [f"{m.number:04d} {m.name}" for m in migrations() if m.number not in applied]


async def _patiently(step: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Take a step again while others hold what it needs: a busy table, or another migrator."""
    for left in reversed(range(TRIES)):
        try:
            return await step(*args)
        except Blocked:
            if not left:
                raise
            log.info("waiting for others to let go of the schema")
            await asyncio.sleep(1.0)
    raise AssertionError("unreachable")


async def _create_schema(postgres: Postgres) -> None:
    async with postgres.migration() as transaction:
        await transaction.fetch("lock_migrations")
        await transaction.script(query("create_schema"))


async def _apply(postgres: Postgres, migration: Migration) -> bool:
    if not migration.transactional:
        applied = {r["number"]: r["checksum"] for r in await postgres.fetch("applied_migrations")}
        if _compare(migration, applied.get(migration.number)):
            return False
        await postgres.script(migration.text)
        try:
            await postgres.fetch(
                "record_migration", migration.number, migration.name, migration.checksum
            )
        except Duplicate:
            # Another migrator was quicker; its statement is idempotent.
            return False
        return True
    async with postgres.migration() as transaction:
        await transaction.fetch("lock_migrations")
        applied = {
            r["number"]: r["checksum"] for r in await transaction.fetch("applied_migrations")
        }
        if _compare(migration, applied.get(migration.number)):
            return False
        await transaction.script(migration.text)
        await transaction.fetch(
            "record_migration", migration.number, migration.name, migration.checksum
        )
        return True


def _compare(migration: Migration, applied: str | None) -> bool:
    if applied is not None and applied != migration.checksum:
        raise LedgerUnfit(
            f"migration {migration.number:04d} {migration.name} was applied with other content; "
            "this database belongs to another build of lateack"
        )
    return applied is not None
