"""A Valkey of our own."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from pathlib import Path
from signal import SIGTERM

from lateack_cli.embedded.binaries import valkey_server
from lateack_cli.embedded.directory import DataDirectory
from lateack_cli.embedded.ports import loopback_port
from lateack_cli.embedded.process import EmbeddedServer, Program

ASK_PATIENCE = 5.0  # seconds
CANDIDATE_PORTS = range(23000, 30000)
# SIGTERM writes and syncs the append-only file; SIGKILL may lose what waited for a slow disk.
STOP_STEPS = ((SIGTERM, 20.0),)


def broker_server(
    place: DataDirectory,
    *,
    durable: bool,
    port: int | None,
    binary: Path | None = None,
    options: Mapping[str, str] | None = None,
) -> EmbeddedServer:
    """A broker on `<data>/broker`, not started.

    With `port` (0: any free one) it also listens on loopback, with a password. `options` are
    further lines of its settings. Raises EmbeddedError when its program is missing.
    """
    binary = binary or valkey_server()
    folder = place.top / "broker"
    folder.mkdir(mode=0o700, exist_ok=True)
    socket = place.room / "valkey.sock"
    settings = place.room / "valkey.conf"
    number = None if port is None else loopback_port(port, CANDIDATE_PORTS)
    # Every user of the machine can reach a loopback port, but only we the socket.
    password = None if number is None else secrets.token_hex(16)

    def prepare() -> None:
        socket.unlink(missing_ok=True)
        settings.unlink(missing_ok=True)
        settings.touch(mode=0o600)
        text = _settings(socket, durable=durable, port=number, password=password)
        more = (f"{name} {value}\n" for name, value in (options or {}).items())
        settings.write_text(text + "".join(more))

    async def ready() -> bool:
        return await _answers(socket, password)

    return EmbeddedServer(
        Program(
            name="Valkey",
            command=(str(binary), str(settings)),
            folder=folder,
            log=place.log("broker"),
            url=f"unix://{socket}"
            if number is None
            else f"redis://:{password}@127.0.0.1:{number}/0",
            account=None,
            stop_steps=STOP_STEPS,
            prepare=prepare,
            ready=ready,
            mark=str(place.room),
            advice=f"What it holds is rebuilt from the database, so {folder} may be moved away.",
        )
    )


def _settings(socket: Path, *, durable: bool, port: int | None, password: str | None) -> str:
    lines = [
        "daemonize no",
        "supervised no",
        "dir .",  # the working directory: a long path with blanks needs no quoting
        f"unixsocket {socket}",
        "unixsocketperm 700",
        f"port {port or 0}",
        "bind 127.0.0.1",
        "protected-mode yes",
        "databases 16",
        'save ""',
        "appendonly yes",
        f"appendfsync {'everysec' if durable else 'no'}",
        "aof-load-truncated yes",
        "maxmemory 0",
        "maxmemory-policy noeviction",
        "loglevel notice",
        'logfile ""',
        # How survivors.py tells this one from others where there is no /proc.
        'proc-title-template "{title} {unixsocket}"',
    ]
    if password is not None:
        lines.append(f"requirepass {password}")
    return "\n".join(lines) + "\n"


async def _answers(socket: Path, password: str | None) -> bool:
    try:
        async with asyncio.timeout(ASK_PATIENCE):
            reader, writer = await asyncio.open_unix_connection(socket)
            try:
                # While it loads its file it answers -LOADING, and before AUTH nothing but -NOAUTH.
                if password is not None:
                    writer.write(f"AUTH {password}\r\n".encode())
                    await reader.readline()
                writer.write(b"PING\r\n")
                return await reader.readline() == b"+PONG\r\n"
            finally:
                writer.close()
    except OSError:
        return False
