"""Networks that misbehave: a server that says what it is told to, and a line that gets cut."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Request:
    """A request that arrived, and when (monotonic)."""

    line: str
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def document(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Say:
    """A reply. `status` 0 hangs up without one; None never answers."""

    status: int | None
    document: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None


class ScriptedServer:
    """Answers each request with the next reply of its script; the last one for ever."""

    def __init__(self, *script: Say) -> None:
        self.script = list(script)
        self.requests: list[Request] = []
        self.url = ""
        self._server: asyncio.Server | None = None
        self._ends: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> ScriptedServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for end in list(self._ends):
            end.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while (request := await _read_request(reader)) is not None:
                self.requests.append(request)
                say = self.script.pop(0) if len(self.script) > 1 else self.script[0]
                if say.status is None:
                    await reader.read()
                    break
                if say.status == 0:
                    break
                writer.write(_reply(say))
                await writer.drain()
        self._ends.discard(writer)
        writer.transport.abort()


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    line = (await reader.readline()).decode().strip()
    if not line:
        return None
    headers = {}
    while text := (await reader.readline()).decode().strip():
        name, _, value = text.partition(":")
        headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(line, headers, body, time.monotonic())


def _reply(say: Say) -> bytes:
    body = json.dumps(say.document).encode() if say.raw is None else say.raw
    headers = {"content-length": str(len(body)), "content-type": "application/json", **say.headers}
    lines = [f"HTTP/1.1 {say.status} X", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
    return "\r\n".join(lines).encode() + body


class Line:
    """A TCP line to a server that can lose replies, be slow, be cut, be down, and lead elsewhere.

    The server is a URL, of TCP or of a Unix socket (`unix:///path`).
    """

    def __init__(self, target: str) -> None:
        # Where new connections lead.
        self.target = target
        # Seconds that everything takes, each way.
        self.delay = 0.0
        # Seconds without a word from the server after which a connection is closed, as proxies do.
        self.patience: float | None = None
        # How many were closed so; how many were open at once at most.
        self.hung_up = 0
        self.most = 0
        # How many there were in all.
        self.opened = 0
        self._server: asyncio.Server | None = None
        self._ends: set[asyncio.StreamWriter] = set()
        self._busy: set[asyncio.Task[None]] = set()
        # So many replies are still to be lost: the request arrives, the answer does not.
        self.lose = 0
        self.lost = 0
        self.down = False
        # Called with whatever the server says; what it says instead.
        self.overhear: Callable[[bytes], None] = lambda _: None
        self.change: Callable[[bytes], bytes] = lambda said: said

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The line itself, for HTTP."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def redis_url(self) -> str:
        """The line itself, for a broker, with the password of the target's URL."""
        parts = urlsplit(self.target)
        password = f":{parts.password}@" if parts.password else ""
        return f"redis://{password}127.0.0.1:{self.port}/0"

    async def open(self) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._join, "127.0.0.1", 0)

    def cut(self) -> int:
        """Cut every connection; how many there were."""
        ends = list(self._ends)
        for end in ends:
            end.transport.abort()
        return len(ends)

    async def close(self) -> None:
        """Cut everything and stop listening."""
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._busy):
            task.cancel()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.down:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await self._reach()
        except OSError:
            writer.transport.abort()
            return
        self._ends |= {writer, far_writer}
        self.opened += 1
        self.most = max(self.most, len(self._ends) // 2)
        ways = [
            asyncio.create_task(self._carry(reader, far_writer)),
            asyncio.create_task(self._carry_back(far_reader, writer)),
        ]
        self._busy.update(ways)
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, far_writer):
            end.transport.abort()
            self._ends.discard(end)
        self._busy.difference_update(ways)

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self.target)
        if parts.scheme == "unix":
            return await asyncio.open_unix_connection(parts.path)
        return await asyncio.open_connection(parts.hostname, parts.port)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                self._say(writer, data)
                await writer.drain()

    async def _carry_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await self._hear(reader):
                if self.lose:
                    self.lose -= 1
                    self.lost += 1
                    return
                self.overhear(data)
                self._say(writer, self.change(data))
                await writer.drain()

    async def _hear(self, reader: asyncio.StreamReader) -> bytes:
        try:
            return await asyncio.wait_for(reader.read(65_536), self.patience)
        except TimeoutError:
            self.hung_up += 1
            return b""

    def _say(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if not self.delay:
            writer.write(data)
            return
        # Late, and in order: what is said meanwhile is on its way as well.
        asyncio.get_running_loop().call_later(self.delay, _say_if_open, writer, data)


def _say_if_open(writer: asyncio.StreamWriter, data: bytes) -> None:
    if not writer.transport.is_closing():
        writer.write(data)


@contextlib.asynccontextmanager
async def line_to(url: str) -> AsyncIterator[Line]:
    """An open line to a server."""
    line = Line(url)
    await line.open()
    try:
        yield line
    finally:
        await line.close()


def gaps(requests: Iterable[Request]) -> list[float]:
    """Seconds between one request and the next."""
    times = [request.at for request in requests]
    return [later - earlier for earlier, later in itertools.pairwise(times)]
