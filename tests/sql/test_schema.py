"""Migrations and statements: replayed from nothing, prepared one by one, none unused."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import asyncpg
import pytest

from lateack.states import LIVE, MOVES, TERMINAL
from lateack_core.migrate import migrate, pending
from lateack_core.postgres import LedgerUnfit, connect
from lateack_sql import migrations, query

ROOT = Path(__file__).parents[2]
QUERIES = sorted(path.stem for path in (ROOT / "sql/lateack_sql/queries").glob("*.sql"))
PARTS = ["core", "service", "consumers", "scheduler", "cli"]
# Two statements in one text: it is run as a script.
SCRIPTS = {"create_schema"}


async def test_two_migrators_at_once_apply_each_migration_once(empty_url: str) -> None:
    """Several processes may start on an empty database at the same moment."""
    one, two = await connect(empty_url), await connect(empty_url)
    assert len(await pending(one)) == len(migrations())
    done = await asyncio.gather(migrate(one), migrate(two))
    assert sorted(done[0] + done[1]) == [f"{m.number:04d} {m.name}" for m in migrations()]
    assert await migrate(one) == []
    assert await pending(two) == []
    await one.close()
    await two.close()


async def test_a_changed_migration_is_refused(ledger_url: str) -> None:
    """A database of another build is not touched."""
    connection = await asyncpg.connect(ledger_url)
    await connection.execute("UPDATE lateack.migrations SET checksum = 'other' WHERE number = 2")
    await connection.close()
    postgres = await connect(ledger_url)
    with pytest.raises(LedgerUnfit, match="0002 rules was applied with other content"):
        await migrate(postgres)
    with pytest.raises(LedgerUnfit):
        await pending(postgres)
    await postgres.close()


def test_migrations_are_numbered_without_a_hole() -> None:
    assert [m.number for m in migrations()] == list(range(1, len(migrations()) + 1))


async def test_every_statement_prepares_against_the_schema(ledger_url: str) -> None:
    """A misspelt column is found here, not in production."""
    connection = await asyncpg.connect(ledger_url)
    for name in QUERIES:
        if name not in SCRIPTS:
            await connection.prepare(query(name))
    await connection.close()


@pytest.mark.parametrize("name", QUERIES)
def test_a_statement_says_what_it_promises_and_is_used(name: str) -> None:
    """Each file opens with a comment, reads the one clock, and is named somewhere in Python."""
    text = query(name)
    assert text.startswith("-- ")
    code = re.sub(r"--.*", "", text)
    assert not re.search(r"(?<!lateack\.)\b(now\(\)|current_timestamp)", code, re.IGNORECASE)
    sources = [path.read_text("utf-8") for part in PARTS for path in (ROOT / part).rglob("*.py")]
    assert any(f'"{name}"' in source for source in sources), f"no Python uses {name}.sql"


async def test_the_state_table_is_the_constraint(ledger_url: str) -> None:
    """One list of states for code, SQL and documents."""
    connection = await asyncpg.connect(ledger_url)
    rows = await connection.fetch(
        "SELECT conname, pg_get_constraintdef(oid) AS text FROM pg_constraint "
        "WHERE conrelid = 'lateack.jobs'::regclass"
    )
    texts = {row["conname"]: row["text"] for row in rows}
    await connection.close()
    assert set(re.findall(r"'(\w+)'", texts["status_is_known"])) == LIVE | TERMINAL == set(MOVES)
    assert set(re.findall(r"'(\w+)'", texts["completed_if_terminal"])) == TERMINAL
