"""`lateack up`: servers, API, scheduler, workers by one command, and none of them left after it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from lateack import Client
from lateack_core.settings import Settings
from tests.cli.processes import Bench, appears

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

UP = ("up", "-A", "tried:app", "--port", "0", "--data-dir", "data")


async def test_it_starts_answers_and_stops(bench: Bench) -> None:
    """One line on standard output; a job runs; SIGTERM ends it all with status 0; data survives."""
    up = await bench.start(*UP, "--workers", "2")
    url = await up.ready()
    async with Client(url) as jobs:
        assert await jobs.run("tried.add", args=[1, 2], timeout=30) == 3
        pids = {await jobs.run("tried.pid", timeout=30) for _ in range(10)}
        job = await jobs.submit("tried.add", args=[2, 2], idempotency_key="kept")
        await jobs.wait(job, 30)
    assert pids <= {int(line.split()[0]) for line in bench.left()}
    up.process.send_signal(signal.SIGTERM)
    assert await up.ended() == 0
    assert await up.rest() == b""
    assert bench.left() == []
    assert "Traceback" not in up.errors.read_text()

    again = await bench.start(*UP)
    async with Client(await again.ready()) as jobs:
        replay = await jobs.submit("tried.add", args=[2, 2], idempotency_key="kept")
        assert replay.replayed
        assert (replay.job_id, replay.status) == (job.job_id, "succeeded")
    again.process.send_signal(signal.SIGINT)
    assert await again.ended() == 0
    assert bench.left() == []


@pytest.mark.chaos
async def test_killed_it_leaves_nothing_running(bench: Bench) -> None:
    """After kill -9 no child and no server runs on, and the next start finds its data usable."""
    up = await bench.start(*UP)
    url = await up.ready()
    async with Client(url) as jobs:
        job = await jobs.submit("tried.held", args=[str(bench.folder / "held")])
    await appears(bench.folder / "held")
    up.process.send_signal(signal.SIGKILL)
    await up.ended()
    await bench.all_gone()
    again = await bench.start(*UP)
    async with Client(await again.ready()) as jobs:
        assert (await jobs.get(job)).status in ("running", "pending", "retrying")
    again.process.send_signal(signal.SIGTERM)
    again.process.send_signal(signal.SIGTERM)
    assert await again.ended() == 0
    assert bench.left() == []


async def test_a_second_one_on_the_same_data_is_refused(bench: Bench) -> None:
    """It says so in a line, and the first goes on."""
    up = await bench.start(*UP)
    url = await up.ready()
    status, out, errors = await bench.run(*UP)
    assert status == 2
    assert out == ""
    assert errors.count("\n") < 5
    assert "Traceback" not in errors
    assert "data" in errors
    async with Client(url) as jobs:
        assert await jobs.run("tried.add", args=[1, 2], timeout=30) == 3
    up.process.send_signal(signal.SIGTERM)
    assert await up.ended() == 0


async def test_running_jobs_finish_before_the_end(bench: Bench) -> None:
    """SHD-01: one signal lets the worker finish; the job's outcome is in the ledger afterwards."""
    up = await bench.start(*UP)
    async with Client(await up.ready()) as jobs:
        job = await jobs.submit("tried.briefly", args=[str(bench.folder / "brief")])
    await appears(bench.folder / "brief")
    up.process.send_signal(signal.SIGTERM)
    assert await up.ended() == 0
    again = await bench.start(*UP)
    async with Client(await again.ready()) as jobs:
        ended = await jobs.get(job)
        assert (ended.status, ended.attempt) == ("succeeded", 1)
    again.process.send_signal(signal.SIGTERM)
    assert await again.ended() == 0


async def test_the_second_signal_hands_jobs_back(bench: Bench) -> None:
    """SHD-03, I10: a long job is not waited for, and the deploy costs it no attempt."""
    up = await bench.start(*UP)
    async with Client(await up.ready()) as jobs:
        job = await jobs.submit("tried.held", args=[str(bench.folder / "held")])
    await appears(bench.folder / "held")
    up.process.send_signal(signal.SIGTERM)
    await said(up.errors, "draining")
    up.process.send_signal(signal.SIGTERM)
    assert await up.ended(within=25) == 0
    again = await bench.start("up", "--port", "0", "--data-dir", "data")
    async with Client(await again.ready()) as jobs:
        found = await jobs.get(job)
        assert (found.status, found.attempt) == ("pending", 0)
    again.process.send_signal(signal.SIGTERM)
    assert await again.ended() == 0


@pytest.mark.chaos
async def test_what_dies_is_started_again(bench: Bench) -> None:
    """A worker, the API on its port, and the database, each killed; jobs run afterwards."""
    up = await bench.start(*UP, LATEACK_LEDGER_SETTLE="1")
    url = await up.ready()
    async with Client(url, timeout=60) as jobs:
        first = await jobs.run("tried.pid", timeout=30)
        os.kill(first, signal.SIGKILL)
        assert await jobs.run("tried.pid", timeout=60) != first

        os.kill(pid_of(bench, "lateack_cli serve"), signal.SIGKILL)
        assert await jobs.run("tried.add", args=[3, 4], timeout=60) == 7

        os.kill(pid_of(bench, "bin/postgres"), signal.SIGKILL)
        await said(up.errors, "PostgreSQL runs again")
        assert await jobs.run("tried.add", args=[5, 6], timeout=60) == 11
    up.process.send_signal(signal.SIGTERM)
    assert await up.ended() == 0
    assert bench.left() == []


async def test_an_app_that_cannot_be_loaded_ends_it(bench: Bench) -> None:
    """A clear line, exit status 2, nothing left; not a loop of restarts."""
    (bench.folder / "broken.py").write_text("import nothing_of_this_name\n")
    up = await bench.start("up", "-A", "broken:app", "--port", "0", "--data-dir", "data")
    assert await up.ended() == 2
    assert await up.rest() == b""
    errors = up.errors.read_text()
    assert "nothing_of_this_name" in errors
    assert "worker 1 does not start" in errors
    assert "Traceback" not in errors
    assert bench.left() == []


async def test_an_address_that_may_not_be_bound(bench: Bench) -> None:
    """Loopback or a word about the gateway in front: refused at start."""
    up = await bench.start("up", "--host", "0.0.0.0", "--port", "0", "--data-dir", "data")
    assert await up.ended() == 2
    assert "LATEACK_TRUST_TENANT_HEADER" in up.errors.read_text()
    assert bench.left() == []


async def test_stopped_while_it_starts(bench: Bench) -> None:
    """Ctrl-C during the making of the database: status 0, nothing left, and it starts later on."""
    up = await bench.start(*UP)
    await said(up.errors, "cluster")
    up.process.send_signal(signal.SIGINT)
    assert await up.ended() == 0
    await bench.all_gone(within=5)
    again = await bench.start(*UP)
    await again.ready()
    again.process.send_signal(signal.SIGTERM)
    assert await again.ended() == 0


async def test_servers_that_are_named_are_used(bench: Bench, settings: Settings) -> None:
    """With both URLs set none of ours is started; URLs are on no command line."""
    assert settings.database_url is not None
    assert settings.redis_url is not None
    up = await bench.start(
        *UP,
        DATABASE_URL=settings.database_url,
        REDIS_URL=settings.redis_url,
        LATEACK_NAMESPACE=settings.namespace,
    )
    async with Client(await up.ready()) as jobs:
        assert await jobs.run("tried.add", args=[1, 2], timeout=30) == 3
    commands = "\n".join(bench.left())
    assert "lateack_cli worker" in commands
    assert "://" not in commands
    assert not (bench.folder / "data").exists()
    up.process.send_signal(signal.SIGTERM)
    assert await up.ended() == 0
    assert bench.left() == []


def pid_of(bench: Bench, words: str) -> int:
    """The process of this bench with these words on its command line; the oldest of several."""
    return min(int(line.split()[0]) for line in bench.left() if words in line)


async def said(log: Path, words: str, within: float = 40.0) -> None:
    """Wait until a log holds these words."""
    async with asyncio.timeout(within):
        while words not in log.read_text():  # noqa: ASYNC110 (a file tells nobody)
            await asyncio.sleep(0.02)
