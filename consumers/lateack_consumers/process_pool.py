"""Child processes for `pool="process"` tasks: bodies that can be killed.

A child is started when it is first needed and used again; one that was killed or has died is
replaced, and so is, between two jobs, one that has run enough of them or has grown too large. A job
that finds every child busy waits for one; its attempt and its limits count from when its body
starts.

What a body starts is in the child's process group and goes with it when the child is killed. What
it leaves behind at a normal end is left alone: a body that starts something may mean it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from .active import Active, Reason
from .bodies import info_of
from .child import (
    CANCEL_SIGNAL,
    LONGEST_FRAME,
    SOFT_LIMIT_SIGNAL,
    Answer,
    Ask,
    Began,
    Ended,
    FromChild,
    Order,
    Ready,
    Said,
    write_frame,
)
from .effects import Effector
from .memory import MemoryWatch, resident
from .upkeep import Upkeep
from .verdict import Verdict, of_overrun

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
        # Whether it can take a job: it has none, and no reason to be killed.
        self.free = True
        # Why it is to be replaced between two jobs.
        self.worn: str | None = None
        # Bytes that it held before its first job.
        self.fresh = 0
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

    @property
    def served(self) -> int:
        """How many jobs it was given."""
        return self._number

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

    async def run(self, active: Active, effector: Effector, order: Order) -> Verdict:
        """Run one body in this child.

        Raises:
            ChildDied
        """
        self.free = False
        self._number += 1
        order.number = self._number
        self._tell(order)
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
                self.free = True
                return frame.verdict
            if isinstance(frame, Said):
                active.progress, active.step, active.message = (
                    frame.progress,
                    frame.step,
                    frame.message,
                )
                active.unreported = True
            if isinstance(frame, Ask):
                found = await effector.move(active, frame.move)
                self._tell(Answer(found))
            frame = await self.receive()

    def _tell(self, frame: Order | Answer) -> None:
        # A link that has closed meanwhile refuses it in one way or another; whoever reads the next
        # frame meets the end of the process.
        with contextlib.suppress(RuntimeError, OSError):
            self._writer.write(write_frame(frame))

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


def _left_in(child: Child) -> int:
    """Bytes that earlier jobs left in a child."""
    return max(0, resident(child.process.pid) - child.fresh) if child.served else 0


class ProcessPool:
    """At most `most` children of the application at `app_path`.

    `begin` is told when a body is about to start, and says whether its job is still ours.
    """

    def __init__(
        self,
        app_path: str,
        *,
        most: int,
        begin: Callable[[Active], Awaitable[bool]],
        upkeep: Upkeep,
    ) -> None:
        self._app_path = app_path
        self._places = asyncio.Semaphore(most)
        self._begin = begin
        self._upkeep = upkeep
        self._memory = MemoryWatch()
        self._idle: list[Child] = []
        self._children: set[Child] = set()
        self._retiring: set[asyncio.Task[None]] = set()

    async def run(
        self,
        active: Active,
        effector: Effector,
        args: list[Any],
        kwargs: dict[str, Any],
        meta: dict[str, Any],
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
        active.queued = True
        async with self._child() as child:
            active.queued = False
            if not await self._begin(active):
                log.warning("job %s is no longer ours: it does not start here", active.job_id)
                active.disown(Reason.LOST)
                raise asyncio.CancelledError
            return await self._run_limited(child, active, effector, order)

    async def _run_limited(
        self, child: Child, active: Active, effector: Effector, order: Order
    ) -> Verdict:
        """Run a body within its memory. What earlier jobs left in the child is not held against
        it; a child in which they left as much as the limit is replaced."""
        limit = self._upkeep.limit(active.task.declared)
        if limit is None:
            verdict = await child.run(active, effector, order)
        else:
            left = _left_in(child)
            with self._memory.limit(child.process.pid, limit + left) as watched:
                try:
                    verdict = await child.run(active, effector, order)
                except ChildDied:
                    if watched.used is None:
                        raise
                    verdict = of_overrun(watched.used - left, limit)
                    log.warning(
                        "job %s (%s): %s; its process is killed",
                        active.job_id, active.job.task, verdict.message,
                    )  # fmt: skip
            if watched.used is not None:
                # It may have been killed at the very moment when its body ended.
                child.free = False
        child.worn = self._upkeep.worn(
            child.process.pid, served=child.served, fresh=child.fresh, limit=limit
        )
        return verdict

    @asynccontextmanager
    async def _child(self) -> AsyncIterator[Child]:
        async with self._places:
            child = self._idle.pop() if self._idle else await self._start()
            while not child.alive:
                self._children.discard(child)
                child = self._idle.pop() if self._idle else await self._start()
            try:
                yield child
            finally:
                if not child.free:
                    # Whatever it does now, nobody waits for it.
                    child.kill()
                    self._children.discard(child)
                elif child.worn is not None:
                    log.info("process %d %s and is replaced", child.process.pid, child.worn)
                    self._retire(child)
                else:
                    self._idle.append(child)

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
        try:
            frame = await asyncio.wait_for(child.receive(), START_TIMEOUT)
            if isinstance(frame, Ended):
                raise ChildUnusable(frame.verdict)
            if not isinstance(frame, Ready):
                raise ChildDied("the task's process did not start as expected")
        except BaseException as error:
            # Also when the job that it was started for is interrupted meanwhile.
            child.kill()
            self._children.discard(child)
            if isinstance(error, TimeoutError):
                raise ChildDied("the task's process did not start in time") from None
            raise
        child.fresh = resident(process.pid)
        return child

    def _retire(self, child: Child) -> None:
        """Let a child end beside the one that takes its place."""
        task = asyncio.create_task(self._close_one(child))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _close_one(self, child: Child) -> None:
        await child.close()
        self._children.discard(child)

    def kill(self) -> None:
        """End every child and whatever its body started, at once."""
        for child in tuple(self._children):
            child.free = False
            child.kill()

    async def close(self) -> None:
        """End every child."""
        self._idle.clear()
        await asyncio.gather(*(self._close_one(child) for child in tuple(self._children)))
