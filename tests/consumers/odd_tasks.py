"""Tasks that return, raise and report what nobody can store, on each kind of pool."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from lateack import INJECTED, App, Context

app = App("odd", default_queue="odd")


class Unprintable(Exception):
    """Its words raise."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Unpicklable(Exception):
    """It holds what cannot leave the process."""

    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class Endless:
    """An object that contains itself."""

    def __init__(self) -> None:
        self.itself = self


def _returned(kind: str) -> Any:
    circle: list[Any] = []
    circle.append(circle)
    values: dict[str, Any] = {
        "infinite": {"total": float("inf"), "rows": 3},
        "half a pair": "\ud800",
        "a circle": circle,
        "a stranger": {"lock": threading.Lock()},
        "endless": Endless(),
        "huge": "x" * 3_000_000,
        "a big number": 2**63 + 1,
        "a NUL": "a\x00b",
    }
    return values[kind]


def _raised(kind: str) -> Exception:
    errors: dict[str, Exception] = {
        "unprintable": Unprintable(),
        "unpicklable": Unpicklable(),
        "long": ValueError("x" * 5_000_000),
        "NUL": ValueError("a\x00b\ud800"),
    }
    return errors[kind]


@app.task(name="odd.loop")
async def on_loop(way: str, kind: str) -> Any:
    await asyncio.sleep(0)
    if way == "raise":
        raise _raised(kind)
    return _returned(kind)


@app.task(name="odd.thread")
def in_thread(way: str, kind: str) -> Any:
    if way == "raise":
        raise _raised(kind)
    return _returned(kind)


@app.task(name="odd.process", pool="process")
def in_process(way: str, kind: str) -> Any:
    if way == "raise":
        raise _raised(kind)
    return _returned(kind)


@app.task(name="odd.loud")
async def loud(*, ctx: Context = INJECTED) -> str:
    for number in range(20):
        ctx.progress(number, step="s" * 1_000_000, message=f"{number}" + "m" * 2_000_000)
        await asyncio.sleep(0.05)
    return "done"
