"""`lateack` as a process of its own, and which processes it leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

# A variable that marks every process of one test; servers of ours are found by their folder.
MARK = "LATEACK_TEST_MARK"

TASKS = """
from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from lateack import INJECTED, App, Context

app = App("tried")


@app.task
async def add(a: int, b: int) -> int:
    return a + b


@app.task
async def held(file: str) -> str:
    Path(file).touch()
    await asyncio.sleep(600)
    return file


@app.task
async def briefly(file: str, *, ctx: Context = INJECTED) -> str:
    Path(file).touch()
    for n in range(10):
        await ctx.progress(done=n + 1, total=10, step=f"part {n + 1}")
        await asyncio.sleep(0.1)
    return "done"


@app.task
async def fail() -> None:
    raise ValueError("no good")


@app.task
async def pid() -> int:
    return os.getpid()
"""


class Command:
    """A running `lateack`."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.errors = folder / "stderr.txt"

    async def line(self, within: float = 60.0) -> str:
        """The next line of its standard output."""
        assert self.process.stdout is not None
        async with asyncio.timeout(within):
            return (await self.process.stdout.readline()).decode().rstrip("\n")

    async def ready(self) -> str:
        """The URL, once it says that it is ready."""
        line = await self.line()
        prefix = "lateack is ready at "
        assert line.startswith(prefix), self.errors.read_text()
        return line.removeprefix(prefix)

    async def ended(self, within: float = 60.0) -> int:
        """Its exit status."""
        async with asyncio.timeout(within):
            return await self.process.wait()

    async def rest(self) -> bytes:
        """What is left of its standard output."""
        assert self.process.stdout is not None
        return await self.process.stdout.read()


class Bench:
    """A folder with a task file, in which commands are run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._commands: list[Command] = []
        (folder / "tried.py").write_text(TASKS)

    @asynccontextmanager
    async def serving(self, module: str, **environment: str) -> AsyncIterator[str]:
        """A service and a worker with the scheduler in it, each by its own verb; the URL."""
        serve = await self.start("serve", "-A", f"{module}:app", "--port", "0", **environment)
        worker = await self.start("worker", "-A", module, "-B", "-c", "5", **environment)
        deadline = time.monotonic() + 60
        text = ""
        while "listening at" not in text or "ready: 5 slots" not in text:
            assert time.monotonic() < deadline, text
            await asyncio.sleep(0.05)
            text = serve.errors.read_text()
        yield text.partition("listening at ")[2].split()[0]
        for command in (worker, serve):
            command.process.terminate()
            assert await command.ended() == 0
        assert "Traceback" not in serve.errors.read_text()

    async def start(self, *arguments: str, **environment: str) -> Command:
        """Start `lateack` with these arguments."""
        with (self.folder / "stderr.txt").open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "lateack_cli", *arguments),
                cwd=self.folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=self.environment(**environment),
            )
        self._commands.append(Command(process, self.folder))
        return self._commands[-1]

    async def run(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """Exit status, standard output and standard error of a command that ends by itself."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "lateack_cli", *arguments),
            cwd=self.folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment(**environment),
        )
        out, errors = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode is not None
        return process.returncode, out.decode(), errors.decode()

    def environment(self, **more: str) -> dict[str, str]:
        """Ours without any settings of lateack, marked, and these."""
        ours = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("LATEACK_") and name not in ("DATABASE_URL", "REDIS_URL")
        }
        return {**ours, MARK: str(self.folder), "COLUMNS": "120", **more}

    def left(self) -> list[str]:
        """Processes of this bench that run, each as `pid command`."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if self._is_ours(entry):
                        command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                        found.append(f"{entry.name} {command}")
        return found

    async def all_gone(self, within: float = 20.0) -> None:
        """Wait until nothing of this bench runs."""
        deadline = time.monotonic() + within
        while left := self.left():
            assert time.monotonic() < deadline, left
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        """End what a failed test left."""
        for command in self._commands:
            if command.process.returncode is None:
                command.process.send_signal(signal.SIGKILL)
                await command.process.wait()
        for line in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line.partition(" ")[0]), signal.SIGKILL)

    def _is_ours(self, entry: Path) -> bool:
        if (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return False
        mark = f"{MARK}={self.folder}".encode()
        if mark in (entry / "environ").read_bytes().split(b"\0"):
            return True
        return (entry / "cwd").readlink().is_relative_to(self.folder / "data")


async def appears(path: Path, within: float = 30.0) -> None:
    """Wait until a file is there."""
    deadline = time.monotonic() + within
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not appear"
        await asyncio.sleep(0.02)
