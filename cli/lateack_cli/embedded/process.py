"""One server process: started, stopped in order, killed for a test, watched for a sudden end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lateack_cli.embedded.account import Account
from lateack_cli.embedded.errors import EmbeddedError
from lateack_cli.embedded.survivors import StopSteps, end_survivors, tell

START_PATIENCE = 120.0  # seconds; after a crash a database first replays up to 1 GB of its log
READY_POLL = 0.02  # seconds
TAIL = 2000  # bytes of a log that go into an error
# Of our environment nothing else reaches a server: it has no use for secrets, and PG* variables
# would change its settings.
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "NIX_LD", "NIX_LD_LIBRARY_PATH")
TETHER = Path(__file__).with_name("tether.py")


@dataclass(frozen=True)
class Program:
    """What to run, and how to tell that it is ready."""

    name: str  # for people
    command: tuple[str, ...]
    folder: Path  # its data, and its working directory
    log: Path
    url: str  # for clients
    account: Account | None  # the user to step down to
    stop_steps: StopSteps
    prepare: Callable[[], None]  # clears what a dead one left; called when none runs
    ready: Callable[[], Awaitable[bool]]  # False: not yet
    mark: str  # a part of its command line that no other launcher's server has
    advice: str = ""  # what to do when it does not start

    @property
    def binary(self) -> str:
        """The base name of the program, by which its processes are found."""
        return Path(self.command[0]).name


@dataclass(frozen=True)
class LostServer:
    """A server that ended though nobody asked it to."""

    name: str
    status: int  # exit status; negative: the number of the signal that ended it
    log: Path
    log_tail: str

    def __str__(self) -> str:
        died = self.status < 0
        how = signal.Signals(-self.status).name if died else f"exit status {self.status}"
        return f"{self.name} ended by itself ({how}). The end of {self.log}:\n{self.log_tail}"


class EmbeddedServer:
    """A handle on one server. Every call may be repeated; calls wait for one another."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self._lost: asyncio.Future[LostServer] = asyncio.get_running_loop().create_future()
        self._turn = asyncio.Lock()

    @property
    def url(self) -> str:
        """Where clients connect; the same after every start."""
        return self._program.url

    @property
    def log(self) -> Path:
        """The file that the server writes to."""
        return self._program.log

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """The process id. Raises EmbeddedError when the server does not run."""
        if self._process is None or self._process.returncode is not None:
            raise EmbeddedError(f"{self._program.name} does not run.")
        return self._process.pid

    async def start(self, patience: float = START_PATIENCE) -> None:
        """Start it, or start it again on the same data; returns when it answers.

        Raises EmbeddedError, with the end of its log, when it ends first or does not answer within
        `patience` seconds.
        """
        async with self._turn:
            if self.running:
                return
            program = self._program
            await end_survivors(program.binary, program.folder, program.mark, program.stop_steps)
            program.prepare()
            if self._lost.done():
                self._lost = asyncio.get_running_loop().create_future()
            begin = log_end(program.log)
            self._process = process = await spawn(
                program.command,
                folder=program.folder,
                log=program.log,
                account=program.account,
                death_signal=program.stop_steps[0][0],
            )
            try:
                await self._until_ready(process, patience, begin)
            except BaseException:
                await self._kill(process)
                raise
            self._watch = asyncio.create_task(self._watch_for_loss(process))

    async def stop(self) -> None:
        """End it in order. SIGKILL only when it does not end in time."""
        async with self._turn:
            process = self._no_longer_watched()
            if process is None:
                return
            for number, patience in self._program.stop_steps:
                tell(process.pid, number)
                try:
                    await asyncio.wait_for(process.wait(), patience)
                except TimeoutError:
                    continue
                return
            await self._kill(process)

    async def kill(self) -> None:
        """End it as a power cut would, its children too. None is left when this returns."""
        async with self._turn:
            process = self._no_longer_watched()
            if process is not None:
                await self._kill(process)

    async def wait_lost(self) -> LostServer:
        """Wait until the server ends without `stop` or `kill`, if it ever does."""
        return await asyncio.shield(self._lost)

    async def _until_ready(
        self, process: asyncio.subprocess.Process, patience: float, begin: int
    ) -> None:
        program = self._program
        try:
            async with asyncio.timeout(patience):
                while process.returncode is None:
                    if await program.ready():
                        return
                    await asyncio.sleep(READY_POLL)
            trouble = f"{program.name} did not start (exit status {process.returncode})."
        except TimeoutError:
            trouble = f"{program.name} does not answer after {patience:g} seconds."
        tail = log_tail(program.log, begin)
        raise EmbeddedError(f"{trouble} {program.advice}\nThe end of {program.log}:\n{tail}")

    async def _watch_for_loss(self, process: asyncio.subprocess.Process) -> None:
        status = await process.wait()
        program = self._program
        self._lost.set_result(LostServer(program.name, status, program.log, log_tail(program.log)))

    def _no_longer_watched(self) -> asyncio.subprocess.Process | None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        return self._process if self.running else None

    async def _kill(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            tell(process.pid, signal.SIGKILL)
        await process.wait()
        # The children of a dead PostgreSQL end by themselves, but not at once, and hold its memory
        # until then.
        await end_survivors(self._program.binary, self._program.folder, self._program.mark, ())


async def spawn(
    command: tuple[str, ...],
    *,
    folder: Path,
    log: Path,
    account: Account | None,
    death_signal: signal.Signals,
    stdin: int = asyncio.subprocess.DEVNULL,
) -> asyncio.subprocess.Process:
    """Start `command` in `folder`, out of reach of a Ctrl-C in the launcher's terminal.

    On Linux the kernel sends it `death_signal` when the launcher is gone, even by kill -9. More
    exactly: when the thread that called this is gone, so that thread must outlive the server.
    """
    user = (account.uid, account.gid) if account else ("-", "-")
    tether = (sys.executable, "-I", "-S", TETHER, os.getpid(), int(death_signal), *user)
    with log.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            *map(str, tether),
            *command,
            cwd=folder,
            env=_environment(os.environ),
            stdin=stdin,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def log_end(log: Path) -> int:
    """The offset where the next line of `log` will be."""
    return log.stat().st_size if log.exists() else 0


def log_tail(log: Path, begin: int = 0) -> str:
    """The last lines of `log`, none before the offset `begin`."""
    with log.open("rb") as text:
        text.seek(max(begin, log_end(log) - TAIL))
        return text.read().decode(errors="replace").strip()


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    kept = {name: ours[name] for name in PASSED_ON if name in ours}
    return {"PATH": os.defpath, **kept, "LC_ALL": "C", "TZ": "UTC"}
