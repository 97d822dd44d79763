"""Tasks for the tests of the process pool. Effects go to a file, a line each."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from lateack import App, Context

app = App("pools", default_queue="p")

MIB = 1024 * 1024
kept: list[bytes] = []


def effect(path: str, line: str) -> None:
    with Path(path).open("a") as file:
        file.write(line + "\n")


def hoard(mib: int) -> bytes:
    """Memory that is really there: pages that nobody wrote to take none."""
    return b"x" * (mib * MIB)


@app.task(pool="process")
def pid() -> int:
    return os.getpid()


@app.task(pool="process")
def waits(path: str, seconds: float, *, ctx: Context) -> int:
    effect(path, f"start {ctx.job_id} {ctx.attempt} {os.getpid()}")
    time.sleep(seconds)
    effect(path, f"end {ctx.job_id} {ctx.attempt} {os.getpid()}")
    return os.getpid()


@app.task(pool="process", memory_limit=150, max_retries=3, autoretry_for=(Exception,))
def hoards(path: str, mib: int, *, ctx: Context) -> int:
    effect(path, f"start {ctx.attempt} {os.getpid()}")
    hoarded = hoard(mib)
    time.sleep(30 if mib > 150 else 1.5)
    return len(hoarded)


@app.task(pool="process", memory_limit=150)
def hoards_elsewhere(path: str, mib: int) -> None:
    code = f"import time; hoarded = b'x' * ({mib} * 1024 * 1024); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code]) as other:
        effect(path, str(other.pid))
        other.wait()


@app.task(pool="process", memory_limit=200)
def shares(mib: int, copies: int) -> str:
    hoarded = hoard(mib)
    # Copies in C, so that nothing of the interpreter is written to and copied.
    forked = []
    for _ in range(copies):
        copy = ctypes.PyDLL(None).fork()
        if copy == 0:
            time.sleep(60)
            os._exit(0)
        forked.append(copy)
    time.sleep(2.0)
    for copy in forked:
        os.kill(copy, signal.SIGKILL)
        os.waitpid(copy, 0)
    return f"{len(hoarded)} bytes, {len(forked)} copies"


@app.task(pool="process")
def hoards_by_default(mib: int) -> int:
    hoarded = hoard(mib)
    time.sleep(30 if mib > 150 else 1.5)
    return len(hoarded)


@app.task(pool="process", memory_limit=None)
def hoards_freely(mib: int) -> int:
    hoarded = hoard(mib)
    time.sleep(1.5)
    return len(hoarded)


@app.task(pool="process")
def keeps(mib: int) -> int:
    kept.append(hoard(mib))
    return os.getpid()


@app.task(pool="process", memory_limit=120)
def keeps_within(mib: int) -> int:
    kept.append(hoard(mib))
    time.sleep(0.8)
    return os.getpid()


@app.task(pool="process", soft_time_limit=0.3, time_limit=1.2)
def will_not_end(path: str) -> None:
    """Ignores every signal that can be ignored, and so does the copy that holds what it holds."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    copy = ctypes.PyDLL(None).fork()
    if copy:
        effect(path, f"{os.getpid()} {copy}")
    while True:
        time.sleep(1)


@app.task(pool="process", soft_time_limit=None, time_limit=60)
def will_not_be_interrupted(path: str, *, ctx: Context) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    effect(path, f"start {ctx.attempt} {os.getpid()}")
    while True:
        effect(path, "alive")
        time.sleep(0.05)


@app.task(pool="process")
def leaves_something_running() -> int:
    return subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ).pid  # fmt: skip


@app.task
def in_a_thread(path: str, seconds: float, *, ctx: Context) -> None:
    effect(path, f"start {ctx.job_id} {ctx.attempt} {os.getpid()}")
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        time.sleep(0.05)


@app.task
def signals_a_copy_of_its_own(number: int) -> int:
    """Forks, as multiprocessing does, and ends the copy by a signal."""
    copy = os.fork()
    if copy == 0:
        time.sleep(60)
        os._exit(0)
    os.kill(copy, number)
    return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
