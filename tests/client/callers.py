"""Both clients behind one way of calling, so that each test holds for both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Literal

from lateack import Event
from lateack.client import Client, SyncClient

Kind = Literal["async", "sync"]


class Caller:
    """Calls a client's methods by name; the synchronous one's in a thread."""

    def __init__(self, kind: Kind, url: str, **options: Any) -> None:
        self.client = Client(url, **options) if kind == "async" else SyncClient(url, **options)

    async def call(self, method: str, *args: Any, **options: Any) -> Any:
        """What the method returns, or raises."""
        if isinstance(self.client, Client):
            return await getattr(self.client, method)(*args, **options)
        return await asyncio.to_thread(getattr(self.client, method), *args, **options)

    async def each(self, method: str, *args: Any, **options: Any) -> AsyncIterator[Any]:
        """What the method yields."""
        if isinstance(self.client, Client):
            async for one in getattr(self.client, method)(*args, **options):
                yield one
            return
        steps = getattr(self.client, method)(*args, **options)
        while (one := await asyncio.to_thread(next, steps, None)) is not None:
            yield one

    async def watch(self, *args: Any, **options: Any) -> list[Event]:
        """Every event of a job, once it has ended."""
        return [event async for event in self.each("watch", *args, **options)]

    async def close(self) -> None:
        """Close the connections."""
        if isinstance(self.client, Client):
            await self.client.close()
        else:
            self.client.close()
