"""`lateack retry` and `lateack dead` from the outside."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import asyncpg
import click
import msgspec
import pytest

from lateack_cli.ended import read_moment
from lateack_core.settings import Settings, environment_of
from tests.cli.processes import Bench

UNKNOWN = "00000000-0000-7000-8000-000000000000"


@pytest.fixture
async def url(bench: Bench, settings: Settings) -> AsyncIterator[str]:
    """A service and a worker, each by its own verb."""
    async with bench.serving("tried", **environment_of(settings)) as url:
        yield url


# Some thirty processes, one after the other.
@pytest.mark.timeout(300)
async def test_an_operators_morning(bench: Bench, url: str, settings: Settings) -> None:
    """RTY-10: look at what is dead, retry one, count the rest, retry them; nothing unasked."""

    async def lateack(*words: str) -> tuple[int, str, str]:
        return await bench.run(*words, LATEACK_URL=url)

    async def fails() -> str:
        _, _, errors = await lateack("submit", "tried.fail", "--tag", "mine", "--wait")
        return errors.split()[0]

    assert await lateack("dead") == (0, "", "no dead letters\n")
    jobs = [await fails() for _ in range(3)]
    status, out, _ = await lateack("dead")
    lines = out.splitlines()
    assert status == 0
    assert [line.split()[0] for line in lines] == ["job", *reversed(jobs)]
    assert all("ValueError" in line and "no good" in line for line in lines[1:])
    status, out, errors = await lateack("dead", "--summary", "--since", "1h")
    assert out.splitlines()[1].split() == ["tried.fail", "ValueError", "3"]
    assert (status, errors) == (0, "3 dead letters\n")
    status, out, _ = await lateack("dead", "-o", "json", "--limit", "1", "--tag", "mine")
    assert [letter["attempt"] for letter in msgspec.json.decode(out)] == [1]

    status, out, errors = await lateack("retry", jobs[0])
    old, new, state = out.split()
    assert (status, old, state, errors) == (0, jobs[0], "pending", "")
    assert (await lateack("watch", new))[0] == 1
    status, out, errors = await lateack("retry", jobs[0], UNKNOWN, new)
    assert status == 2
    assert out.splitlines()[0] == f"{jobs[0]}  {new}  failed"
    assert f"was retried before, as {new}" in errors
    assert f"{UNKNOWN}  there is no such job" in errors
    third = out.splitlines()[1].split()[1]
    assert (await lateack("watch", third))[0] == 1

    which = ("--task", "tried.fail", "--error-code", "ValueError", "--since", "10m")
    status, out, errors = await lateack("retry", *which)
    assert out.splitlines()[1].split() == ["tried.fail", "ValueError", "3"]
    assert (status, errors) == (0, "3 jobs would be retried; add --yes to do it\n")
    assert "1 job of 3 would" in (await lateack("retry", *which, "--limit", "1"))[2]
    assert msgspec.json.decode((await lateack("jobs", "-o", "json"))[1])[0]["job_id"] == third
    assert (await lateack("retry", *which, "--limit", "2", "--yes"))[:2] == (0, "2 jobs retried\n")
    assert (await lateack("retry", "--queue", "none"))[2] == "no jobs to retry\n"

    done = (await lateack("submit", "tried.add", "a=1", "b=2", "--wait"))[2].split()[0]
    status, out, errors = await lateack("retry", done)
    assert (status, out) == (2, "")
    assert "only failed and cancelled jobs" in errors

    ledger = await asyncpg.connect(settings.database_url)
    await ledger.execute(
        "INSERT INTO lateack.steps (job_id, name, fence, attempt, began_at, error) "
        f"VALUES ('{third}', 'charge', 9, 1, now(), 'TimeoutError: away')"
    )
    await ledger.close()
    status, out, _ = await lateack("dead", "--steps")
    assert status == 0
    # The key is that of the first job of the line.
    assert f"{jobs[0]}:charge" in out
    assert "TimeoutError: away" in out


async def test_unclear_orders(bench: Bench) -> None:
    """Nothing is retried because nothing was named; a usage error is status 2."""
    for words in (
        ("retry",),
        ("retry", "--yes"),
        ("retry", UNKNOWN, "--task", "t"),
        ("retry", UNKNOWN, "--limit", "1"),
        ("retry", "--since", "yesterday"),
        ("retry", "--since", "2030-01-01T00:00"),
        ("retry", "--status", "succeeded"),
        ("dead", "--steps", "--summary"),
        ("dead", "--steps", "--tag", "t"),
    ):
        assert (await bench.run(*words, LATEACK_URL="http://127.0.0.1:9"))[0] == 2, words
    for words in (("retry", UNKNOWN), ("retry", "--task", "t"), ("dead",), ("dead", "--steps")):
        status, _, errors = await bench.run(
            *words, "--timeout", "0.2", LATEACK_URL="http://127.0.0.1:9"
        )
        assert (status, errors.count("\n")) == (3, 1), words


def test_moments() -> None:
    """So long ago, or a time with its zone."""
    for text, seconds in {"90s": 90, "30m": 1800, "2h": 7200, "1.5 h": 5400, "7d": 604_800}.items():
        at = read_moment(text, "--since")
        assert at is not None
        assert abs(datetime.now(UTC) - at - timedelta(seconds=seconds)) < timedelta(seconds=5)
    assert read_moment(None, "--since") is None
    assert read_moment("2030-01-31T08:00:00Z", "--since") == datetime(2030, 1, 31, 8, tzinfo=UTC)
    for text in ("", "h", "2 weeks", "-2h", "999999999999d", "2030-01-31"):
        with pytest.raises(click.UsageError):
            read_moment(text, "--since")
