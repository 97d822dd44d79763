"""What one listener of one job has been handed and has not taken yet. Bounded, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from lateack.models import Event
from lateack.states import TERMINAL
from lateack_core.postgres import Row

# Events that wait in memory for a slow client; past this it reads the stream at its own pace.
MOST = 256

Order = tuple[int, int]


class Heard(NamedTuple):
    """An entry of a progress stream; `event` is None for the mark that opens one."""

    at: Order
    event: Event | None
    text: bytes


class View(NamedTuple):
    """A job's state as far as it was told, in an order that only goes up (but for progress)."""

    fence: int
    rank: int
    progress: float | None
    step: str | None


# Within one fence a job's status moves along this order; every claim opens a new fence.
_RANK = {"blocked": 0, "scheduled": 0, "running": 0, "retrying": 1, "pending": 2}
NOTHING = View(-1, 0, None, None)


def view_of(fence: int, status: str, progress: float | None, step: str | None) -> View:
    """The state in the order in which states follow each other."""
    return View(fence, 3 if status in TERMINAL else _RANK[status], progress, step)


class Sink:
    """A listener's end of the hub."""

    def __init__(self, *, most: int = MOST) -> None:
        self.heard: deque[Heard] = deque()
        # True: events were dropped here; they are still in the stream.
        self.behind = False
        # What the ledger says and the stream does not.
        self.state: Row | None = None
        # Why there will be no more: "gone" (pruned), "stopping" (the process), "left" (the client).
        self.over: str | None = None
        # True: the broker is away, the ledger is all there is. `back` says that it has returned.
        self.blind = False
        self.back = False
        self.shown = NOTHING
        self._suspect: View | None = None
        self._most = most
        self._wake = asyncio.Event()

    def push(self, heard: Sequence[Heard]) -> None:
        """Hand over events, or remember that there are some to be read."""
        if not self.behind:
            self.heard.extend(heard)
            if len(self.heard) > self._most:
                self.lag()
        self._wake.set()

    def lag(self) -> None:
        """Let the listener read on from its own place in the stream."""
        self.heard.clear()
        self.behind = True
        self._wake.set()

    def take(self) -> list[Heard]:
        """What was handed over since the last time."""
        heard = list(self.heard)
        self.heard.clear()
        return heard

    def compare(self, row: Row, *, blind: bool) -> None:
        """Hold what was shown against the ledger.

        The event of a move comes a moment after its commit, so only what is still missing at the
        second look is missing; while the broker is away, and for workflows, which nobody runs,
        nothing else will come.
        """
        blind = blind or row["engine"] == "workflow"
        view = view_of(row["fence"], row["status"], row["progress"], row["step"])
        moved = view[:2] > self.shown[:2]
        news = moved or (blind and view[:2] == self.shown[:2] and view != self.shown)
        if news and (blind or self._suspect == view):
            self.state = row
            self._wake.set()
        self._suspect = view if news else None

    def finish(self, reason: str) -> None:
        """There will be no more, and why. The first reason stands."""
        self.over = self.over or reason
        self._wake.set()

    def return_of_broker(self) -> None:
        self.back = True
        self._wake.set()

    async def wait(self, seconds: float) -> bool:
        """Wait for anything new; false when there was nothing within so many seconds."""
        if not self._wake.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
        woken = self._wake.is_set()
        self._wake.clear()
        return woken

    async def end(self, seconds: float) -> None:
        """Wait for an end: the job's, the listening's, or that of the time given."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._has_ended():
                    await self._wake.wait()
                    self._wake.clear()

    def _has_ended(self) -> bool:
        if self.over is not None or (self.state is not None and self.state["status"] in TERMINAL):
            return True
        return any(heard.event is not None and heard.event.ended for heard in self.take())
