"""One job that this worker runs: everything its attempt can have, in one place."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from lateack.tasks import Task
from lateack_core.jobs import Beat, Claimed
from lateack_core.progress import Trail
from lateack_core.stream import ProgressEntry


class Reason(enum.Enum):
    """Why a body is interrupted."""

    CANCEL = "cancelled by its caller"
    SOFT_LIMIT = "soft time limit"
    DRAIN = "the worker stops"
    LOST = "its lease was lost"
    HARD_LIMIT = "hard time limit"


@dataclass(frozen=True, slots=True)
class Delivery:
    """The stream entry that brought a job."""

    stream: str
    entry_id: str


@dataclass(eq=False, slots=True)
class Active:
    """A claimed job from its claim to its outcome.

    The event loop owns it. The renewer's thread reads it and calls nothing but `interrupt` and
    `disown`, through the loop.
    """

    job: Claimed
    task: Task[..., Any]
    delivery: Delivery
    trail: Trail
    soft_limit: float | None
    hard_limit: float | None
    # Whether it has yet to find a process that is free.
    queued: bool = False
    # Set when the body starts: limits count from there.
    body_began: float | None = None
    # False once the outcome is somebody else's to write: whatever the body says is dropped.
    ours: bool = True
    # True while the job may be ending, by the body's own transaction or since the body has ended: a
    # lease that is gone is no loss.
    settling: bool = False
    # True when it was taken from us before its end, so that nobody here clears its entry.
    disowned: bool = False
    reason: Reason | None = None
    progress: float | None = None
    step: str | None = None
    message: str | None = None
    # What was reported and not yet told, and whether anything was told at all.
    unreported: bool = False
    announced: bool = False
    # The event that is on its way to the broker, and whether it was taken is not known yet.
    telling: ProgressEntry | None = None
    claimed_at: float = field(default_factory=time.monotonic)
    # How to reach the body: raises inside it where that can be done.
    _reach: Callable[[Reason], object] | None = None
    _release_slot: Callable[[], None] | None = None

    @property
    def job_id(self) -> UUID:
        return self.job.job_id

    @property
    def name(self) -> str:
        """What the asyncio task that runs it is called."""
        return f"{self.job.task} {self.job_id}"

    def wait(self, reach: Callable[[Reason], object]) -> None:
        """The body cannot start yet; `reach` ends the wait."""
        self._reach = reach
        if self.reason is not None:
            reach(self.reason)

    def begin(self, reach: Callable[[Reason], object]) -> None:
        """The body starts now; `reach` interrupts it."""
        self.body_began = time.monotonic()
        self.wait(reach)

    def settle(self) -> None:
        """The body has ended and its outcome is being written, which may take as long as the
        database is away: no limit counts on, and nothing may interrupt it any more."""
        self.settling = True
        self.body_began = None
        self._reach = None

    def interrupt(self, reason: Reason) -> None:
        """Ask the body to end. The first reason stands, but a final one overrules a soft limit."""
        if self.reason is None or self.reason is Reason.SOFT_LIMIT:
            self.reason = reason
            if self._reach is not None:
                self._reach(reason)

    def disown(self, reason: Reason) -> None:
        """The outcome is not this worker's any more: end the body and give its slot away."""
        if self.ours:
            self.ours = False
            self.disowned = True
            self.interrupt(reason)
            self.release_slot()

    def on_release(self, release: Callable[[], None]) -> None:
        self._release_slot = release

    def release_slot(self) -> None:
        """Give the slot back, once."""
        release, self._release_slot = self._release_slot, None
        if release is not None:
            release()

    def beat(self) -> Beat:
        return Beat(self.job.owned, self.progress, self.step)

    def past_hard_limit(self, now: float) -> bool:
        began, limit = self.body_began, self.hard_limit
        return began is not None and limit is not None and now - began > limit
