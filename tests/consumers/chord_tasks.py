"""Tasks for chords: members that take a moment, and a body that leaves a line each time it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from lateack import App, Context

app = App("chords", default_queue="q")


@app.task
async def number(value: int) -> int:
    return value


@app.task(max_retries=20)
async def member(start: int, value: int) -> int:
    await asyncio.sleep(0.3)
    return start + value


@app.task(max_retries=20)
async def total(values: list[int], path: str, *, ctx: Context) -> int:
    with Path(path).open("a") as file:  # noqa: ASYNC230  (a line, in a moment)
        file.write(f"{ctx.job_id} {ctx.attempt} {len(values)}\n")
    return sum(values)


@app.task
async def after(value: int) -> list[int]:
    return [value]
