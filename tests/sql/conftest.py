"""A desk on a fresh ledger, and an empty database for the migrations."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import asyncpg
import pytest

from lateack_cli.embedded import Servers
from lateack_core.ground import Ground
from tests.sql.desk import Desk, open_desk

_numbers = itertools.count(1)


@pytest.fixture
async def desk(ground: Ground) -> AsyncIterator[Desk]:
    """A desk whose loops do not run: nothing moves but what the test moves."""
    async with open_desk(ground) as desk:
        yield desk


@pytest.fixture
async def empty_url(servers: Servers) -> AsyncIterator[str]:
    """A database in which nothing has been migrated."""
    name = f"empty_{next(_numbers)}"
    connection = await asyncpg.connect(servers.database_url)
    await connection.execute(f"CREATE DATABASE {name}")
    before, _, after = servers.database_url.partition("?")
    yield f"{before.rpartition('/')[0]}/{name}" + (f"?{after}" if after else "")
    await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await connection.close()
