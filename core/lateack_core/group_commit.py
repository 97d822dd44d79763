"""Group commit: what arrives while a statement is in flight becomes the next statement.

There is no timer. An item that finds no statement in flight is written at once, alone; under load
the batches grow by themselves, and a commit is shared by all of its items. This is where the speed
comes from.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from .postgres import LedgerUnavailable

Item = TypeVar("Item")
Answer = TypeVar("Answer")

Write = Callable[[list[Item]], Awaitable[list[Answer]]]


class GroupCommit(Generic[Item, Answer]):
    """Gathers items and writes them together.

    `write` takes a list and returns one answer for each item, in the same order. `lanes` is how
    many statements may be in flight at once; 1 keeps the order of arrival.
    """

    def __init__(self, write: Write[Item, Answer], *, most: int = 500, lanes: int = 1) -> None:
        self._write = write
        self._most = most
        self._lanes = lanes
        self._busy = 0
        self._waiting: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def put(self, item: Item) -> Answer:
        """Write `item`, with whatever else is on its way; returns its answer.

        Raises:
            whatever `write` raised for this item alone: a batch that fails is split, so that one
            item cannot hold up its neighbours. LedgerUnavailable: for all of it, and nobody knows.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._busy < self._lanes:
            self._busy += 1
            task = asyncio.create_task(self._drain())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await future

    async def _drain(self) -> None:
        try:
            # One turn of the loop: what was put in this same turn goes in the first statement.
            await asyncio.sleep(0)
            while self._waiting:
                count = min(len(self._waiting), self._most)
                batch = [self._waiting.popleft() for _ in range(count)]
                # A caller that went away before its item was sent wants nothing any more.
                batch = [(item, future) for item, future in batch if not future.done()]
                if batch:
                    await self._settle(batch)
        finally:
            self._busy -= 1

    async def _settle(self, batch: list[tuple[Item, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._write([item for item, _ in batch])
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        except Exception as error:
            if len(batch) == 1 or isinstance(error, LedgerUnavailable):
                _fail(batch, error)
                return
            middle = len(batch) // 2
            await self._settle(batch[:middle])
            await self._settle(batch[middle:])
        else:
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)


def _fail(batch: list[tuple[Item, asyncio.Future[Answer]]], error: Exception) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)
