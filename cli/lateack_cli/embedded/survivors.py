"""Servers that outlived their launcher, found among the processes that really run.

A file that holds a process id proves nothing: by now the id may be somebody else's. What counts is
a process of the right name that stands in our data folder (Linux) or has our socket folder on its
command line (elsewhere).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from lateack_cli.embedded.errors import EmbeddedError

# Which signals end a server, in order, with the seconds of patience after each. SIGKILL follows.
StopSteps = tuple[tuple[signal.Signals, float], ...]
KILL_PATIENCE = 10.0  # seconds
POLL = 0.02  # seconds


async def survivors(program: str, folder: Path, mark: str) -> list[int]:
    """The ids of living processes of `program` (a base name) that work in `folder`.

    Where there is no /proc, `mark` is looked for on the command line instead.
    """
    has_proc = sys.platform == "linux"
    return _standing_in(program, folder) if has_proc else await _marked(program, mark)


async def end_survivors(program: str, folder: Path, mark: str, steps: StopSteps) -> None:
    """End them all; none is left when this returns.

    Raises EmbeddedError when even SIGKILL does not end one, which then is stuck in the kernel.
    """
    left: list[int] = []
    for number, patience in (*steps, (signal.SIGKILL, KILL_PATIENCE)):
        deadline = time.monotonic() + patience
        told: set[int] = set()
        while left := await survivors(program, folder, mark):
            for pid in set(left) - told:
                tell(pid, number)
            told.update(left)
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(POLL)
        else:
            return
    raise EmbeddedError(f"The processes {left} of {program} in {folder} cannot be ended.")


def tell(pid: int, number: signal.Signals) -> None:
    """Send a signal, and wake a process that was frozen so that it can act on it."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
        os.kill(pid, signal.SIGCONT)


def _standing_in(program: str, folder: Path) -> list[int]:
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        # Processes vanish while we look, and those of other users keep their folder to themselves.
        with suppress(OSError):
            process = Path(entry.path)
            named_so = (process / "comm").read_text().strip() == program
            if named_so and (process / "cwd").samefile(folder):
                found.append(int(entry.name))
    return found


async def _marked(program: str, mark: str) -> list[int]:
    listing = await asyncio.create_subprocess_exec(
        *("ps", "-A", "-ww", "-o", "pid=,command="),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    found = []
    for line in (await listing.communicate())[0].decode(errors="replace").splitlines():
        pid, _, command = line.strip().partition(" ")
        if f"/{program} " in command and mark in command:
            found.append(int(pid))
    return found
