"""What the bodies in child processes may use, and when a child is replaced."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from lateack.tasks import TaskOptions

from .memory import MIB, resident


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The rules of one worker, memory in MiB; None is no limit."""

    # For tasks that name no limit of their own. A body that uses more is killed.
    memory_limit: float | None = None
    # These two are looked at between jobs.
    max_jobs: int | None = None
    max_memory: float | None = None

    def limit(self, declared: TaskOptions) -> int | None:
        """Bytes that a body of a task may use."""
        limit = declared.memory_limit
        if limit is msgspec.UNSET:
            limit = self.memory_limit
        return None if limit is None else int(limit * MIB)

    def worn(self, pid: int, *, served: int, fresh: int, limit: int | None) -> str | None:
        """Why the process that has ended a job is not to be used again; None when it is.

        `served` is how many jobs it has run, `fresh` how many bytes it held before the first, and
        `limit` how many the last one could use.
        """
        if self.max_jobs is not None and served >= self.max_jobs:
            return f"has run {served} jobs"
        if self.max_memory is None and limit is None:
            return None
        held = resident(pid)
        if self.max_memory is not None and held > self.max_memory * MIB:
            return f"holds {held / MIB:.0f} MiB"
        if limit is not None and held - fresh > limit:
            return f"was left with {(held - fresh) / MIB:.0f} MiB more than it had at its start"
        return None
