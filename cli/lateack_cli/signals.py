"""From signals to events: the first asks for an orderly stop, the second for haste.

In Celery's words, for `lateack worker`: SIGTERM or SIGINT is a warm shutdown, the second of them a
soft one, SIGQUIT a cold one; docs/shutdown.md says what each does. `lateack up` passes them on to
its workers. Verbs that run no bodies take SIGQUIT as a second SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn, TypeVar

from lateack.errors import DeclarationError
from lateack_cli.trouble import MUST_CHANGE, UNREACHABLE, Trouble

T = TypeVar("T")

# What a verb that runs until it is told to stop does, given `stop` and `hurry`; its exit code.
Body = Callable[[asyncio.Event, asyncio.Event], Coroutine[Any, Any, int]]


ASKED_BY = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)

# What a supervisor sees of a worker whose loop a task brought down (EX_SOFTWARE).
LOOP_BROUGHT_DOWN = 70


class Interrupted(Exception):
    """An event came before the result did."""


def run(
    body: Body,
    *,
    uvloop: bool = True,
    hosts_tasks: bool = False,
    at_once: asyncio.Event | None = None,
) -> None:
    """Run `body` and end the process with its exit code.

    A process that `hosts_tasks` runs code that may do anything to the event loop; see `_host`. It
    says by `on_quit` what SIGQUIT does; elsewhere that sets both events of `body`, and `at_once`.

    Raises:
        Trouble: a setting or a server has to change, or the database cannot be reached.
    """
    from lateack_core.postgres import LedgerUnavailable, LedgerUnfit
    from lateack_core.stream import BrokerUnfit

    try:
        runner = _host if hosts_tasks else _runner() if uvloop else asyncio.run
        if hosts_tasks:
            on_quit(lambda: 0)
        code = runner(_guided(body, None if hosts_tasks else at_once or asyncio.Event()))
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


def on_quit(call: Callable[[], int]) -> None:
    """From now on SIGQUIT calls `call` and ends the process with the exit code that it returns.

    It is called on the main thread at whatever point that is, also in the middle of a body that
    blocks the event loop, and nothing goes on there afterwards.
    """

    def end(number: int, frame: object) -> NoReturn:
        code = LOOP_BROUGHT_DOWN
        try:
            code = call()
        finally:
            # The interrupted code may hold a lock of the log: no leave() here.
            os._exit(code)

    signal.signal(signal.SIGQUIT, end)


async def _guided(body: Body, at_once: asyncio.Event | None) -> int:
    stop, hurry = asyncio.Event(), asyncio.Event()

    def asked() -> None:
        (hurry if stop.is_set() else stop).set()

    def told(at_once: asyncio.Event) -> None:
        for event in (at_once, hurry, stop):
            event.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked)
    if at_once is not None:
        loop.add_signal_handler(signal.SIGQUIT, told, at_once)
    _keep_from_copies()
    return await body(stop, hurry)


def _keep_from_copies() -> None:
    """A signal to a copy of this process that a body forks, as multiprocessing does, is not one to
    this process: the copy gets the usual handling back.

    It would share the pipe by which the event loop hears of signals. They are held from before the
    fork until that is mended, since the copy may be signalled at once.
    """
    held = threading.local()

    def before() -> None:
        held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ASKED_BY)

    def in_copy() -> None:
        with contextlib.suppress(ValueError):
            signal.set_wakeup_fd(-1)
            for number in ASKED_BY:
                signal.signal(number, signal.SIG_DFL)
        after()

    def after() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, held.mask)

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=in_copy)


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
