"""The data directory that one launcher owns, and the short folder where its sockets live.

    <data>/lock        held with flock while a launcher lives: two brokers would share the files
    <data>/postgres/   the database cluster
    <data>/broker/     the append-only file
    <data>/logs/       one file a server

Sockets live elsewhere, below the system's temporary folder: a socket's path is limited to some 100
bytes, and a data directory may lie deep, or on a file system that has no sockets. The folder's name
is made from the data directory's, so that its URLs stay the same from one start to the next.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lateack_cli.embedded.errors import EmbeddedError

# The path of a socket holds 104 bytes on macOS, 108 on Linux, the closing zero included.
LONGEST_ROOM = 103 - len("/postgres/.s.PGSQL.65535")
# The path goes into URLs, lists of hosts and configuration: it shall need no quoting anywhere.
PLAIN_PATH = re.compile(r"[A-Za-z0-9_./+-]+")
LOG_ROTATES_AT = 16 * 1024 * 1024  # bytes, looked at when a server starts


@dataclass(frozen=True)
class DataDirectory:
    """A data directory in our hands."""

    top: Path
    room: Path  # for sockets and generated configuration; gone when the launcher ends

    def log(self, server: str) -> Path:
        """Where `server` writes its log; an old long one is set aside as `.1`."""
        path = self.top / "logs" / f"{server}.log"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if path.exists() and path.stat().st_size > LOG_ROTATES_AT:
            path.replace(path.with_suffix(".log.1"))
        return path


@contextmanager
def claimed(data_dir: Path) -> Iterator[DataDirectory]:
    """Own `data_dir` (made when missing, mode 0700) until the block ends.

    Raises EmbeddedError when another launcher owns it or it cannot be written.
    """
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        top = data_dir.resolve()
        lock = os.open(top / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EmbeddedError(
            f"Cannot use {data_dir} as data directory: {error.strerror}. Choose another one."
        ) from error
    try:
        _lock(lock, top)
        with _room(top) as room:
            yield DataDirectory(top, room)
    finally:
        # A forked child may hold a copy of the descriptor: closing ours would not be enough.
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def _lock(lock: int, top: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
        who = f" by process {holder}" if holder.isdigit() else ""
        raise EmbeddedError(
            f"The data directory {top} is in use{who}. Stop that one first, or choose another."
        ) from None
    except OSError as error:
        raise EmbeddedError(
            f"The data directory {top} cannot be locked: {error.strerror}. "
            "Choose one on a local file system."
        ) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


@contextmanager
def _room(top: Path) -> Iterator[Path]:
    try:
        path, handle = _claim_room(top)
    except OSError as error:
        raise EmbeddedError(
            f"Cannot make a folder for sockets: {error}. Set TMPDIR to a folder you may write to."
        ) from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def _claim_room(top: Path) -> tuple[Path, int]:
    name = f"lateack-{os.geteuid()}-{hashlib.blake2b(os.fsencode(top), digest_size=6).hexdigest()}"
    base = _base()
    path = base / name
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        # Left by a launcher that was killed, unless somebody else put it there to catch us.
        facts = path.lstat()
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
            path = _another_room(base, name)
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Held while we live: cleaners of temporary folders skip what is locked, and a launcher in
        # another container that shares /tmp may call its data directory by the same name.
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        path = _another_room(base, name)
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for old in path.iterdir():
        shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    # A PostgreSQL started by root is somebody else, and has to walk through, not to look around.
    path.chmod(0o711 if os.geteuid() == 0 else 0o700)
    return path, handle


def _base() -> Path:
    preferred = Path(tempfile.gettempdir()).resolve()
    longest = len(os.fsencode(preferred)) + len("/lateack-4294967295-0123456789ab-01234567")
    plain = PLAIN_PATH.fullmatch(str(preferred)) is not None
    open_to_all = all(step.stat().st_mode & 0o001 for step in (preferred, *preferred.parents))
    if plain and longest <= LONGEST_ROOM and (open_to_all or os.geteuid() != 0):
        return preferred
    return Path("/tmp").resolve()  # noqa: S108 - what is made there is ours alone, and checked


def _another_room(base: Path, name: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=base))
