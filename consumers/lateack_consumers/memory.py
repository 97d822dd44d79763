"""How much memory a process and what it started use, and the end of those that use too much."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import psutil

from .verdict import MIB

log = logging.getLogger("lateack.memory")

__all__ = ["MIB", "MemoryWatch", "resident"]

# Often enough to meet a body that grows; one look at every process of the machine costs some
# milliseconds.
INTERVAL = 0.5


def resident(pid: int) -> int:
    """Bytes of memory that one process holds; 0 when it is gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


@dataclass(eq=False, slots=True)
class Watched:
    """A process group that may use `limit` bytes; `used` is what it used when it was killed."""

    group: int
    limit: int
    used: int | None = None


class MemoryWatch:
    """A thread that kills process groups above their limit, whatever the event loop does.

    It runs only while something is watched. Both the killing and the end of the watch happen under
    one lock, so a process that has gone on to its next job is never meant.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: set[Watched] = set()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def limit(self, group: int, limit: int) -> Iterator[Watched]:
        """Watch a process group, which may use `limit` bytes, inside of this block."""
        watched = Watched(group, limit)
        with self._lock:
            self._watched.add(watched)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="lateack memory", daemon=True
                )
                self._thread.start()
        try:
            yield watched
        finally:
            with self._lock:
                self._watched.discard(watched)

    def _run(self) -> None:
        while True:
            time.sleep(INTERVAL)
            with self._lock:
                if not self._watched:
                    # The next one starts another thread.
                    self._thread = None
                    return
                watched = list(self._watched)
            try:
                self._look(watched)
            except Exception:
                # Without this thread nobody keeps the limits.
                log.exception("memory could not be measured")
                time.sleep(5.0)

    def _look(self, watched: list[Watched]) -> None:
        members = _members({one.group for one in watched})
        for one in watched:
            pids = members.get(one.group, [])
            if sum(map(resident, pids)) <= one.limit:
                continue
            # Copies that a body forks share most of their memory: look closely before killing.
            used = sum(map(_proportional, pids))
            if used > one.limit:
                self._kill(one, used)

    def _kill(self, one: Watched, used: int) -> None:
        with self._lock:
            if one in self._watched:
                one.used = used
                self._watched.discard(one)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(one.group, signal.SIGKILL)


def _members(groups: Collection[int]) -> dict[int, list[int]]:
    """The processes of these groups."""
    found: dict[int, list[int]] = {}
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            group = os.getpgid(pid)
            if group in groups:
                found.setdefault(group, []).append(pid)
    return found


def _proportional(pid: int) -> int:
    """Resident bytes of a process, where the system knows it (Linux) its share of shared pages."""
    try:
        full = psutil.Process(pid).memory_full_info()
    except psutil.Error:
        return resident(pid)
    return int(getattr(full, "pss", full.rss))
