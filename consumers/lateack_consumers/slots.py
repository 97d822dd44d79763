"""Slots: how many jobs a worker may have in hand. Nothing is fetched without one."""

from __future__ import annotations

import asyncio


class Slots:
    """A counter that can be waited for. The worker fetches only what it has free slots for."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = total
        self._some = asyncio.Event()
        self._some.set()

    @property
    def free(self) -> int:
        return self._free

    def take(self, most: int) -> int:
        """Take up to `most` slots; says how many."""
        taken = min(self._free, most)
        self._free -= taken
        if self._free == 0:
            self._some.clear()
        return taken

    def give(self, count: int = 1) -> None:
        """Give slots back."""
        if count:
            self._free += count
            self._some.set()

    async def some(self, timeout: float) -> bool:
        """Wait until there is a free slot, for `timeout` seconds at most."""
        if self._free:
            return True
        try:
            await asyncio.wait_for(self._some.wait(), timeout)
        except TimeoutError:
            return False
        return True
