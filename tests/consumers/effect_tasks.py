"""Tasks that take effect outside: in a file, a line each, so that it outlives a kill."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

from lateack import NOT_DONE, App, Context, PermanentError, Retry

app = App("effects", default_queue="q")


def lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def charge(path: str, token: str) -> dict[str, Any]:
    """The outside system: takes effect each time it is called."""
    with Path(path).open("a") as file:
        file.write(f"charged {token}\n")
    return {"receipt": token}


async def charge_async(path: str, token: str) -> dict[str, Any]:
    return charge(path, token)


def charge_and_die(path: str, token: str) -> dict[str, Any]:
    """It took effect, and nobody lived to tell."""
    first = not lines(path)
    receipt = charge(path, token)
    if first:
        os.kill(os.getpid(), signal.SIGKILL)
    return receipt


def charge_and_raise(path: str, token: str) -> dict[str, Any]:
    charge(path, token)
    raise TimeoutError("no answer")


@app.task
async def charges_then_retries(path: str, *, ctx: Context) -> Any:
    receipt = await ctx.step("charge", charge_async, path, ctx.idempotency_key("charge"))
    if ctx.attempt == 1:
        raise Retry("later", after=0.05)
    return receipt


@app.task
def thread_charges_then_retries(path: str, *, ctx: Context) -> Any:
    receipt = ctx.step_sync("charge", charge, path, ctx.idempotency_key("charge"))
    if ctx.attempt == 1:
        raise Retry("later", after=0.05)
    return receipt


@app.task(pool="process")
def process_charges_then_retries(path: str, *, ctx: Context) -> Any:
    receipt = ctx.step_sync("charge", charge, path, ctx.idempotency_key("charge"))
    if ctx.attempt == 1:
        raise Retry("later", after=0.05)
    return receipt


@app.task(pool="process")
def dies_in_doubt(path: str, reconciled: bool, *, ctx: Context) -> Any:
    def ask(token: str) -> Any:
        found = f"charged {token}" in lines(path)
        return {"receipt": token, "found": True} if found else NOT_DONE

    token = ctx.idempotency_key("charge")
    if reconciled:
        return ctx.step_sync("charge", charge_and_die, path, token, reconcile=ask)
    return ctx.step_sync("charge", charge_and_die, path, token)


@app.task
async def raises_in_doubt(path: str, *, ctx: Context) -> Any:
    async def ask(token: str) -> Any:
        raise PermanentError(f"ask the bank about {token}")

    try:
        await ctx.step("charge", charge_and_raise, path, ctx.idempotency_key("c"), reconcile=ask)
    except TimeoutError as error:
        raise Retry("again", after=0.05) from error


@app.task
async def uses_a_name_twice(path: str, *, ctx: Context) -> None:
    for number in range(2):
        await ctx.step("charge", charge, path, str(number))


@app.task
async def keeps_what_is_no_json(*, ctx: Context) -> None:
    await ctx.step("odd", object)


@app.task
async def sees_json_the_first_time(*, ctx: Context) -> Any:
    return [await ctx.step("pair", lambda: (1, 2)), await ctx.step("none", lambda: None)]


@app.task
async def slow_step(path: str, seconds: float, *, ctx: Context) -> Any:
    async def charge_slowly() -> str:
        charge(path, f"attempt-{ctx.attempt}")
        await asyncio.sleep(seconds if ctx.attempt == 1 else 0)
        return f"of attempt {ctx.attempt}"

    return await ctx.step("charge", charge_slowly)


@app.task(pool="process", soft_time_limit=1.0, time_limit=60)
def many_steps(number: int, *, ctx: Context) -> int:
    done = 0
    try:
        while True:
            done += ctx.step_sync(f"step-{done}", lambda: 1)
    finally:
        assert done > number, done


@app.task(pool="process")
def waits_then_charges(path: str, release: str, *, ctx: Context) -> Any:
    with Path(path).open("a") as file:
        file.write(f"pid {os.getpid()}\n")
    while ctx.attempt == 1 and not Path(release).exists():
        time.sleep(0.02)
    return ctx.step_sync("charge", charge, path, ctx.idempotency_key("charge"))


@app.task(soft_time_limit=None, time_limit=1.0)
async def outlasts_its_limit(path: str, seconds: float) -> str:
    charge(path, "started")
    await asyncio.sleep(seconds)
    charge(path, "returned")
    return "late"


@app.task(max_retries=5)
async def books(amount: int, *, ctx: Context) -> str:
    async with ctx.transaction() as connection:
        await connection.execute("INSERT INTO bookings VALUES ($1, $2)", ctx.job_id, amount)
        ctx.set_result({"booked": amount})
    return "what comes after the commit is not heard"


@app.task
async def books_and_raises(*, inside: bool, ctx: Context) -> None:
    async with ctx.transaction() as connection:
        await connection.execute("INSERT INTO bookings VALUES ($1, 1)", ctx.job_id)
        if inside:
            raise ValueError("inside")
    raise ValueError("outside")


@app.task
async def books_slowly(path: str, seconds: float, *, ctx: Context) -> None:
    async with ctx.transaction() as connection:
        await connection.execute("INSERT INTO bookings VALUES ($1, $2)", ctx.job_id, ctx.attempt)
        charge(path, f"inside {ctx.attempt}")
        if ctx.attempt == 1:
            time.sleep(seconds)  # noqa: ASYNC251  (nothing renews, nothing is cancelled)
        ctx.set_result(ctx.attempt)


@app.task
async def books_then_lingers(path: str, *, ctx: Context) -> None:
    async with ctx.transaction() as connection:
        await connection.execute("INSERT INTO bookings VALUES ($1, 1)", ctx.job_id)
    charge(path, "committed")
    await asyncio.sleep(4)
    charge(path, "lingered")


@app.task
async def books_what_is_refused_at_commit(*, ctx: Context) -> None:
    async with ctx.transaction() as connection:
        await connection.execute("INSERT INTO bookings VALUES ($1, -1)", ctx.job_id)


@app.task
async def books_no_json(*, ctx: Context) -> None:
    async with ctx.transaction() as connection:
        await connection.execute("INSERT INTO bookings VALUES ($1, 1)", ctx.job_id)
        ctx.set_result(object())


@app.task
async def leaves_its_session_odd(*, ctx: Context) -> None:
    async with ctx.transaction() as connection:
        await connection.execute("SET search_path = nowhere")
        ctx.set_result(await connection.fetchval("SHOW search_path"))


@app.task
async def shows_its_session(*, ctx: Context) -> None:
    async with ctx.transaction() as connection:
        ctx.set_result(await connection.fetchval("SHOW search_path"))


@app.task
async def breaks_its_connection(path: str, *, ctx: Context) -> None:
    charge(path, f"attempt {ctx.attempt}")
    async with ctx.transaction() as connection:
        await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")


@app.task
def thread_books(*, ctx: Context) -> None:
    ctx.transaction()


@app.task
async def submits_inside(*, ctx: Context) -> None:
    async with ctx.transaction() as connection:
        child = await connection.fetchval(
            "SELECT lateack.submit('tests.consumers.effect_tasks.books', '[7]')"
        )
        ctx.set_result(str(child))
