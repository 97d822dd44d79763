"""The app that the fleet's workers run: bodies that behave well, and bodies that do not.

Each tells the history when it begins and how it ends. `expected` holds what may become of each.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from lateack import App, Context, Retry, TransientError
from lateack.effects import NotDone

from .history import History
from .outside import Outside

HISTORY = "STORM_HISTORY"
OUTSIDE = "STORM_OUTSIDE"
# What a body does that makes a worker end by itself with this status.
OWN_EXIT = 9
# A body that blocks the loop is over its limit after STUCK_LIMIT, and holds it until well past the
# moment at which the worker gives itself up.
STUCK_LIMIT, STUCK_FOR = 2.0, 12.0
# How much later `again` asks to be tried again; long enough for a stray entry to come before.
RETRY_AFTER = 1.5

# The one periodic job: each tick has to make one job, and one that was missed is caught up with.
TICKS, TICK, TENANT_OF_TICKS = "storm.tick", 1.0, "acme"

app = App("storm", task_routes={"storm.heavy.*": "heavy"})


@functools.cache
def history() -> History:
    return History(Path(os.environ[HISTORY]))


@functools.cache
def outside() -> Outside:
    return Outside(Path(os.environ[OUTSIDE]), history())


@contextmanager
def told(ctx: Context) -> Iterator[None]:
    """Tell of the body's beginning and of its end, whichever it is."""
    facts = {"job": str(ctx.job_id), "attempt": ctx.attempt, "pid": os.getpid(), "kind": ctx.task}
    history().tell("began", **facts)
    try:
        yield
    except BaseException as error:
        history().tell("finished", text=type(error).__name__, **facts)
        raise
    history().tell("finished", status="returned", **facts)


def die(ctx: Context, how: str = "kill") -> NoReturn:
    """End this process as a crash does."""
    history().tell("dying", job=str(ctx.job_id), attempt=ctx.attempt, pid=os.getpid(), text=how)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    os._exit(OWN_EXIT)


# -- ordinary ones ----------------------------------------------------------------------------


@app.task(name="storm.instant")
async def instant(n: int, *, ctx: Context) -> int:
    with told(ctx):
        return n


@app.task(name="storm.slow")
async def slow(seconds: float, *, ctx: Context) -> int:
    """Like all that take their time, it returns its attempt: a stale owner's word would show."""
    with told(ctx):
        for part in range(10):
            await asyncio.sleep(seconds / 10)
            await ctx.progress(done=part + 1, total=10, step=f"part {part + 1}")
        return ctx.attempt


@app.task(name="storm.heavy.thread")
def thread(seconds: float, *, ctx: Context) -> int:
    with told(ctx):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.05)
            ctx.check()
        return ctx.attempt


@app.task(name="storm.heavy.process", pool="process")
def process(seconds: float, *, ctx: Context) -> int:
    with told(ctx):
        time.sleep(seconds)
        return ctx.attempt


@app.periodic(TICK, misfire="all(1000)", tenant=TENANT_OF_TICKS, name=TICKS)
@app.task(name=TICKS)
async def tick(*, ctx: Context) -> int:
    with told(ctx):
        return ctx.attempt


# -- errors and retries -----------------------------------------------------------------------


@app.task(name="storm.flaky", autoretry_for=(TransientError,), retry_backoff=0.2)
async def flaky(failures: int, *, ctx: Context) -> int:
    with told(ctx):
        if ctx.attempt <= failures:
            raise TransientError(f"not at attempt {ctx.attempt}")
        return ctx.attempt


@app.task(name="storm.again")
async def again(times: int, *, ctx: Context) -> int:
    with told(ctx):
        if ctx.attempt <= times:
            raise Retry("later", after=RETRY_AFTER)
        return ctx.attempt


@app.task(name="storm.failing")
async def failing(*, ctx: Context) -> None:
    with told(ctx):
        raise ValueError("no good")


# -- crashes ----------------------------------------------------------------------------------


@app.task(name="storm.heavy.crash", pool="process")
def crash(times: int, how: str, *, ctx: Context) -> int:
    with told(ctx):
        if ctx.attempt <= times:
            die(ctx, how)
        return ctx.attempt


@app.task(name="storm.crash_worker")
async def crash_worker(times: int, how: str, *, ctx: Context) -> int:
    with told(ctx):
        await asyncio.sleep(0.05)
        if ctx.attempt <= times:
            die(ctx, how)
        return ctx.attempt


@app.task(name="storm.block")
async def block(seconds: float, *, ctx: Context) -> int:
    with told(ctx):
        time.sleep(seconds)  # noqa: ASYNC251 - a body that blocks the loop is what is wanted
        return ctx.attempt


@app.task(name="storm.stuck", soft_time_limit=None, time_limit=STUCK_LIMIT)
async def stuck(*, ctx: Context) -> None:
    with told(ctx):
        time.sleep(STUCK_FOR)  # noqa: ASYNC251


# -- chains -----------------------------------------------------------------------------------


@app.task(name="storm.first")
async def first(name: str, *, ctx: Context) -> list[str]:
    with told(ctx):
        await asyncio.sleep(random.random() * 0.2)
        return [name]


@app.task(name="storm.link")
async def link(before: list[str], name: str, *, ctx: Context) -> list[str]:
    with told(ctx):
        return [*before, name]


@app.task(name="storm.heavy.link")
def heavy_link(before: list[str], name: str, *, ctx: Context) -> list[str]:
    with told(ctx):
        time.sleep(0.1)
        return [*before, name]


# -- effects ----------------------------------------------------------------------------------


@app.task(name="storm.book", autoretry_for=(TransientError,), retry_backoff=0.2)
async def book(n: int, how: str, *, ctx: Context) -> str:
    """Business rows and outcome in one commit. `how` says what goes wrong, at attempt 1."""
    troubled = ctx.attempt == 1
    with told(ctx):
        async with ctx.transaction() as connection:
            await connection.execute(
                "INSERT INTO storm.effects (job_id, attempt) VALUES ($1, $2)",
                ctx.job_id,
                ctx.attempt,
            )
            history().tell("effect", job=str(ctx.job_id), attempt=ctx.attempt, pid=os.getpid())
            if troubled and how == "raise":
                raise TransientError("after the row, before the commit")
            if troubled and how == "die inside":
                die(ctx)
            if how == "linger":
                await asyncio.sleep(2.0)
            ctx.set_result({"booked": n})
        if troubled and how == "die after":
            die(ctx)
        if how == "raise after":
            raise ValueError("too late to matter")
        return "what is returned after the commit does not matter"


@app.task(name="storm.pay", autoretry_for=(TransientError,), retry_backoff=0.2)
async def pay(how: str, asks: bool, *, ctx: Context) -> dict[str, str]:
    """Two steps outside; the second one meets what `how` says, at attempt 1."""
    with told(ctx):
        reserved = await ctx.step("reserve", _apply, ctx, "reserve", "")
        await asyncio.sleep(random.random() * 0.3)
        if asks:
            find = functools.partial(_find, ctx)
            charged = await ctx.step("charge", _apply_slowly, ctx, "charge", how, reconcile=find)
        else:
            charged = await ctx.step("charge", _apply_slowly, ctx, "charge", how)
        return {"reserve": reserved, "charge": charged}


@app.task(name="storm.heavy.pay_thread", autoretry_for=(TransientError,), retry_backoff=0.2)
def pay_thread(how: str, asks: bool, *, ctx: Context) -> dict[str, str]:
    return _pay_sync(ctx, how, asks)


@app.task(
    name="storm.heavy.pay_process",
    pool="process",
    autoretry_for=(TransientError,),
    retry_backoff=0.2,
)
def pay_process(how: str, asks: bool, *, ctx: Context) -> dict[str, str]:
    return _pay_sync(ctx, how, asks)


def _pay_sync(ctx: Context, how: str, asks: bool) -> dict[str, str]:
    with told(ctx):
        reserved = ctx.step_sync("reserve", _apply, ctx, "reserve", "")
        time.sleep(random.random() * 0.3)
        if asks:
            find = functools.partial(_find, ctx)
            charged = ctx.step_sync("charge", _apply, ctx, "charge", how, reconcile=find)
        else:
            charged = ctx.step_sync("charge", _apply, ctx, "charge", how)
        return {"reserve": reserved, "charge": charged}


def _apply(ctx: Context, step: str, how: str) -> str:
    troubled = ctx.attempt == 1
    if troubled and how == "raise before":
        raise TransientError("nothing was done")
    receipt = outside().apply(ctx.idempotency_key(step), str(ctx.job_id), ctx.attempt)
    if troubled and how == "raise after":
        raise TransientError("done, and the answer was lost")
    if troubled and how == "die after":
        die(ctx)
    return receipt


async def _apply_slowly(ctx: Context, step: str, how: str) -> str:
    await asyncio.sleep(random.random() * 0.3)
    return _apply(ctx, step, how)


def _find(ctx: Context, token: str) -> str | NotDone:
    return outside().find(token, str(ctx.job_id), ctx.attempt)
