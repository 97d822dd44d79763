"""Tasks that report far more often than anybody could read, on each kind of pool."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from lateack import INJECTED, App, Context

app = App("progress")
# Each value of the beginning is told before the next one comes.
APART = 0.5


@app.task(name="p.instant")
async def instant(value: int) -> int:
    return value


@app.task(name="p.slow")
async def slow(seconds: float, *, ctx: Context = INJECTED) -> str:
    for number in range(10):
        ctx.progress(number * 10)
        await asyncio.sleep(seconds / 10)
    return "done"


def _flood(ctx: Context, seconds: float) -> Iterator[int]:
    ends, count = time.monotonic() + seconds, 0
    while time.monotonic() < ends:
        count += 1
        ctx.progress(count % 100, step=f"step {count}")
        yield count


def _odd(ctx: Context) -> Iterator[None]:
    for value in (-5, 40, float("nan"), 1e300):
        ctx.progress(value, step=str(value))
        yield


def _last(ctx: Context) -> None:
    ctx.progress(73.25, step="the last one")


@app.task(name="p.on_loop")
async def on_loop(seconds: float, *, ctx: Context = INJECTED) -> int:
    count = 0
    for _ in _odd(ctx):
        await asyncio.sleep(APART)
    for count in _flood(ctx, seconds):
        if count % 50 == 0:
            await asyncio.sleep(0)
    _last(ctx)
    return count


def _plainly(seconds: float, ctx: Context) -> int:
    count = 0
    for _ in _odd(ctx):
        time.sleep(APART)
    for count in _flood(ctx, seconds):
        if count % 50 == 0:
            time.sleep(0.001)
    _last(ctx)
    return count


@app.task(name="p.in_thread")
def in_thread(seconds: float, *, ctx: Context = INJECTED) -> int:
    return _plainly(seconds, ctx)


@app.task(name="p.in_process", pool="process")
def in_process(seconds: float, *, ctx: Context = INJECTED) -> int:
    return _plainly(seconds, ctx)
