"""A connection pooler in transaction mode between every process and the database: PgBouncer.

It is no Python package: where there is none, all but the last of these tests are skipped. On Debian
it is the package `pgbouncer`; LATEACK_TEST_PGBOUNCER names a program that is not in PATH.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import httpx
import msgspec
import pytest

from lateack import Client
from lateack_cli.embedded import embedded_servers
from lateack_core.postgres import LedgerUnfit, connect
from lateack_core.settings import Settings
from tests.client.networks import line_to
from tests.consumers.processes import lateack, worker_process
from tests.journeys.test_main_job import ADD, APP, serving

PROGRAM = (
    os.environ.get("LATEACK_TEST_PGBOUNCER")
    or shutil.which("pgbouncer")
    or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
)
with_pgbouncer = pytest.mark.skipif(
    PROGRAM is None, reason="no pgbouncer in PATH, and LATEACK_TEST_PGBOUNCER names none"
)

# Three sessions of the server for everybody, handed out in turn: nobody keeps the one it had.
CONFIGURATION = """
[databases]
lateack = host=127.0.0.1 port={port} dbname=lateack user=lateack password={password}
[pgbouncer]
pool_mode = transaction
default_pool_size = 3
server_round_robin = 1
max_client_conn = 200
listen_addr =
listen_port = 6432
unix_socket_dir = {folder}
auth_type = any
logfile = {folder}/log
"""


@asynccontextmanager
async def pooled(url: str, folder: Path) -> AsyncIterator[str]:
    """PgBouncer in front of a server; the URL of its own door."""
    parts = urlsplit(url)
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        CONFIGURATION.format(port=parts.port, password=parts.password, folder=folder)
    )
    folder.chmod(0o777)
    settings.chmod(0o644)
    assert PROGRAM
    words = [PROGRAM, *(["-u", "nobody"] if os.geteuid() == 0 else []), str(settings)]
    process = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    door = f"postgresql://lateack@/lateack?host={folder}&port=6432"
    try:
        for _ in range(200):
            assert process.returncode is None, (folder / "log").read_text()
            try:
                await (await asyncpg.connect(door, statement_cache_size=0)).close()
                break
            except OSError:
                await asyncio.sleep(0.05)
        yield door
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.fixture
async def behind(settings: Settings, tmp_path: Path) -> AsyncIterator[Settings]:
    """Settings whose database is behind a pooler."""
    with tempfile.TemporaryDirectory(prefix="pooler-", ignore_cleanup_errors=True) as folder:
        async with (
            embedded_servers(
                tmp_path / "servers", broker=False, durable=False, postgres_port=0
            ) as server,
            pooled(server.database_url, Path(folder)) as door,
        ):
            yield msgspec.structs.replace(settings, database_url=door)


@with_pgbouncer
async def test_prepared_statements_behind_a_pooler_are_refused(
    behind: Settings, tmp_path: Path
) -> None:
    """DBS-08: each process says at its start what to change, and exits with 2."""

    async def refused(verb: str, *words: str) -> None:
        log = tmp_path / verb
        async with lateack(behind, log, verb, *words) as process:
            assert await process.wait(60) == 2, log.read_text()
        said = log.read_text()
        assert "leads to a connection pooler" in said
        assert "set LATEACK_PREPARED_STATEMENTS=0" in said
        assert "Traceback" not in said

    await asyncio.gather(
        refused("serve", "--port", "0"), refused("worker", "-A", APP), refused("scheduler")
    )


@with_pgbouncer
async def test_everything_works_behind_a_pooler(behind: Settings, tmp_path: Path) -> None:
    """DBS-08: migrations, submissions, jobs and the scheduler, under load and without an error of
    a statement."""
    unprepared = msgspec.structs.replace(behind, prepared_statements=False)
    async with lateack(unprepared, tmp_path / "migrate", "migrate", "-A", APP) as process:
        assert await process.wait(60) == 0, (tmp_path / "migrate").read_text()
    logs = [tmp_path / name for name in ("w1", "w2", "api")]
    async with (
        worker_process(unprepared, logs[0], more=("-B",)),
        worker_process(unprepared, logs[1]),
        serving(unprepared, logs[2]) as (url, _),
        httpx.AsyncClient(base_url=url, timeout=60) as http,
        Client(url, timeout=60) as client,
    ):
        replies = await asyncio.gather(
            *(
                http.post(
                    "/v1/jobs", json={"task": ADD, "args": [1, n], "idempotency_key": str(n // 2)}
                )
                if n % 4
                else http.get("/v1/jobs")
                for n in range(200)
            )
        )
        # Of two equal keys with other content, one is refused.
        assert {reply.status_code for reply in replies} <= {200, 202, 409}
        made = [reply.json()["job_id"] for reply in replies if reply.status_code == 202]
        assert len(made) == 100
        ended = await asyncio.gather(*(client.result(job_id, timeout=60) for job_id in made))
        assert len(ended) == 100
        late = await client.submit(ADD, args=[1, 1], countdown=60)
        assert (await client.cancel(late.job_id)).status == "cancelled"
    for log in logs:
        assert "prepared statement" not in log.read_text()
        assert "Traceback" not in log.read_text()


KEY_OF_A_SESSION = b"K\x00\x00\x00\x0c"


def renumbered(data: bytes) -> bytes:
    """What a server says, with another number for its session, as every pooler gives it."""
    before, mark, after = data.partition(KEY_OF_A_SESSION)
    return before + mark + (b"\x00\x01\x02\x03" + after[4:] if mark else b"")


async def test_a_pooler_is_recognised(settings: Settings) -> None:
    """DBS-08: by the number of the session, with whatever pooler; without prepared statements there
    is nothing against it."""
    parts = urlsplit(settings.database_url or "")
    folder, port = parse_qs(parts.query)["host"][0], parse_qs(parts.query)["port"][0]
    async with line_to(f"unix://{folder}/.s.PGSQL.{port}") as line:
        url = f"postgresql://lateack@127.0.0.1:{line.port}{parts.path}"
        for prepared_statements in (True, False):
            postgres = await connect(url, size=1, prepared_statements=prepared_statements)
            await postgres.check()
            await postgres.close()
        line.change = renumbered
        postgres = await connect(url, size=1)
        with pytest.raises(LedgerUnfit, match="LATEACK_PREPARED_STATEMENTS=0"):
            await postgres.check()
        await postgres.close()
        postgres = await connect(url, size=1, prepared_statements=False)
        await postgres.check()
        await postgres.close()
