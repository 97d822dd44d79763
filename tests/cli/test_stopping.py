"""Celery's words for an end: warm, soft, cold; on real workers, by real signals."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from websockets.asyncio.client import connect

from lateack import Client
from lateack.models import Job, Submission
from lateack_cli.embedded import EmbeddedServers
from lateack_core.ground import Ground, open_ground
from lateack_core.registry import entries_of
from lateack_core.settings import Settings
from tests.cli.processes import Bench, appears
from tests.consumers.conftest import Caller, lines, result_of, until
from tests.consumers.pool_tasks import app
from tests.consumers.processes import Process, lateack

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

UP = ("up", "-A", "tried:app", "--port", "0", "--data-dir", "data")
POOLS, OTHERS = "tests.consumers.pool_tasks", "tests.consumers.tasks_under_test"


class Desk(Caller):
    """Submits tasks of both test apps by their full names."""

    async def submit(self, task: str, *args: Any, **options: Any) -> Job:
        submission = Submission(task=task, args=list(args), **options)
        return (await self.ground.submissions.accept("default", submission)).job

    async def outcomes(self, job: Job) -> list[dict[str, Any]]:
        return await self.ground.ledger.attempts("default", job.job_id)


@pytest.fixture
async def desk(ground: Ground) -> Desk:
    ground.start()
    return Desk(ground)


@pytest.fixture
async def own_desk(own_settings: Settings) -> AsyncIterator[Desk]:
    ground = await open_ground(own_settings, process="test")
    ground.start()
    yield Desk(ground)
    await ground.close()


@asynccontextmanager
async def worker(
    settings: Settings, log: Path, module: str, *more: str, **changed: Any
) -> AsyncIterator[Process]:
    """A worker of one of the test apps, from the moment it is ready."""
    settings = msgspec.structs.replace(settings, **changed)
    async with lateack(settings, log, "worker", "-A", f"{module}:app", *more) as process:
        await until(lambda: process.returncode is not None or "ready: " in log.read_text())
        assert process.returncode is None, log.read_text()
        yield process


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def started(path: Path, count: int = 1) -> bool:
    return sum(line.startswith("start") for line in lines(path)) >= count


# -- warm and soft --------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_warm_lets_bodies_finish(
    settings: Settings, desk: Desk, tmp_path: Path, number: signal.Signals
) -> None:
    """SHD-01, SHD-06: in a child and in a thread too; nothing new starts, the exit code is 0."""
    effects = tmp_path / "effects"
    async with worker(settings, tmp_path / "log", POOLS, grace=30.0) as process:
        jobs = [
            await desk.submit(f"{POOLS}.waits", str(effects), 1.5),
            await desk.submit(f"{POOLS}.in_a_thread", str(effects), 1.5),
        ]
        await until(lambda: started(effects, 2))
        process.signal(number)
        await until(lambda: "draining" in process.log.read_text())
        late = await desk.submit(f"{POOLS}.pid")
        assert await process.wait() == 0
    for job in jobs:
        ended = await desk.job(job.job_id)
        assert (ended.status, ended.attempt) == ("succeeded", 1)
    assert (await desk.job(late.job_id)).status == "pending"
    assert "Traceback" not in process.log.read_text()


async def test_warm_hands_back_at_once_what_waits_for_a_process(
    settings: Settings, desk: Desk, tmp_path: Path
) -> None:
    """SHD-02, I10: received, not begun; another worker has them long before the grace is over."""
    effects = tmp_path / "effects"
    async with worker(settings, tmp_path / "a.log", POOLS, processes=1, grace=600.0) as first:
        jobs = [await desk.submit(f"{POOLS}.waits", str(effects), 30.0)]
        await until(lambda: started(effects))
        jobs += [await desk.submit(f"{POOLS}.waits", str(effects), 0.1) for _ in range(4)]
        for job in jobs:
            await desk.until(job.job_id, "running")
        async with worker(settings, tmp_path / "b.log", POOLS, processes=2):
            first.signal(signal.SIGTERM)
            for job in jobs[1:]:
                ended = await desk.until(job.job_id)
                assert (ended.status, ended.attempt) == ("succeeded", 1)
        assert (await desk.job(jobs[0].job_id)).status == "running"
        assert first.returncode is None


async def test_the_end_of_the_grace_is_soft(settings: Settings, desk: Desk, tmp_path: Path) -> None:
    """SHD-03, RTY-04, I10: one signal; past the grace the job goes back, also with one attempt."""
    effects = tmp_path / "effects"
    async with worker(settings, tmp_path / "log", POOLS, grace=0.5) as process:
        job = await desk.submit(f"{POOLS}.waits", str(effects), 30.0, max_retries=0)
        await until(lambda: started(effects))
        process.signal(signal.SIGTERM)
        assert await process.wait() == 0
    waiting = await desk.job(job.job_id)
    assert (waiting.status, waiting.attempt) == ("pending", 0)
    assert [a["outcome"] for a in await desk.outcomes(job)] == ["handed_back"]


async def test_killed_instead_its_only_attempt_is_used_up(
    settings: Settings, desk: Desk, tmp_path: Path
) -> None:
    """RTY-04, RTY-03: the crash rule for a job with one attempt; its history tells the cause."""
    effects = tmp_path / "effects"
    async with worker(settings, tmp_path / "log", POOLS) as process:
        job = await desk.submit(f"{POOLS}.waits", str(effects), 30.0, max_retries=0)
        await until(lambda: started(effects))
        await process.kill()
    async with worker(settings, tmp_path / "b.log", POOLS, "-B"):
        ended = await desk.until(job.job_id)
    assert (ended.status, ended.error_code, ended.attempt) == ("failed", "WorkerLost", 1)
    (told,) = await desk.outcomes(job)
    assert (told["outcome"], told["error_code"]) == ("lost", "WorkerLost")


async def test_soft_kills_a_stubborn_body_before_its_job_goes_back(
    settings: Settings, desk: Desk, tmp_path: Path
) -> None:
    """SHD-05, I3: nobody else can start the job while a process here still runs it."""
    effects = tmp_path / "effects"
    async with worker(settings, tmp_path / "log", POOLS) as process:
        job = await desk.submit(f"{POOLS}.will_not_be_interrupted", str(effects))
        await until(lambda: started(effects))
        process.signal(signal.SIGTERM)
        await until(lambda: "draining" in process.log.read_text())
        process.signal(signal.SIGTERM)
        back = await desk.until(job.job_id, "pending")
        written = len(lines(effects))
        assert back.attempt == 0
        assert await process.wait() == 0
    assert "left behind" in process.log.read_text()
    # It wrote twenty lines a second, to its end.
    assert len(lines(effects)) - written <= 1


# -- cold -----------------------------------------------------------------------------------


async def test_cold_ends_everything_and_hands_it_back(
    settings: Settings, desk: Desk, tmp_path: Path
) -> None:
    """SHD-03, I10: in children, waiting for one, in threads; no grace, no attempt spent."""
    effects = tmp_path / "effects"
    stubborn = f"{POOLS}.will_not_be_interrupted"
    async with worker(settings, tmp_path / "log", POOLS, processes=1, grace=600.0) as process:
        jobs = [await desk.submit(f"{POOLS}.in_a_thread", str(effects), 60.0)]
        jobs += [await desk.submit(stubborn, str(effects), max_retries=0)]
        await until(lambda: started(effects, 2))
        jobs += [await desk.submit(f"{POOLS}.waits", str(effects), 0.1)]
        for job in jobs:
            await desk.until(job.job_id, "running")
        process.signal(signal.SIGQUIT)
        assert await process.wait() == 0
        (body,) = {int(line.split()[-1]) for line in lines(effects) if "start 1" in line}
        await until(lambda: not is_running(body))
    assert "cold shutdown: 3 jobs" in process.log.read_text()
    assert "Traceback" not in process.log.read_text()
    for job in jobs:
        back = await desk.job(job.job_id)
        assert (back.status, back.attempt) == ("pending", 0)
        assert [a["outcome"] for a in await desk.outcomes(job)] == ["handed_back"]
    assert await desk.ground.ledger.workers(60) == []
    # Its entries are still in its name; the jobs run all the same.
    async with worker(settings, tmp_path / "b.log", POOLS):
        ended = await desk.until(jobs[2].job_id)
    assert (ended.status, ended.attempt) == ("succeeded", 1)


async def test_cold_does_not_wait_for_a_blocked_loop(
    settings: Settings, desk: Desk, tmp_path: Path
) -> None:
    """SHD-05, I10: a body that blocks the event loop, and its neighbour there."""
    effects = tmp_path / "effects"
    async with worker(settings, tmp_path / "log", OTHERS) as process:
        neighbour = await desk.submit(f"{OTHERS}.slow", str(effects), 60.0)
        await until(lambda: started(effects))
        blocking = await desk.submit(f"{OTHERS}.blocking", str(effects), 60.0)
        await until(lambda: started(effects, 2))
        process.signal(signal.SIGQUIT)
        assert await process.wait() == 0
    for job in (neighbour, blocking):
        back = await desk.job(job.job_id)
        assert (back.status, back.attempt) == ("pending", 0)


async def test_cold_in_the_middle_of_warm(settings: Settings, desk: Desk, tmp_path: Path) -> None:
    """SHD-05: whoever has no more patience is heard during the grace as well."""
    async with worker(settings, tmp_path / "log", OTHERS, grace=600.0) as process:
        job = await desk.submit(f"{OTHERS}.stubborn")
        await desk.until(job.job_id, "running")
        process.signal(signal.SIGTERM)
        await until(lambda: "draining" in process.log.read_text())
        process.signal(signal.SIGQUIT)
        assert await process.wait() == 0
    back = await desk.job(job.job_id)
    assert (back.status, back.attempt) == ("pending", 0)


async def test_cold_without_a_database_leaves_jobs_to_their_leases(
    own_servers: EmbeddedServers, own_settings: Settings, own_desk: Desk, tmp_path: Path
) -> None:
    """SHD-05, I1: it ends all the same, with a status of its own; the job runs again elsewhere."""
    desk, effects = own_desk, tmp_path / "effects"
    async with worker(own_settings, tmp_path / "log", POOLS) as process:
        job = await desk.submit(f"{POOLS}.waits", str(effects), 2.0)
        await until(lambda: started(effects))
        await own_servers.postgres.kill()
        process.signal(signal.SIGQUIT)
        assert await process.wait() == 75
    assert "left behind" in process.log.read_text()
    await own_servers.postgres.start()
    async with worker(own_settings, tmp_path / "b.log", POOLS, "-B"):
        ended = await desk.until(job.job_id, within=30)
    assert (ended.status, ended.attempt) == ("succeeded", 2)


async def test_cold_passes_by_a_row_that_is_locked(
    settings: Settings, desk: Desk, tmp_path: Path
) -> None:
    """I10: a transaction that stands still keeps its own job only; the others go back."""
    effects = tmp_path / "effects"
    async with worker(settings, tmp_path / "log", OTHERS) as process:
        jobs = [await desk.submit(f"{OTHERS}.slow", str(effects), 60.0) for _ in range(8)]
        await until(lambda: started(effects, 8))
        async with desk.ground.postgres.transaction() as transaction:
            await transaction._connection.fetch(
                "SELECT id FROM lateack.jobs WHERE id = $1 FOR UPDATE", jobs[3].job_id
            )
            process.signal(signal.SIGQUIT)
            assert await process.wait() == 75
    statuses = [(await desk.job(job.job_id)).status for job in jobs]
    assert statuses == ["pending"] * 3 + ["running"] + ["pending"] * 4


async def test_cold_before_it_is_ready(settings: Settings, tmp_path: Path) -> None:
    """SHD-05: a worker that still waits for its servers holds nothing and ends at once."""
    away = msgspec.structs.replace(settings, database_url="postgresql://x@127.0.0.1:1/x")
    log = tmp_path / "log"
    async with lateack(away, log, "worker", "-A", f"{POOLS}:app") as process:
        await until(lambda: "the database is away" in log.read_text())
        process.signal(signal.SIGQUIT)
        assert await process.wait() == 0


# -- the others -----------------------------------------------------------------------------


async def test_up_passes_cold_on(bench: Bench) -> None:
    """SHD-03, I10: SIGQUIT to `lateack up`; the job is pending afterwards, and nothing is left."""
    up = await bench.start(*UP, LATEACK_GRACE="600")
    async with Client(await up.ready()) as jobs:
        job = await jobs.submit("tried.held", args=[str(bench.folder / "held")])
    await appears(bench.folder / "held")
    up.process.send_signal(signal.SIGQUIT)
    assert await up.ended(within=25) == 0
    await bench.all_gone()
    assert "cold shutdown: 1 jobs" in up.errors.read_text()
    again = await bench.start("up", "--port", "0", "--data-dir", "data")
    async with Client(await again.ready()) as jobs:
        found = await jobs.get(job)
        assert (found.status, found.attempt) == ("pending", 0)
    again.process.send_signal(signal.SIGTERM)
    assert await again.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
async def test_a_signal_to_a_copy_is_not_for_the_worker(
    settings: Settings, desk: Desk, tmp_path: Path, number: signal.Signals
) -> None:
    """I2: a body that forks, as multiprocessing does, may end its copies in the usual way."""
    async with worker(settings, tmp_path / "log", POOLS) as process:
        for _ in range(3):
            job = await desk.submit(f"{POOLS}.signals_a_copy_of_its_own", int(number))
            ended = await desk.until(job.job_id)
            assert (ended.status, ended.attempt) == ("succeeded", 1)
            assert result_of(ended) == -number
        assert process.returncode is None
    assert "draining" not in process.log.read_text()
    assert "cold shutdown" not in process.log.read_text()


@pytest.mark.parametrize("way", ["sse", "socket", "poll"])
async def test_serve_hurries_with_watchers_and_no_traces(
    settings: Settings, desk: Desk, tmp_path: Path, way: str
) -> None:
    """SHD-06: two signals while somebody watches; status 0, and no traces for the operator."""
    await desk.ground.ledger.register_tasks(entries_of(app))
    job = await desk.submit(f"{POOLS}.pid")
    log = tmp_path / "log"
    async with lateack(settings, log, "serve", "--port", "0") as process:
        await until(lambda: log.exists() and "listening at" in log.read_text())
        url = log.read_text().partition("listening at ")[2].split()[0]
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http:
            seen = asyncio.Event()
            watching = asyncio.create_task(WAYS[way](http, job, seen))
            await asyncio.wait_for(seen.wait(), 20)
            process.signal(signal.SIGTERM)
            await unready(http)
            process.signal(signal.SIGTERM)
            assert await process.wait() == 0
            watching.cancel()
            await asyncio.wait((watching,))
    assert "Traceback" not in log.read_text(), log.read_text()
    assert "Error" not in log.read_text(), log.read_text()


async def by_sse(http: httpx.AsyncClient, job: Job, seen: asyncio.Event) -> None:
    async with http.stream("GET", f"/v1/jobs/{job.job_id}/events") as reply:
        async for _ in reply.aiter_lines():
            seen.set()


async def by_socket(http: httpx.AsyncClient, job: Job, seen: asyncio.Event) -> None:
    url = str(http.base_url.join(f"/v1/jobs/{job.job_id}/progress"))
    async with connect(url.replace("http", "ws", 1), proxy=None) as socket:
        async for _ in socket:
            seen.set()


async def by_poll(http: httpx.AsyncClient, job: Job, seen: asyncio.Event) -> None:
    asking = asyncio.create_task(http.get(f"/v1/jobs/{job.job_id}", params={"wait": 30}))
    # Whatever is answered after it was asked for after it arrived.
    for _ in range(5):
        await http.get("/livez")
    seen.set()
    await asking


WAYS = {"sse": by_sse, "socket": by_socket, "poll": by_poll}


async def unready(http: httpx.AsyncClient) -> None:
    """Wait until the service has begun to stop."""
    async with asyncio.timeout(20):
        while True:
            try:
                if (await http.get("/readyz")).status_code != 200:
                    return
            except httpx.HTTPError:
                return


@pytest.mark.parametrize("verb", [("scheduler",), ("worker", "-A", f"{OTHERS}:app")])
async def test_a_probe_that_never_finished_its_question_is_no_trace(
    verb: tuple[str, ...], settings: Settings, tmp_path: Path
) -> None:
    """SHD-06: whoever asks for health may hang for ever, and the process stops without a word."""
    log = tmp_path / "log"
    async with lateack(settings, log, *verb, LATEACK_HEALTH="127.0.0.1:0") as process:
        await until(lambda: log.exists() and "health is told at" in log.read_text())
        address = log.read_text().partition("health is told at http://")[2].split()[0]
        await until(lambda: "leading as" in log.read_text() or "ready: " in log.read_text())
        host, _, port = address.partition(":")
        hanging = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
        hanging[0][1].write(b"GET /livez HT")
        # Answered after the others were taken, so those are known to it.
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"http://{address}/livez")).status_code == 200
        process.signal(signal.SIGTERM)
        assert await process.wait() == 0
        for _, writer in hanging:
            writer.close()
    assert "Traceback" not in log.read_text()


async def test_the_help_teaches_the_signals(bench: Bench) -> None:
    """Celery's three words, each with its signal."""
    status, out, _ = await bench.run("worker", "--help")
    assert status == 0
    told = out.splitlines()
    for number, word in (("SIGTERM", "warm"), ("second", "soft"), ("SIGQUIT", "cold")):
        assert any(number in line and f"{word}:" in line for line in told), out
    assert "--max-tasks-per-child" in out
    assert "--max-memory-per-child" in out
