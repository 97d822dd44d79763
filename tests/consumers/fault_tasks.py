"""Tasks for the fault cases. They note what they do in a file: `word job attempt pid`, a line each.

Two versions of one application are here as well: `old`, and `new`, which knows a task more.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from lateack import App, Client, Context, Retry, SyncClient, TransientError, waiting_allowed

app = App("faults", default_queue="q", soft_time_limit=None, time_limit=600)
APP_PATH = "tests.consumers.fault_tasks:app"


def append(path: str, line: str) -> None:
    with Path(path).open("a") as file:
        file.write(line + "\n")


def note(path: str, word: str, ctx: Context) -> None:
    append(path, f"{word} {ctx.job_id} {ctx.attempt} {os.getpid()}")


@app.task(name="f.held")
async def held(path: str, first: float, later: float = 0.05, *, ctx: Context) -> int:
    """Takes `first` seconds on its first attempt, `later` seconds on others."""
    note(path, "start", ctx)
    await asyncio.sleep(first if ctx.attempt == 1 else later)
    note(path, "end", ctx)
    return ctx.attempt


@app.task(name="f.walks")
async def walks(path: str, seconds: float, *, ctx: Context) -> int:
    """Like held, in many short steps that are reported."""
    note(path, "start", ctx)
    steps = max(1, int(seconds / 0.05))
    for number in range(steps):
        await asyncio.sleep(0.05)
        await ctx.progress(done=number + 1, total=steps, step=f"attempt {ctx.attempt}")
    note(path, "end", ctx)
    return ctx.attempt


@app.task(name="f.in_thread")
def in_thread(path: str, seconds: float, *, ctx: Context) -> int:
    note(path, "start", ctx)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        time.sleep(0.05)
        ctx.check()
    note(path, "end", ctx)
    return ctx.attempt


@app.task(name="f.in_process", pool="process")
def in_process(path: str, seconds: float, *, ctx: Context) -> int:
    note(path, "start", ctx)
    time.sleep(seconds)
    note(path, "end", ctx)
    return ctx.attempt


@app.task(name="f.until_told", pool="process")
def until_told(path: str, release: str, *, ctx: Context) -> None:
    """Until a file is there."""
    note(path, "start", ctx)
    while not Path(release).exists():
        time.sleep(0.05)


@app.task(name="f.nothing")
async def nothing() -> None:
    return


@app.task(name="f.twice")
async def twice(value: int) -> int:
    return value * 2


@app.task(name="f.charges")
async def charges(path: str, *, ctx: Context) -> str:
    """An effect outside, and death before anything of it is recorded, on the first attempt."""
    append(path, ctx.idempotency_key("charge"))
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return ctx.idempotency_key("charge")


@app.task(name="f.kills_its_worker")
async def kills_its_worker(path: str, after: float = 0.0, *, ctx: Context) -> None:
    note(path, "start", ctx)
    await asyncio.sleep(after)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="f.asks_again")
async def asks_again(path: str, until: int, after: float, *, ctx: Context) -> int:
    """Asks for another attempt until it has had so many."""
    note(path, "start", ctx)
    if ctx.attempt < until:
        raise Retry("not yet", after=after)
    return ctx.attempt


@app.task(
    name="f.always_fails",
    autoretry_for=(TransientError,),
    max_retries=40,
    retry_backoff=0.01,
    retry_backoff_max=0.05,
    retry_jitter=False,
)
async def always_fails() -> None:
    raise TransientError("again")


@app.task(name="f.long_limit", time_limit=86_400)
async def long_limit(path: str, first: float, *, ctx: Context) -> int:
    return await held(path, first, ctx=ctx)


# -- jobs that wait for other jobs ------------------------------------------------------------


@app.task(name="f.waits_on_loop")
async def waits_on_loop(url: str) -> int:
    async with Client(url) as jobs:
        total: int = await jobs.run("f.twice", args=[1])
        return total


@app.task(name="f.waits_in_thread", autoretry_for=(Exception,), max_retries=5)
def waits_in_thread(url: str) -> int:
    with SyncClient(url) as jobs:
        total: int = jobs.result(jobs.submit("f.twice", args=[1]))
        return total


@app.task(name="f.waits_in_process", pool="process")
def waits_in_process(url: str) -> int:
    with SyncClient(url) as jobs:
        return jobs.wait(jobs.submit("f.twice", args=[1])).attempt


@app.task(name="f.watches")
async def watches(url: str) -> str:
    async with Client(url) as jobs:
        async for event in jobs.watch(await jobs.submit("f.twice", args=[1])):
            last = event.status
        return last


@app.task(name="f.may_wait")
async def may_wait(url: str) -> int:
    async with Client(url) as jobs:
        with waiting_allowed():
            total: int = await jobs.run("f.twice", args=[1], timeout=20)
            return total


# -- two versions -----------------------------------------------------------------------------

old = App("versions", default_queue="q")
new = App("versions", default_queue="q")


async def known(path: str, *, ctx: Context) -> None:
    note(path, "known", ctx)


old.task(name="v.known")(known)
new.task(name="v.known")(known)


@new.task(name="v.added")
async def added(path: str, *, ctx: Context) -> None:
    note(path, "added", ctx)


# -- limits -----------------------------------------------------------------------------------

# Short for everybody, longer or none for some.
limited = App("limited", default_queue="q", soft_time_limit=0.5, time_limit=1.0)


@limited.task(name="l.usual")
async def usual(path: str, seconds: float, *, ctx: Context) -> int:
    return await held(path, seconds, ctx=ctx)


@limited.task(name="l.longer", time_limit=60)
async def longer(path: str, seconds: float, *, ctx: Context) -> int:
    return await held(path, seconds, ctx=ctx)


@limited.task(name="l.longer_in_thread", time_limit=60)
def longer_in_thread(path: str, seconds: float, *, ctx: Context) -> int:
    return in_thread(path, seconds, ctx=ctx)


@limited.task(name="l.none", time_limit=None)
async def none(path: str, seconds: float, *, ctx: Context) -> int:
    return await held(path, seconds, ctx=ctx)


@limited.task(name="l.none_in_process", time_limit=None, pool="process")
def none_in_process(path: str, seconds: float, *, ctx: Context) -> int:
    return in_process(path, seconds, ctx=ctx)
