"""`lateack chaos` from the outside: a storm of a minute, and nothing is violated."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from pathlib import Path

import msgspec
import pytest

from lateack_cli.storm.checker import check
from lateack_cli.storm.history import read_history
from lateack_cli.storm.snapshot import Snapshot

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for child processes in /proc"),
]

SEED = 73


async def chaos(*arguments: str, folder: Path) -> asyncio.subprocess.Process:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LATEACK_")}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lateack_cli", "chaos", *arguments),
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )


async def until_accepted(history: Path, within: float = 60.0) -> None:
    """Wait until a run has had a job accepted."""
    deadline = time.monotonic() + within
    while not history.exists() or b'"what":"accepted"' not in history.read_bytes():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


def count(report: str, what: str) -> int:
    """The number before these words."""
    found = re.search(rf"^ *(\d+)  {re.escape(what)}$", report, re.MULTILINE)
    assert found is not None, report
    return int(found[1])


@pytest.mark.timeout(240)
async def test_a_minute_of_everything(tmp_path: Path) -> None:
    """I1 to I5, I7 to I10: kills, frosts, outages and cut lines, and each promise is kept."""
    data = tmp_path / "data"
    process = await chaos(
        *("--seconds", "60", "--seed", str(SEED), "--data-dir", str(data)), folder=tmp_path
    )
    out, errors = await process.communicate()
    report = out.decode()
    assert process.returncode == 0, report + errors.decode()
    assert "Nothing was violated." in report
    assert count(report, "submissions accepted") > 300
    assert count(report, "bodies that began") > 300
    assert count(report, "attempts lost with their worker, and taken over") > 0
    assert count(report, "rows written in transactions that committed") > 10
    assert count(report, "steps that took effect") > 10
    assert int(re.search(r"^all +(\d+) +\d+ *$", report, re.MULTILINE)[1]) >= 12  # type: ignore[index]

    # The evidence is there for anyone to judge again.
    lines, _ = read_history(data / "history.jsonl")
    snapshot = msgspec.json.decode((data / "ledger.json").read_bytes(), type=Snapshot)
    assert check(lines, snapshot) == []
    # And a doctored copy of a real run is found out, too.
    accepted = next(line.job for line in lines if line.what == "accepted")
    snapshot.jobs.remove(next(job for job in snapshot.jobs if job.id == accepted))
    assert "lost" in {violation.rule for violation in check(lines, snapshot)}


@pytest.mark.timeout(120)
async def test_a_signal_ends_the_storm_early_and_what_happened_is_judged(tmp_path: Path) -> None:
    """The folder is gone afterwards, and no process is left."""
    history = tmp_path / "history.jsonl"
    process = await chaos(
        *("--seconds", "600", "--seed", "1", "--faults", "kill", "--history", str(history)),
        folder=tmp_path,
    )
    await until_accepted(history)
    process.send_signal(signal.SIGTERM)
    out, errors = await process.communicate()
    assert process.returncode == 0, out.decode() + errors.decode()
    lines, _ = read_history(history)
    for line in lines:
        if line.what == "started":
            assert not Path(f"/proc/{line.pid}").exists()


async def test_flags_that_cannot_be_meant(tmp_path: Path) -> None:
    """Exit status 2, one clear line."""
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "something").touch()
    for arguments in (
        ("--faults", "kill,lightning"),
        ("--seconds", "0"),
        ("--workers", "0"),
        ("--data-dir", "used"),
    ):
        process = await chaos(*arguments, folder=tmp_path)
        _, errors = await process.communicate()
        assert process.returncode == 2, errors.decode()
        assert "Traceback" not in errors.decode()
