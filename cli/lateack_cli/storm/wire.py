"""A word to the broker itself: what an operator would type, and no part of lateack would."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

PATIENCE = 5.0  # seconds


async def tell_broker(url: str, *words: str) -> str:
    """Send one command and return the first line of the answer, without its type.

    Raises:
        OSError: no answer (TimeoutError and ConnectionError too).
    """
    parts = urlsplit(url)
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            if parts.password:
                writer.write(_command("AUTH", parts.password))
                await reader.readline()
            writer.write(_command(*words))
            answer = (await reader.readline()).decode(errors="replace").strip()
        finally:
            writer.close()
    if not answer:
        raise ConnectionResetError("the broker closed the connection")
    return answer[1:]


def _command(*words: str) -> bytes:
    parts = [f"*{len(words)}\r\n"]
    parts += [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
    return "".join(parts).encode()
