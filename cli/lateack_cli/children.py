"""The processes that `lateack up` keeps: started, started again when they end, stopped in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Mapping

from lateack_cli.lifeline import LAUNCHER, READY_PIPE
from lateack_cli.trouble import MUST_CHANGE

log = logging.getLogger("lateack.up")

# A child that never got ready and ends this often will not get ready the next time either.
MOST_FAILED_STARTS = 3
SHORTEST_PAUSE = 0.3  # seconds before a child is started again, doubled each time
LONGEST_PAUSE = 10.0
# One that ran for so long begins again with the shortest pause.
STEADY = 30.0
# After the second signal, and for what has nothing to finish.
LAST_PATIENCE = 10.0
# For a cold stop, which waits two seconds for the database and for nothing else.
COLD_PATIENCE = 5.0


class GaveUp(Exception):
    """A child ends whenever it is started; what is wrong it has said itself."""

    def __init__(self, name: str, status: int) -> None:
        super().__init__(f"{name} does not start ({_how(status)}); its message is above")
        self.must_change = status == MUST_CHANGE


class Child:
    """One `lateack <verb>`, in a session of its own, out of reach of a Ctrl-C in our terminal."""

    def __init__(self, name: str, arguments: list[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self.arguments = arguments
        self.ready = asyncio.Event()
        # What it said when it got ready: for `serve`, its URL.
        self.word = ""
        self._environment = environment
        self._stopping = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None

    async def keep(self) -> None:
        """Run it, again and again, until it is asked to stop.

        Raises:
            GaveUp: it cannot be got to run.
        """
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            status = await self._run_once()
            if self._stopping.is_set():
                return
            failures = 1 if time.monotonic() - began > STEADY else failures + 1
            never_ready = not self.ready.is_set()
            if never_ready and (status == MUST_CHANGE or failures >= MOST_FAILED_STARTS):
                raise GaveUp(self.name, status)
            pause = min(LONGEST_PAUSE, SHORTEST_PAUSE * 2.0 ** min(failures - 1, 10))
            pause *= random.uniform(0.8, 1.2)
            log.warning(
                "%s ended (%s) and is started again in %.1f s", self.name, _how(status), pause
            )
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    def ask_to_stop(self) -> None:
        """The first signal: finish what runs."""
        self._stopping.set()
        self._tell(signal.SIGTERM)

    async def gone(
        self, hurry: asyncio.Event, *, patience: float, at_once: asyncio.Event | None = None
    ) -> None:
        """Wait until it has ended; one that takes too long is killed. To be asked to stop before.

        When `hurry` is set it gets a second signal, and LAST_PATIENCE seconds; when `at_once` is
        set, SIGQUIT and COLD_PATIENCE seconds.
        """
        process = self._process
        if process is None or process.returncode is not None:
            return
        at_once = at_once or asyncio.Event()
        ended = asyncio.create_task(process.wait())
        hurried = asyncio.create_task(hurry.wait())
        chilled = asyncio.create_task(at_once.wait())
        first = asyncio.FIRST_COMPLETED
        try:
            await asyncio.wait((ended, hurried, chilled), timeout=patience, return_when=first)
            if hurry.is_set() and not at_once.is_set():
                self._tell(signal.SIGTERM)
                await asyncio.wait((ended, chilled), timeout=LAST_PATIENCE, return_when=first)
            if at_once.is_set():
                self._tell(signal.SIGQUIT)
                await asyncio.wait((ended,), timeout=COLD_PATIENCE)
            if not ended.done():
                log.warning("%s does not end and is killed", self.name)
                self._tell(signal.SIGKILL)
            await ended
        finally:
            hurried.cancel()
            chilled.cancel()

    async def _run_once(self) -> int:
        said, says = os.pipe()
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable,
                # The current folder must not stand in front of the libraries that we import; the
                # app's loader puts it there afterwards.
                *("-P", "-m", "lateack_cli", *self.arguments),
                stdin=asyncio.subprocess.DEVNULL,
                # Our standard output holds one line, which is ours.
                stdout=sys.stderr.fileno(),
                env={**self._environment, LAUNCHER: str(os.getpid()), READY_PIPE: str(says)},
                pass_fds=(says,),
                start_new_session=True,
            )
        except BaseException:
            os.close(said)
            raise
        finally:
            os.close(says)
        if self._stopping.is_set():
            # Asked while it was being made.
            self._tell(signal.SIGTERM)
        listening = asyncio.create_task(self._listen(said))
        try:
            return await process.wait()
        finally:
            listening.cancel()

    async def _listen(self, pipe: int) -> None:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb", buffering=0)
        )
        try:
            said, _, word = (await reader.readline()).decode().rstrip("\n").partition(" ")
            if said == "ready":
                self.word = word
                self.ready.set()
        finally:
            transport.close()

    def _tell(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


def _how(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
