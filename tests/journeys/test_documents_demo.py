"""The documents demo, run as `make demo` runs it, on servers that it starts for itself."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import sys
from pathlib import Path

import pytest

from examples.documents import places

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = len(list(places.LIBRARY.iterdir()))
ROW = re.compile(r"(parse|chunk|embed|index) +succeeded +(\d+) +\d+\.\d\d +(\w+)$")


async def start(data: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.documents.demo"),
        cwd=REPOSITORY,
        env=os.environ | {"DEMO_DATA_DIR": str(data)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def demo(data: Path) -> str:
    """A whole run; what it printed."""
    process = await start(data)
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    return said.decode()


def rows(output: str) -> list[tuple[str, str, str]]:
    """Step, attempts and origin of each row of the final table."""
    found = (ROW.search(line.rstrip()) for line in output.splitlines())
    return [(row[1], row[2], row[3]) for row in found if row]


def written_at(data: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (data / "work").rglob("*.json")}


@pytest.mark.timeout(300)
async def test_the_demo_indexes_every_document_and_a_second_run_runs_nothing(
    tmp_path: Path,
) -> None:
    """Every job of every document succeeds once; the same keys give the same jobs (I2, I4, I5)."""
    steps = ("parse", "chunk", "embed", "index")
    first = await demo(tmp_path)
    assert sorted(rows(first)) == sorted([(step, "1", "new") for step in steps] * DOCUMENTS)
    assert "\x1b" not in first
    assert "15 metres per second" in first
    assert "telescope-manual.en.pdf, page 2" in first
    assert "百分之十九点五" in first
    assert "safety-rules.zh.pdf, page 1" in first
    before = written_at(tmp_path)
    second = await demo(tmp_path)
    assert sorted(rows(second)) == sorted([(step, "1", "replayed") for step in steps] * DOCUMENTS)
    assert written_at(tmp_path) == before
    with sqlite3.connect(tmp_path / "index" / "default.sqlite3") as index:
        indexed = index.execute("SELECT count(DISTINCT document) FROM chunks").fetchone()
    assert indexed == (DOCUMENTS,)


@pytest.mark.timeout(300)
async def test_an_interrupted_demo_stops_in_order_and_the_next_one_finishes(
    tmp_path: Path,
) -> None:
    """Ctrl-C in the middle of the work loses no document, and leaves no server behind (I1)."""
    process = await start(tmp_path)
    assert process.stdout is not None
    async for line in process.stdout:
        if b"parse" in line and b"succeeded" in line:
            process.send_signal(signal.SIGINT)
            break
    said, _ = await process.communicate()
    assert process.returncode == 130, said.decode()
    assert not list((tmp_path / "server").rglob("postmaster.pid"))
    output = await demo(tmp_path)
    assert len(rows(output)) == 4 * DOCUMENTS
    assert {attempts for _, attempts, _ in rows(output)} == {"1"}
    assert {origin for _, _, origin in rows(output)} & {"resumed", "replayed"}
