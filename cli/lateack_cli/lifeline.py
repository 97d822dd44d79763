"""What ties a child of `lateack up` to its launcher: to die with it, to tell it of readiness.

The launcher names itself in two variables, which the child takes out of its environment at once so
that they mean nothing to processes that it starts in turn.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time

LAUNCHER = "LATEACK_LAUNCHER_PID"
READY_PIPE = "LATEACK_READY_PIPE"

_PR_SET_PDEATHSIG = 1
_POLL = 0.5  # seconds
# The launcher's pipe, until it was told.
_ready_pipes: list[int] = []


def take_hold() -> None:
    """Tie this process to the launcher that the environment names, if it names one.

    When the launcher is gone, this process is killed: the servers that it stands on go at the same
    moment, and what it was doing is taken up again from its leases, as after a power cut.
    """
    if pipe := os.environ.pop(READY_PIPE, None):
        os.set_inheritable(int(pipe), False)
        _ready_pipes.append(int(pipe))
    if launcher := os.environ.pop(LAUNCHER, None):
        _die_with(int(launcher))


def tell_ready(word: str = "") -> None:
    """Tell the launcher, if there is one, that this process is at work. Once; then silence."""
    while _ready_pipes:
        pipe = _ready_pipes.pop()
        with contextlib.suppress(BrokenPipeError):
            os.write(pipe, f"ready {word}\n".encode())
        os.close(pipe)


def _die_with(launcher: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(launcher,), daemon=True, name="lifeline").start()
    if os.getppid() != launcher:
        # It was gone before we were tied to it, so nobody would ever send the signal.
        os._exit(1)


def _watch(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(_POLL)
    os._exit(1)
