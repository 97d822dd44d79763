"""The history survives those who are killed while they write it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from lateack_cli.storm.history import History, read_history


def test_lines_come_back_as_they_were_told(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    history.tell("accepted", job="a", tenant="acme", facts={"n": 1})
    history.tell("began", job="a", attempt=2, pid=5)
    history.close()
    (accepted, began), torn = read_history(tmp_path / "history")
    assert (accepted.what, accepted.job, accepted.facts) == ("accepted", "a", {"n": 1})
    assert (began.attempt, began.pid, torn) == (2, 5, 0)
    assert history.counts["began"] == 1


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    """At the end, and in the middle, where another's line goes on from the stump."""
    path = tmp_path / "history"
    history = History(path)
    history.tell("began", job="a")
    with path.open("ab") as file:
        file.write(b'{"at":1.5,"what":"fini')
    history.tell("began", job="b")
    with path.open("ab") as file:
        file.write(b'{"at":2')
    history.close()
    lines, torn = read_history(path)
    assert [line.job for line in lines] == ["a", "b"]
    assert torn == 2


async def test_writers_do_not_tear_each_others_lines(tmp_path: Path) -> None:
    """Four processes, one file; one of them is killed in the middle of its work."""
    script = (
        "import sys, pathlib; from lateack_cli.storm.history import History\n"
        "history = History(pathlib.Path(sys.argv[1]))\n"
        "n = 0\n"
        "while n != int(sys.argv[2]): history.tell('began', job=sys.argv[3], attempt=n); n += 1\n"
    )
    path = tmp_path / "history"
    path.touch()

    async def writer(name: str, count: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", script, str(path), str(count), name)
        )

    victim = await writer("victim", -1)
    others = [await writer(name, 2_000) for name in ("a", "b", "c")]
    for other in others:
        assert await other.wait() == 0
    victim.kill()
    await victim.wait()
    lines, torn = read_history(path)
    assert torn <= 1
    for name in ("a", "b", "c"):
        assert [line.attempt for line in lines if line.job == name] == list(range(2_000))
