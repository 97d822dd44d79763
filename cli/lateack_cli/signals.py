"""From signals to events: the first asks for an orderly stop, the second for haste."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn, TypeVar

from lateack.errors import DeclarationError
from lateack_cli.trouble import MUST_CHANGE, UNREACHABLE, Trouble

T = TypeVar("T")

# What a verb that runs until it is told to stop does, given `stop` and `hurry`; its exit code.
Body = Callable[[asyncio.Event, asyncio.Event], Coroutine[Any, Any, int]]


class Interrupted(Exception):
    """An event came before the result did."""


def run(body: Body, *, uvloop: bool = True) -> None:
    """Run `body` and end the process with its exit code.

    Raises:
        Trouble: a setting or a server has to change, or the database cannot be reached.
    """
    from lateack_core.postgres import LedgerUnavailable, LedgerUnfit
    from lateack_core.stream import BrokerUnfit

    try:
        code = (_runner() if uvloop else asyncio.run)(_guided(body))
    except (DeclarationError, LedgerUnfit, BrokerUnfit) as error:
        raise Trouble(str(error), MUST_CHANGE) from None
    except LedgerUnavailable as error:
        raise Trouble(f"the database cannot be reached: {error}", UNREACHABLE) from None
    sys.exit(code)


async def unless(event: asyncio.Event, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when `event` is set before it is there.

    Raises:
        Interrupted: it was.
    """
    task = asyncio.ensure_future(work)
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
        raise Interrupted
    finally:
        waiting.cancel()
        task.cancel()


async def beside(
    stop: asyncio.Event, first: Coroutine[Any, Any, T], second: Coroutine[Any, Any, Any]
) -> T:
    """The result of `first`, once both have ended; the end of either asks the other to stop."""
    tasks = (asyncio.create_task(first), asyncio.create_task(second))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        await asyncio.wait(tasks)
    finally:
        for task in tasks:
            task.cancel()
    tasks[1].result()
    return tasks[0].result()


def leave(code: int) -> NoReturn:
    """End the process now, with everything said.

    The usual end of an event loop cancels what still runs and waits for it: a task's body that
    ignores cancellation would hold up the process for ever (SHD-05).
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _guided(body: Body) -> int:
    stop, hurry = asyncio.Event(), asyncio.Event()

    def asked() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked)
    return await body(stop, hurry)


def _runner() -> Callable[[Coroutine[Any, Any, int]], int]:
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run
