"""Whether a process without an API of its own lives and is at work: GET /livez and /readyz.

Workers and schedulers answer at LATEACK_HEALTH when it is set; the API has these two itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import msgspec

from lateack.errors import DeclarationError

log = logging.getLogger("lateack.health")

PATIENCE = 5.0
LONGEST_HEAD = 8192
# After everything else has ended: whoever asks in these moments hears that it is not ready.
LAST_WORDS = 0.3  # seconds


@asynccontextmanager
async def health(address: str, troubles: Callable[[], list[str]]) -> AsyncIterator[None]:
    """Answer at `host:port` while the block runs and a moment longer; nowhere without an address.

    `/readyz` is 503 with the reasons while `troubles` returns any. Port 0 is any free one; the log
    names it.

    Raises:
        DeclarationError: it cannot listen there.
    """
    if not address:
        yield
        return

    open_ones: set[asyncio.Transport] = set()
    host, _, port = address.rpartition(":")
    try:
        server = await asyncio.get_running_loop().create_server(
            lambda: _Answering(troubles, open_ones), host.strip("[]"), int(port)
        )
    except (OSError, OverflowError, ValueError) as error:
        raise DeclarationError(f"LATEACK_HEALTH={address}: {error}; write host:port") from None
    log.info("health is told at http://%s:%d", host, server.sockets[0].getsockname()[1])
    try:
        yield
        await asyncio.sleep(LAST_WORDS)
    finally:
        server.close()
        for transport in list(open_ones):
            transport.abort()


class _Answering(asyncio.Protocol):
    """One connection, one answer. No task of its own, that an ending loop would have to cancel."""

    def __init__(
        self, troubles: Callable[[], list[str]], open_ones: set[asyncio.Transport]
    ) -> None:
        self._troubles = troubles
        self._open_ones = open_ones
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's own class is none of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._open_ones.add(self._transport)
        self._patience = asyncio.get_running_loop().call_later(PATIENCE, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._head += data
        if b"\r\n\r\n" in self._head:
            self._transport.write(_reply(self._head.split(b" ", 2)[:2], self._troubles))
            self._transport.close()
        elif len(self._head) > LONGEST_HEAD:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._patience.cancel()
        self._open_ones.discard(self._transport)


def _reply(request: list[bytes], troubles: Callable[[], list[str]]) -> bytes:
    document: dict[str, str | list[str]]
    match request:
        case [b"GET" | b"HEAD", b"/livez"]:
            status, document = "200 OK", {"status": "alive"}
        case [b"GET" | b"HEAD", b"/readyz"]:
            reasons = troubles()
            status = "503 Service Unavailable" if reasons else "200 OK"
            document = {"status": "not ready" if reasons else "ready", "reasons": reasons}
        case _:
            status, document = "404 Not Found", {"status": "there are /livez and /readyz"}
    body = msgspec.json.encode(document)
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if request[0] == b"HEAD" else body)
