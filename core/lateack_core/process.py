"""What every process stands on: supervised loops, readiness by their progress, an orderly stop.

A process is the list of its loops. A loop that fails is restarted with growing pauses; a loop that
makes no progress, whether it hangs or fails again and again, turns the process unready within
`stalled_after` seconds (DEL-08).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from .log import Throttled

log = logging.getLogger("lateack.process")

STALLED_AFTER = 12.0
# One that has failed is believed again when it has gone on for so long: many a loop says that it is
# well just before it does what fails.
BELIEVED_AFTER = 3.0


class Loop:
    """One loop of a process, as its body sees it."""

    def __init__(self, name: str, stopping: asyncio.Event, stalled_after: float) -> None:
        self.name = name
        self._stopping = stopping
        self._retired = asyncio.Event()
        self._stalled_after = stalled_after
        self._beat = time.monotonic()
        # When the present run of its body began; when the one before it has failed, the last beat
        # that was believed.
        self._began = self._beat
        self._believed: float | None = None
        self._failing = False
        self._wakes: list[asyncio.Event] = []
        self.task: asyncio.Task[None] | None = None

    @property
    def stopping(self) -> bool:
        return self._retired.is_set() or self._stopping.is_set()

    def retire(self) -> None:
        """End this loop alone, ahead of the process: a worker stops reading before it stops."""
        self._retired.set()
        self.wake()

    def beat(self, rest: float = 0.0) -> None:
        """Say that progress was made; to be called once a turn.

        `rest` is for how many seconds from now nothing more is to be expected.
        """
        now = time.monotonic()
        self._beat = now + rest
        if now - self._began >= BELIEVED_AFTER:
            self._failing = False

    def begin(self) -> None:
        """The body is run, for the first time or again."""
        self._began = time.monotonic()

    def fail(self) -> None:
        """The body has failed: what it said in its last moments was not so."""
        self._beat = self._believed = self._last_believed()
        self._failing = True

    @property
    def stalled(self) -> bool:
        # The patience that a loop may ask for is for its work, not for its failing.
        patience = STALLED_AFTER if self._failing else self._stalled_after
        late = time.monotonic() - self._last_believed() > patience
        return late and not self._retired.is_set()

    def _last_believed(self) -> float:
        if self._believed is None:
            return self._beat
        if time.monotonic() - self._began < BELIEVED_AFTER:
            return self._believed
        return self._beat

    def wake_at_stop(self, event: asyncio.Event) -> None:
        """Set `event` when the process is to stop, since the body waits for it."""
        if event not in self._wakes:
            self._wakes.append(event)

    def wake(self) -> None:
        for event in self._wakes:
            event.set()

    async def pause(self, seconds: float, *, jitter: float = 0.0) -> None:
        """Wait, or less when this loop is to end. `jitter` is a share, such as 0.2."""
        seconds *= 1 + random.uniform(-jitter, jitter)
        ends = [asyncio.create_task(event.wait()) for event in (self._stopping, self._retired)]
        try:
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()


Body = Callable[[Loop], Awaitable[None]]


class Loops:
    """The loops of one process, supervised."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self._loops: list[Loop] = []
        self._troubles = Throttled(log)

    def start(self, name: str, body: Body, *, stalled_after: float = STALLED_AFTER) -> Loop:
        """Run `body` until the process stops, again and again if need be."""
        loop = Loop(name, self.stopping, stalled_after)
        loop.task = asyncio.create_task(self._supervise(loop, body), name=name)
        self._loops.append(loop)
        return loop

    def stalled(self) -> list[str]:
        """The names of the loops that make no progress; empty when all is well."""
        return [loop.name for loop in self._loops if loop.stalled]

    def request_stop(self) -> None:
        """Ask every loop to end, without waiting for it."""
        self.stopping.set()
        for loop in self._loops:
            loop.wake()

    async def stop(self, timeout: float = 5.0) -> None:
        """Ask every loop to end and wait; what has not ended after `timeout` seconds is cancelled.

        A cancel can be swallowed (Python 3.11, wait_for), so it is repeated until it works.
        """
        self.request_stop()
        tasks = {loop.task for loop in self._loops if loop.task is not None}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout)
            while late:
                for task in late:
                    task.cancel()
                _, late = await asyncio.wait(late, timeout=0.5)
        self._loops.clear()

    async def _supervise(self, loop: Loop, body: Body) -> None:
        failures = 0
        while not loop.stopping:
            began = time.monotonic()
            loop.begin()
            try:
                await body(loop)
            except Exception as error:
                self._troubles.warning(
                    f"loop {loop.name} failed and is restarted: {type(error).__name__}: {error}",
                    time.monotonic(),
                )
                log.debug("loop %s", loop.name, exc_info=True)
                loop.fail()
            # One that ran for a while before it failed starts over with short pauses.
            failures = 0 if time.monotonic() - began > 30 else failures + 1
            await loop.pause(min(5.0, 0.1 * 2.0 ** min(failures, 10)), jitter=0.3)
