"""Workers that are started at the wrong moment wait for a better one."""

from __future__ import annotations

import signal
from pathlib import Path

import asyncpg

from lateack_cli.embedded import EmbeddedServers
from lateack_core.settings import Settings
from tests.consumers.conftest import until
from tests.consumers.processes import APP_PATH, lateack


async def test_a_worker_waits_for_a_database_that_takes_writes(
    own_servers: EmbeddedServers, own_settings: Settings, tmp_path: Path
) -> None:
    """BRK-14: read-only for a while, it answers and refuses to register tasks; that passes. One
    that is asked to stop meanwhile does so."""
    operator = await asyncpg.connect(own_servers.database_url)

    async def read_only(word: str) -> None:
        await operator.execute("SET default_transaction_read_only = off")
        await operator.execute(f"ALTER SYSTEM SET default_transaction_read_only = {word}")
        await operator.execute("SELECT pg_reload_conf()")

    await read_only("on")
    log, other = tmp_path / "worker.log", tmp_path / "other.log"
    words = ("worker", "-A", APP_PATH, "-c", "3")
    waiting = "the tasks cannot be registered yet"
    async with (
        lateack(own_settings, log, *words) as worker,
        lateack(own_settings, other, *words) as impatient,
    ):
        await until(lambda: waiting in log.read_text() and waiting in other.read_text())
        impatient.signal(signal.SIGTERM)
        assert await impatient.wait() == 0
        await read_only("off")
        await until(lambda: "ready: 3 slots" in log.read_text())
        worker.signal(signal.SIGTERM)
        assert await worker.wait() == 0
    await operator.close()
