"""Tasks for the worker tests. Effects go to a file, a line each, so that they outlive a kill."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

from lateack import App, Context, Retry, SoftTimeLimitExceeded, TransientError

app = App("under-test", default_queue="q")


def effect(path: str, line: str) -> None:
    with Path(path).open("a") as file:
        file.write(line + "\n")


@app.task
async def add(a: int, b: int) -> int:
    return a + b


@app.task
async def slow(path: str, seconds: float, *, ctx: Context) -> str:
    effect(path, f"start {ctx.attempt} {os.getpid()}")
    steps = max(1, int(seconds / 0.05))
    for number in range(steps):
        await asyncio.sleep(seconds / steps)
        await ctx.progress(done=number + 1, total=steps, step="walking")
    effect(path, f"end {ctx.attempt} {os.getpid()}")
    return "done"


@app.task
async def blocking(path: str, seconds: float, *, ctx: Context) -> str:
    effect(path, f"start {ctx.attempt} {os.getpid()}")
    time.sleep(seconds)  # noqa: ASYNC251  (the fault under test)
    effect(path, f"end {ctx.attempt} {os.getpid()}")
    return "done"


@app.task(soft_time_limit=0.4, time_limit=30)
async def soft(path: str) -> str:
    try:
        await asyncio.sleep(20)
    except SoftTimeLimitExceeded:
        effect(path, "cleaned up")
        return "in time"
    return "late"


@app.task(soft_time_limit=None, time_limit=0.6)
async def hard() -> None:
    ends = time.monotonic() + 3
    while time.monotonic() < ends:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            continue


@app.task(soft_time_limit=0.4, time_limit=30)
def thread_soft(path: str, *, ctx: Context) -> str:
    try:
        for _ in range(400):
            time.sleep(0.05)
            ctx.check()
    except SoftTimeLimitExceeded:
        effect(path, "cleaned up")
        return "in time"
    return "late"


@app.task(soft_time_limit=None, time_limit=0.6)
def thread_hard() -> None:
    time.sleep(3)


@app.task(pool="process", soft_time_limit=0.5, time_limit=30)
def process_soft(path: str) -> str:
    try:
        time.sleep(20)
    except SoftTimeLimitExceeded:
        effect(path, "cleaned up")
        return "in time"
    return "late"


@app.task(pool="process", soft_time_limit=None, time_limit=1.0)
def process_hard() -> None:
    time.sleep(60)


@app.task(pool="process")
def in_process(number: int, *, ctx: Context) -> list[int]:
    ctx.progress(50, step="half")
    return [number, os.getpid()]


@app.task(pool="process")
def sleeps_in_process(seconds: float) -> None:
    time.sleep(seconds)


@app.task(pool="process")
def forks_and_exits() -> str:
    if os.fork() == 0:
        time.sleep(0.2)
        sys.exit(0)
    return "parent"


@app.task(pool="process")
def forks_and_returns() -> str:
    return "copy" if os.fork() == 0 else "parent"


@app.task(pool="process", soft_time_limit=None, time_limit=60)
def leaves_a_grandchild(path: str, *, in_c: bool) -> None:
    # Forked in C, it runs no hooks of Python's and holds whatever this process holds.
    grandchild = ctypes.PyDLL(None).fork() if in_c else os.fork()
    if grandchild == 0:
        time.sleep(60)
        os._exit(0)
    effect(path, str(grandchild))
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
async def far_off() -> None:
    raise Retry("a mistake in a unit", after=time.time() * 1000)


@app.task
async def badly_named() -> None:
    raise type("No" + "x" * 1000, (Exception,), {})("said so")


@app.task
async def brings_down_the_loop() -> None:
    async def out() -> None:
        raise SystemExit(3)

    task = asyncio.create_task(out())
    await asyncio.sleep(5)
    await task


@app.task(pool="process")
def crash(path: str, *, ctx: Context) -> None:
    effect(path, f"start {ctx.attempt}")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(autoretry_for=(TransientError,), max_retries=2, retry_backoff=0.05, retry_jitter=False)
async def flaky(path: str, *, ctx: Context) -> int:
    effect(path, f"attempt {ctx.attempt}")
    if ctx.attempt < 3:
        raise TransientError("not yet")
    return ctx.attempt


@app.task
async def asks_again(*, ctx: Context) -> int:
    if ctx.attempt == 1:
        raise Retry("later", after=0.1)
    return ctx.attempt


@app.task
async def fails() -> None:
    raise ValueError("no\x00 good")


@app.task
async def fails_on(value: str) -> None:
    raise ValueError(value)


@app.task
async def unstorable() -> object:
    return object()


@app.task
async def not_finite() -> float:
    return float("nan")


@app.task
async def twice(value: int) -> int:
    return value * 2


@app.task(acks_late=False)
async def at_most_once(path: str, seconds: float) -> None:
    effect(path, "start")
    await asyncio.sleep(seconds)


@app.task
async def parent() -> str:
    job = await add.enqueue(1, 2)
    return str(job.job_id)


@app.task
async def stubborn() -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue
