"""Enough of PostgreSQL's protocol to ask a server whether it takes connections, through its socket.

A driver would do, but belongs to the core, and this must run before there is anything to pool.
"""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

PROTOCOL_3 = 196608
ASK_PATIENCE = 5.0  # seconds
AUTHENTICATION = b"R"
ERROR = b"E"
READY = b"Z"


class Refused(Exception):
    """The server answered, with an error: its SQLSTATE and message."""

    def __init__(self, sqlstate: str, message: str, *, final: bool) -> None:
        super().__init__(f"{message} ({sqlstate})")
        self.sqlstate = sqlstate
        self.final = final  # the server closes the connection after it


async def ask(socket: Path, user: str, database: str, statement: str | None = None) -> None:
    """Connect, run the statement if there is one, and leave.

    Raises Refused when the server says no, OSError (also TimeoutError, ConnectionError) when nobody
    answers.
    """
    async with asyncio.timeout(ASK_PATIENCE):
        reader, writer = await asyncio.open_unix_connection(socket)
        try:
            names = f"user\0{user}\0database\0{database}\0\0".encode()
            writer.write(struct.pack("!ii", len(names) + 8, PROTOCOL_3) + names)
            await _until_ready(reader)
            if statement is not None:
                query = statement.encode() + b"\0"
                writer.write(b"Q" + struct.pack("!i", len(query) + 4) + query)
                await _until_ready(reader)
            writer.write(b"X" + struct.pack("!i", 4))
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError("the server closed the connection") from error
        finally:
            writer.close()


async def _until_ready(reader: asyncio.StreamReader) -> None:
    trouble: Refused | None = None
    while True:
        kind = await reader.readexactly(1)
        (length,) = struct.unpack("!i", await reader.readexactly(4))
        body = await reader.readexactly(length - 4)
        if kind == ERROR:
            trouble = _refusal(body)
            if trouble.final:
                raise trouble
        elif kind == AUTHENTICATION and body[:4] != b"\0\0\0\0":
            raise Refused("28000", "the server wants a password on its socket", final=True)
        elif kind == READY:
            if trouble is not None:
                raise trouble
            return


def _refusal(body: bytes) -> Refused:
    fields = {part[:1]: part[1:].decode(errors="replace") for part in body.split(b"\0") if part}
    final = fields.get(b"V") in ("FATAL", "PANIC")
    return Refused(fields.get(b"C", "?????"), fields.get(b"M", "no message"), final=final)
