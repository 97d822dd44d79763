"""Bringing the ledger's schema up to date: forward only, checksummed, one at a time."""

from __future__ import annotations

import logging

from lateack_sql import Migration, migrations, query

from .postgres import LedgerUnfit, Postgres

log = logging.getLogger("lateack.migrate")


async def migrate(postgres: Postgres) -> list[str]:
    """Apply what is missing and return its names. Several processes may call it at once.

    Raises:
        LedgerUnfit: the server is too old, or an applied migration is not the one we know.
    """
    await postgres.check()
    async with postgres.migration() as transaction:
        await transaction.fetch("lock_migrations")
        await transaction.script(query("create_schema"))
    done = []
    for migration in migrations():
        if await _apply(postgres, migration):
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


async def _apply(postgres: Postgres, migration: Migration) -> bool:
    if not migration.transactional:
        applied = {r["number"]: r["checksum"] for r in await postgres.fetch("applied_migrations")}
        if _compare(migration, applied.get(migration.number)):
            return False
        await postgres.script(migration.text)
        await postgres.fetch(
            "record_migration", migration.number, migration.name, migration.checksum
        )
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
