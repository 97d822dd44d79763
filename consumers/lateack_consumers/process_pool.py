"""Child processes for `pool="process"` tasks: bodies that can be killed.

A child is started when it is first needed and used again; one that was killed or has died is
replaced. A job that finds every child busy waits for one; its limits count from when its body
starts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from .active import Active, Reason
from .bodies import info_of
from .child import (
    CANCEL_SIGNAL,
    SOFT_LIMIT_SIGNAL,
    Began,
    Ended,
    FromChild,
    Order,
    Ready,
    Said,
    write_frame,
)
from .verdict import Verdict

log = logging.getLogger("lateack.processes")

_decode = msgspec.json.Decoder(FromChild).decode
START_TIMEOUT = 60.0


class ChildDied(Exception):
    """The child ended in the middle of a body."""


class Child:
    """One child process and its link."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.process = process
        self._reader = reader
        self._writer = writer

    @property
    def alive(self) -> bool:
        return self.process.returncode is None and not self._reader.at_eof()

    async def receive(self) -> FromChild:
        """The next frame.

        Raises:
            ChildDied
        """
        try:
            head = await self._reader.readexactly(4)
            return _decode(await self._reader.readexactly(int.from_bytes(head)))
        except (asyncio.IncompleteReadError, OSError) as error:
            code = await self.process.wait()
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            raise ChildDied(f"the task's process ended {how}") from error

    async def run(self, active: Active, order: Order) -> Verdict:
        """Run one body in this child.

        Raises:
            ChildDied
        """
        self._writer.write(write_frame(order))
        while True:
            frame = await self.receive()
            if isinstance(frame, Began):
                active.begin(self._reach)
            if isinstance(frame, Ended):
                return frame.verdict
            if isinstance(frame, Said):
                active.progress, active.step, active.message = (
                    frame.progress,
                    frame.step,
                    frame.message,
                )
                active.unreported = True

    def _reach(self, reason: Reason) -> None:
        if reason is Reason.SOFT_LIMIT:
            self._send(SOFT_LIMIT_SIGNAL)
        elif reason in (Reason.CANCEL, Reason.DRAIN):
            self._send(CANCEL_SIGNAL)
        else:
            self.kill()

    def kill(self) -> None:
        """End the child and whatever it started, at once."""
        self._send(signal.SIGKILL, group=True)

    def _send(self, number: int, *, group: bool = False) -> None:
        if self.process.returncode is None:
            try:
                (os.killpg if group else os.kill)(self.process.pid, number)
            except ProcessLookupError:
                return

    async def close(self) -> None:
        """Let the child end by itself, or kill it."""
        self._writer.close()
        try:
            await asyncio.wait_for(self.process.wait(), 1.0)
        except TimeoutError:
            self.kill()
            await self.process.wait()


class ProcessPool:
    """At most `most` children of the application at `app_path`."""

    def __init__(self, app_path: str, *, most: int) -> None:
        self._app_path = app_path
        self._places = asyncio.Semaphore(most)
        self._idle: list[Child] = []
        self._children: set[Child] = set()

    async def run(
        self, active: Active, args: list[Any], kwargs: dict[str, Any], meta: dict[str, Any]
    ) -> Verdict:
        """Run a body in a child; a job that waits for one can be interrupted as well.

        Raises:
            ChildDied: it was killed, or its process ended by itself.
        """
        order = Order(
            info_of(active, meta), args, kwargs, active.job.ignore_result, active.soft_limit
        )
        current = asyncio.current_task()
        assert current is not None
        active.wait(lambda reason: current.cancel())
        async with self._child() as child:
            return await child.run(active, order)

    @asynccontextmanager
    async def _child(self) -> AsyncIterator[Child]:
        async with self._places:
            child = self._idle.pop() if self._idle else await self._start()
            while not child.alive:
                self._children.discard(child)
                child = self._idle.pop() if self._idle else await self._start()
            clean = False
            try:
                yield child
                clean = True
            finally:
                if clean:
                    self._idle.append(child)
                else:
                    # Whatever it does now, nobody waits for it.
                    child.kill()
                    self._children.discard(child)

    async def _start(self) -> Child:
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "lateack_consumers.child",
                self._app_path, str(theirs.fileno()), str(os.getpid()),
                pass_fds=[theirs.fileno()], stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours)
        child = Child(process, reader, writer)
        self._children.add(child)
        frame = await asyncio.wait_for(child.receive(), START_TIMEOUT)
        if not isinstance(frame, Ready):
            raise ChildDied("the task's process did not start as expected")
        return child

    async def close(self) -> None:
        """End every child."""
        children, self._children, self._idle = self._children, set(), []
        await asyncio.gather(*(child.close() for child in children))
