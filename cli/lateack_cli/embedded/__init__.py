"""PostgreSQL and Valkey of our own, for machines where neither is installed.

`embedded_servers` runs both on a data directory that survives restarts, kill -9 of the launcher
included:

    async with embedded_servers(Path("data")) as servers:
        pool = await open_pool(servers.database_url)

What it promises: one launcher a directory; no port, no system user, no mode changed outside the
directory; Ctrl-C reaches the launcher only; on Linux the servers end when the launcher is gone,
elsewhere the next launcher ends them.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    raise ImportError(
        "lateack runs servers of its own on Linux and macOS only: set DATABASE_URL and REDIS_URL."
    )

from lateack_cli.embedded.binaries import Programs
from lateack_cli.embedded.errors import EmbeddedError
from lateack_cli.embedded.process import EmbeddedServer, LostServer
from lateack_cli.embedded.servers import EmbeddedServers, Servers, embedded_servers

__all__ = [
    "EmbeddedError",
    "EmbeddedServer",
    "EmbeddedServers",
    "LostServer",
    "Programs",
    "Servers",
    "embedded_servers",
]
