"""The proxy does to connections what a network does."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from lateack_cli.embedded.ports import loopback_port
from lateack_cli.storm.proxy import Proxy

SOON = 5.0  # seconds
NOT_YET = 0.2


@dataclass
class Server:
    """Answers each line with itself; keeps what it heard."""

    port: int
    heard: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                self.heard.append(line)
                writer.write(line)
                await writer.drain()
        writer.close()


class Caller:
    """A connection through the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, proxy: Proxy) -> Caller:
        return cls(*await asyncio.open_connection("127.0.0.1", proxy.port))

    def say(self, line: bytes) -> None:
        self._writer.write(line + b"\n")

    async def hear(self, within: float = SOON) -> bytes:
        return (await asyncio.wait_for(self._reader.readline(), within)).rstrip(b"\n")

    async def ask(self, line: bytes) -> bytes:
        self.say(line)
        return await self.hear()

    async def cut_off(self) -> bool:
        """Whether the connection ends."""
        try:
            return await asyncio.wait_for(self._reader.read(), SOON) == b""
        except ConnectionError:
            return True


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server(loopback_port(0, range(13_000, 16_000)))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", server.port)
    yield server
    listening.close()


@pytest.fixture
async def proxy(server: Server) -> AsyncIterator[Proxy]:
    proxy = Proxy(server.port, loopback_port(0, range(16_000, 18_000)))
    await proxy.start()
    yield proxy
    await proxy.heal()
    await proxy.stop()


async def test_it_hands_on(proxy: Proxy) -> None:
    callers = [await Caller.connect(proxy) for _ in range(3)]
    for place, caller in enumerate(callers):
        assert await caller.ask(b"%d" % place) == b"%d" % place
    assert await callers[0].ask(b"x" * 50_000) == b"x" * 50_000


async def test_cut_connections_end_and_new_ones_work(proxy: Proxy) -> None:
    caller = await Caller.connect(proxy)
    assert await caller.ask(b"a") == b"a"
    proxy.cut()
    assert await caller.cut_off()
    assert await (await Caller.connect(proxy)).ask(b"b") == b"b"


async def test_refused_until_healed(proxy: Proxy) -> None:
    caller = await Caller.connect(proxy)
    assert await caller.ask(b"a") == b"a"
    await proxy.refuse()
    assert await caller.cut_off()
    with pytest.raises(ConnectionRefusedError):
        await Caller.connect(proxy)
    await proxy.heal()
    assert await (await Caller.connect(proxy)).ask(b"c") == b"c"


async def test_held_until_healed(proxy: Proxy, server: Server) -> None:
    """Nothing arrives, nobody is told, and afterwards it all does: also for new connections."""
    caller = await Caller.connect(proxy)
    assert await caller.ask(b"a") == b"a"
    proxy.hold()
    caller.say(b"b")
    newcomer = await Caller.connect(proxy)
    newcomer.say(b"c")
    with pytest.raises(TimeoutError):
        await caller.hear(NOT_YET)
    assert server.heard == [b"a\n"]
    await proxy.heal()
    assert await caller.hear() == b"b"
    assert await newcomer.hear() == b"c"


async def test_delayed(proxy: Proxy) -> None:
    caller = await Caller.connect(proxy)
    proxy.delay(0.15)
    began = time.monotonic()
    assert await caller.ask(b"a") == b"a"
    assert time.monotonic() - began >= 0.3


async def test_deafened_callers_are_heard_and_never_answered(proxy: Proxy, server: Server) -> None:
    """The request takes effect, the answer is lost, and the connection ends."""
    caller = await Caller.connect(proxy)
    assert await caller.ask(b"a") == b"a"
    proxy.deafen()
    caller.say(b"b")
    with pytest.raises(TimeoutError):
        await caller.hear(NOT_YET)
    assert server.heard == [b"a\n", b"b\n"]
    await proxy.heal()
    assert await caller.cut_off()
    assert await (await Caller.connect(proxy)).ask(b"c") == b"c"


async def test_a_server_that_is_away_ends_the_connection(proxy: Proxy, server: Server) -> None:
    gone = Proxy(loopback_port(0, range(18_000, 19_000)), loopback_port(0, range(19_000, 20_000)))
    await gone.start()
    try:
        assert await (await Caller.connect(gone)).cut_off()
    finally:
        await gone.stop()
