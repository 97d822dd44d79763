"""The tasks table: workers publish what they can run, submissions are checked against it."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from lateack.app import App
from lateack.arguments import Parameter

from .jobs import Ledger

# A task that was registered a moment ago is found at the first miss; a changed one within this.
REFRESH = 5.0
# Misses are answered from memory for this long, so that a flood of unknown names costs little.
MISS_REFRESH = 0.5


class RegisteredTask(msgspec.Struct, frozen=True):
    """A task as the ledger knows it; limits and `expires` in seconds."""

    name: str
    queue: str
    priority: int
    parameters: tuple[Parameter, ...]
    max_retries: int
    acks_late: bool
    ignore_result: bool
    soft_time_limit: float | None
    time_limit: float | None
    expires: float | None


def entries_of(app: App) -> list[dict[str, Any]]:
    """What a worker of this app registers."""
    return [
        msgspec.to_builtins(
            RegisteredTask(
                name=task.name,
                queue=task.declared.queue,
                priority=task.declared.priority,
                parameters=task.parameters,
                max_retries=task.declared.retry.max_retries,
                acks_late=task.declared.acks_late,
                ignore_result=task.declared.ignore_result,
                soft_time_limit=task.declared.soft_time_limit,
                time_limit=task.declared.time_limit,
                expires=task.declared.expires,
            )
        )
        for task in app.tasks.values()
    ]


class Registry:
    """A view of the tasks table, a few seconds old at most."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._tasks: dict[str, RegisteredTask] = {}
        self._read_at = -REFRESH

    async def find(self, name: str) -> RegisteredTask | None:
        """The task of that name, or None when no worker ever registered one.

        Raises:
            LedgerUnavailable
        """
        age = time.monotonic() - self._read_at
        if age > REFRESH or (name not in self._tasks and age > MISS_REFRESH):
            await self._refresh()
        return self._tasks.get(name)

    async def names(self) -> list[str]:
        """Every registered name.

        Raises:
            LedgerUnavailable
        """
        await self._refresh()
        return sorted(self._tasks)

    async def _refresh(self) -> None:
        rows = await self._ledger.tasks()
        self._tasks = {
            row["name"]: RegisteredTask(
                name=row["name"],
                queue=row["queue"],
                priority=row["priority"],
                parameters=msgspec.json.decode(row["parameters"], type=tuple[Parameter, ...]),
                max_retries=row["max_retries"],
                acks_late=row["acks_late"],
                ignore_result=row["ignore_result"],
                soft_time_limit=row["soft_time_limit"],
                time_limit=row["time_limit"],
                expires=row["expires"],
            )
            for row in rows
        }
        self._read_at = time.monotonic()
