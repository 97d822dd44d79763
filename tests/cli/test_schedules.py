"""`lateack schedules` from the outside, and schedules that the code declares, run by a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from lateack_cli.schedules import command
from lateack_core.settings import Settings, environment_of
from tests.cli.processes import Bench

TIMED = """
from __future__ import annotations

from lateack import App

app = App("timed", timezone="Asia/Shanghai")


@app.periodic(1, name="every second", kwargs={"a": 1})
@app.task
async def add(a: int, b: int = 2) -> int:
    return a + b


@app.task
async def pair(a: int, b: int) -> list[int]:
    return [a, b]


app.beat_schedule = {"bad": {"task": "timed.add", "schedule": "0 0 30 2 *", "args": (1,)}}
"""


@pytest.fixture
async def url(bench: Bench, settings: Settings) -> AsyncIterator[str]:
    """A service, and a worker whose app declares schedules, with the scheduler in it."""
    (bench.folder / "timed.py").write_text(TIMED)
    async with bench.serving("timed", **environment_of(settings)) as url:
        yield url


@pytest.mark.parametrize("word", list(command.commands))
async def test_help(bench: Bench, word: str) -> None:
    """Each word explains itself, with an example, and names a variable for each of its flags."""
    status, out, _ = await bench.run("schedules", word, "--help")
    assert status == 0
    assert "Example" in out
    flags = [line for line in out.partition("Options:")[2].splitlines() if line.startswith("  -")]
    assert " ".join(out.split()).count("[env var") >= len(flags) - 1


async def test_declared_in_code(bench: Bench, url: str) -> None:
    """A schedule of the code fires and its jobs are run; a bad one is reported beside it."""

    async def lateack(*words: str) -> tuple[int, str, str]:
        return await bench.run("schedules", *words, LATEACK_URL=url)

    ticks: list[Any] = []
    deadline = asyncio.get_running_loop().time() + 60
    while len(ticks) < 3 or not any(tick["job_status"] == "succeeded" for tick in ticks):
        assert asyncio.get_running_loop().time() < deadline, ticks
        # Before it is declared there is none of that name.
        _, out, _ = await lateack("ticks", "every second", "-o", "json")
        ticks = msgspec.json.decode(out) if out else []
    status, out, _ = await lateack()
    assert status == 0
    assert "every 1 s" in out
    assert "bad day-of-month" in out
    assert (await lateack("list"))[1].startswith("schedule")
    status, out, _ = await lateack("ticks", "every second", "--limit", "3")
    assert len(out.splitlines()) == 4
    assert (await lateack("delete", "every second"))[0] == 2
    assert (await lateack("next", "bad"))[0] == 2


async def test_a_schedules_life_at_the_terminal(bench: Bench, url: str) -> None:
    async def lateack(*words: str) -> tuple[int, str, str]:
        return await bench.run("schedules", *words, LATEACK_URL=url)

    status, out, errors = await lateack(
        *("create", "nightly", "timed.pair", "a=1", "b=2"),
        *("--cron", "30 2 * * *", "--zone", "Europe/Berlin", "--overlap", "skip", "--paused"),
    )
    assert status == 0, errors
    made = msgspec.json.decode(out)
    assert (made["kwargs"], made["overlap"], made["paused"]) == ({"a": 1, "b": 2}, "skip", True)

    status, out, errors = await lateack("next", "nightly", "-n", "3")
    assert (status, len(out.splitlines())) == (0, 3)
    assert "T02:30:00+0" in out
    assert "paused" in errors

    status, out, _ = await lateack("edit", "nightly", "b=3", "--every", "3600", "--misfire", "skip")
    edited = msgspec.json.decode(out)
    assert (edited["cron"], edited["interval"], edited["kwargs"]) == (None, 3600, {"a": 1, "b": 3})
    assert (edited["overlap"], edited["misfire"], edited["paused"]) == ("skip", "skip", True)
    assert (await lateack("resume", "nightly"))[1].startswith("nightly  20")
    assert (await lateack("pause", "nightly"))[1] == "nightly  paused\n"

    status, job, _ = await lateack("run", "nightly")
    assert status == 0
    status, _, _ = await bench.run("watch", job.strip(), LATEACK_URL=url)
    assert status == 0
    assert job.strip() in (await lateack("ticks", "nightly", "--outcome", "manual"))[1]
    assert msgspec.json.decode((await lateack("show", "nightly"))[1])["last"] is not None
    assert (await lateack("delete", "nightly"))[1] == "nightly  deleted\n"
    assert (await lateack("show", "nightly"))[0] == 2

    assert (await lateack("create", "x", "timed.pair", "--cron", "61 * * * *"))[0] == 2
    assert (await lateack("create", "x", "timed.pair", "--anchor", "soon"))[0] == 2
    assert (await lateack("create", "x", "timed.pair", "--anchor", "2026-01-01T00:00"))[0] == 2


async def test_migrate_declares(bench: Bench, settings: Settings) -> None:
    """A first deployment needs no worker for it."""
    (bench.folder / "timed.py").write_text(TIMED)
    status, out, errors = await bench.run("migrate", "-A", "timed:app", **environment_of(settings))
    assert status == 0, errors
    assert "declared 2 schedules of timed" in out
