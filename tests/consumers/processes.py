"""Worker processes for the tests: real ones, to be killed, frozen and blocked."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from lateack_core.settings import Settings, environment_of

ROOT = Path(__file__).parents[2]
APP_PATH = "tests.consumers.tasks_under_test:app"


class Process:
    """A process of lateack that the test started."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def kill(self) -> None:
        """SIGKILL, and wait."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
        await self._process.wait()

    async def wait(self, within: float = 20.0) -> int:
        return await asyncio.wait_for(self._process.wait(), within)


@asynccontextmanager
async def process(environ: dict[str, str], log: Path, *words: str) -> AsyncIterator[Process]:
    """Run a program until the block ends; killed then, if it still runs."""
    with log.open("ab") as file:
        started = await asyncio.create_subprocess_exec(
            *words,
            cwd=ROOT, env={**os.environ, **environ},
            stdin=asyncio.subprocess.DEVNULL, stdout=file, stderr=file,
        )  # fmt: skip
    running = Process(started, log)
    try:
        yield running
    finally:
        await running.kill()


def lateack(
    settings: Settings, log: Path, *words: str, **environ: str
) -> AbstractAsyncContextManager[Process]:
    """Run a verb of the command line, likewise."""
    command = (sys.executable, "-m", "lateack_cli", *words)
    return process({**environment_of(settings), **environ}, log, *command)


@asynccontextmanager
async def worker_process(
    settings: Settings,
    log: Path,
    *,
    slots: int = 10,
    more: tuple[str, ...] = (),
    app_path: str = APP_PATH,
    **environ: str,
) -> AsyncIterator[Process]:
    """A worker, from the moment it is ready."""
    words = ("worker", "-A", app_path, "-c", str(slots), "-Q", "q", *more)
    async with lateack(settings, log, *words, **environ) as process:
        for _ in range(2000):
            if log.exists() and f"ready: {slots} slots" in log.read_text():
                break
            assert process.returncode is None, log.read_text()
            await asyncio.sleep(0.02)
        else:
            raise AssertionError(f"the worker did not become ready:\n{log.read_text()}")
        yield process
