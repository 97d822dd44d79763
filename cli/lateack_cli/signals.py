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


# What a supervisor sees of a worker whose loop a task brought down (EX_SOFTWARE).
LOOP_BROUGHT_DOWN = 70


class Interrupted(Exception):
    """An event came before the result did."""


def run(body: Body, *, uvloop: bool = True, hosts_tasks: bool = False) -> None:
    """Run `body` and end the process with its exit code.

    A process that `hosts_tasks` runs code that may do anything to the event loop; see `_host`.

    Raises:
        Trouble: a setting or a server has to change, or the database cannot be reached.
    """
    from lateack_core.postgres import LedgerUnavailable, LedgerUnfit
    from lateack_core.stream import BrokerUnfit

    try:
        runner = _host if hosts_tasks else _runner() if uvloop else asyncio.run
        code = runner(_guided(body))
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


def _host(main: Coroutine[Any, Any, int]) -> int:
    """Run a loop that a task's body may bring down, by a SystemExit in a task of its own making.

    The usual end of a loop would cancel every other job, as if it had cancelled itself, and wait
    for those that ignore it, with their leases renewed all the while. So the process ends at once,
    as by a kill: its leases run out, and others take over.
    """
    loop = _new_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    except Exception:
        raise
    except BaseException as error:
        logging.getLogger("lateack.worker").critical(
            "the event loop was brought down by %r; this worker ends", error
        )
        leave(LOOP_BROUGHT_DOWN)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _runner() -> Callable[[Coroutine[Any, Any, int]], int]:
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run
