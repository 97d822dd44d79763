"""Child processes for `pool="process"` tasks: bodies that can be killed.

A child is started when it is first needed and used again; one that was killed or has died is
replaced. A job that finds every child busy waits for one; its limits count from when its body
starts.
"""

from __future__ import annotations

import asyncio
import contextlib
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
    LONGEST_FRAME,
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


# How long a child may take to begin a body once it has the order.
BEGIN_TIMEOUT = 30.0


class ChildDied(Exception):
    """The child ended in the middle of a body, or does not answer as it should."""


class ChildUnusable(Exception):
    """The application cannot be loaded in a child; `verdict` says why."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


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
        self._number = 0
        self._exit = asyncio.create_task(self._watch_exit())

    async def _watch_exit(self) -> None:
        """End the link when the process has ended: another one may still hold its other end."""
        await self.process.wait()
        # What it wrote last is read first.
        await asyncio.sleep(0.2)
        self._writer.transport.abort()

    @property
    def alive(self) -> bool:
        return self.process.returncode is None and not self._reader.at_eof()

    async def receive(self) -> FromChild:
        """The next frame.

        Raises:
            ChildDied
        """
        try:
            length = int.from_bytes(await self._reader.readexactly(4))
            if length > LONGEST_FRAME:
                raise ChildDied("the task's process wrote something that is no frame of ours")
            return _decode(await self._reader.readexactly(length))
        except msgspec.MsgspecError as error:
            raise ChildDied(f"the task's process wrote no frame of ours: {error}") from error
        except (asyncio.IncompleteReadError, OSError) as error:
            self._writer.transport.abort()
            self._send(signal.SIGKILL)
            code = await self.process.wait()
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            raise ChildDied(f"the task's process ended {how}") from error

    async def run(self, active: Active, order: Order) -> Verdict:
        """Run one body in this child.

        Raises:
            ChildDied
        """
        self._number += 1
        order.number = self._number
        self._writer.write(write_frame(order))
        try:
            frame = await asyncio.wait_for(self.receive(), BEGIN_TIMEOUT)
        except TimeoutError:
            raise ChildDied("the task's process does not answer") from None
        while True:
            if isinstance(frame, Ready) or frame.number != self._number:
                raise ChildDied("the task's process answered for another job")
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
            frame = await self.receive()

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
        # The group outlives its leader: whatever a body started and left is in it.
        if group or self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                (os.killpg if group else os.kill)(self.process.pid, number)

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
            0, info_of(active, meta), args, kwargs, active.job.ignore_result, active.soft_limit
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
        if isinstance(frame, Ended):
            self._children.discard(child)
            raise ChildUnusable(frame.verdict)
        if not isinstance(frame, Ready):
            raise ChildDied("the task's process did not start as expected")
        return child

    async def close(self) -> None:
        """End every child."""
        children, self._children, self._idle = self._children, set(), []
        await asyncio.gather(*(child.close() for child in children))
