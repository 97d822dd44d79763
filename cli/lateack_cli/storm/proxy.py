"""A small TCP proxy in front of a server, through which one process reaches it.

What a network does to connections, it can be told to do: cut them, refuse new ones, hold what is
sent, delay it, or let requests through and keep the answers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

CHUNK = 65_536

Pump = Coroutine[Any, Any, None]


class Proxy:
    """Listens on a loopback port and hands on to `upstream`, a port of this machine too."""

    def __init__(self, upstream: int, port: int) -> None:
        self.port = port
        self._upstream = upstream
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._answering = asyncio.Event()
        self._answering.set()
        self._delay = 0.0

    async def start(self) -> None:
        """Listen."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def stop(self) -> None:
        """Listen no more, and cut what there is."""
        await self.refuse()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    # -- what can go wrong ----------------------------------------------------------------

    def cut(self) -> None:
        """Reset every connection; new ones are taken."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def refuse(self) -> None:
        """Reset every connection and refuse new ones."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        self.cut()

    def hold(self) -> None:
        """Nothing gets through, in either direction, and nobody is told."""
        self._flowing.clear()

    def delay(self, seconds: float) -> None:
        """Everything comes so much later."""
        self._delay = seconds

    def deafen(self) -> None:
        """What is asked arrives, and no answer does."""
        self._answering.clear()

    async def heal(self) -> None:
        """As it was. What was held goes on its way; who was left without an answer is cut off."""
        self._delay = 0.0
        if not self._answering.is_set():
            self.cut()
        self._flowing.set()
        self._answering.set()
        await self.start()

    # -- connections ----------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self._writers.add(writer)
        try:
            await self._flowing.wait()
            try:
                up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
            except OSError:
                return
            self._writers.add(up_writer)
            try:
                await _both(self._pump(reader, up_writer), self._pump(up_reader, writer, True))
            finally:
                self._writers.discard(up_writer)
                up_writer.transport.abort()
        finally:
            self._connections.discard(task)
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool = False
    ) -> None:
        """Hand on until either end is closed."""
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                if self._delay:
                    await asyncio.sleep(self._delay)
                await self._flowing.wait()
                if answers:
                    await self._answering.wait()
                writer.write(data)
                await writer.drain()
            # What was written last is on its way before the connection goes.
            if writer.can_write_eof():
                writer.write_eof()
                await writer.drain()


async def _both(first: Pump, second: Pump) -> None:
    """Run both until one has ended: half a connection is of no use to our callers."""
    tasks = [asyncio.ensure_future(first), asyncio.ensure_future(second)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
