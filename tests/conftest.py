"""Real servers for the tests: one PostgreSQL and one broker for the whole run, a database and a
namespace of its own for each test. Tests that kill or stop a server ask for `own_servers`. Which
servers these are is chosen in `servers.py`.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from lateack_cli.embedded import EmbeddedServers, Servers
from lateack_core.ground import Ground, open_ground
from lateack_core.migrate import migrate
from lateack_core.postgres import connect
from lateack_core.settings import Settings
from tests.servers import chosen_servers, kept_open, urls_of

_numbers = itertools.count(1)

# Everything that takes half a minute in life takes a second here; the ratios stay.
SHORT = {
    "lease": 1.5,
    "heartbeat": 0.4,
    "reclaim_idle": 2.0,
    "reclaim_interval": 0.5,
    "ledger_settle": 0.5,
    "grace": 3.0,
    "outbox_delay": 0.5,
    "relay_interval": 0.1,
    "leader_ttl": 1.5,
    "cleanup_interval": 0.5,
    "reap_interval": 0.3,
    "reconcile_interval": 0.5,
    "reconcile_grace": 1.0,
}


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """One PostgreSQL with a migrated template database, and one broker, for the whole run."""
    directory = Path(tempfile.mkdtemp(prefix="lateack-tests-"))
    with kept_open(_with_template(directory)) as both:
        yield both
    shutil.rmtree(directory, ignore_errors=True)


@asynccontextmanager
async def _with_template(directory: Path) -> AsyncIterator[Servers]:
    async with chosen_servers(directory) as both:
        await _make_template(both.database_url)
        yield urls_of(both)


async def _make_template(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE DATABASE lateack_template")
    await connection.close()
    postgres = await connect(_at_database(url, "lateack_template"), size=1)
    await migrate(postgres)
    await postgres.close()


def _at_database(url: str, name: str) -> str:
    """The same server, another database: `postgresql://user@/OLD?host=…` with NEW instead."""
    before, _, after = url.partition("?")
    return f"{before.rpartition('/')[0]}/{name}" + (f"?{after}" if after else "")


@pytest.fixture
async def ledger_url(servers: Servers) -> AsyncIterator[str]:
    """A fresh, migrated database."""
    name = f"test_{next(_numbers)}"
    connection = await asyncpg.connect(servers.database_url)
    await connection.execute(f"CREATE DATABASE {name} TEMPLATE lateack_template")
    yield _at_database(servers.database_url, name)
    await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    await connection.close()


@pytest.fixture
def settings(servers: Servers, ledger_url: str) -> Settings:
    """Settings with short timings, on a fresh database and an empty namespace."""
    return Settings(
        database_url=ledger_url,
        redis_url=servers.redis_url,
        namespace=f"t{next(_numbers)}",
        **SHORT,  # type: ignore[arg-type]
    )


@pytest.fixture
async def ground(settings: Settings) -> AsyncIterator[Ground]:
    """A ground whose loops are not started."""
    ground = await open_ground(settings, process="test")
    yield ground
    await ground.close()


@pytest.fixture
async def own_servers(tmp_path: Path) -> AsyncIterator[EmbeddedServers]:
    """Servers for one test alone, with handles to stop, kill and start them; migrated."""
    async with chosen_servers(tmp_path / "servers") as both:
        postgres = await connect(both.database_url, size=1)
        await migrate(postgres)
        await postgres.close()
        yield both


@pytest.fixture
def own_settings(own_servers: EmbeddedServers) -> Settings:
    """Settings with short timings on `own_servers`."""
    urls = urls_of(own_servers)
    return Settings(
        database_url=urls.database_url,
        redis_url=urls.redis_url,
        **SHORT,  # type: ignore[arg-type]
    )
