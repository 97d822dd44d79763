"""Waiting for another job inside of a task's body: refused, unless one asks for it.

A body that waits holds its slot. When every slot is held by a body that waits for a job which has
none, all stand still for ever, without a word (DEL-11).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from .errors import WaitInsideTask

P = ParamSpec("P")
R = TypeVar("R")

# The task whose body this is, as long as it may not wait.
_body: ContextVar[str | None] = ContextVar("lateack_body", default=None)


def as_body(function: Callable[P, R], task: str) -> Callable[P, R]:
    """The function as a worker calls it, on its loop, in a thread or in a child process."""

    @functools.wraps(function)
    def body(*args: P.args, **kwargs: P.kwargs) -> R:
        # The context is the job's own: its asyncio task, its thread, its process.
        _body.set(task)
        return function(*args, **kwargs)

    return body


@contextmanager
def waiting_allowed() -> Iterator[None]:
    """Let a task's body wait for other jobs, which must be sure to get a slot elsewhere.

    Such as jobs of another queue, with workers of its own, that wait for nothing themselves; and
    give the wait a `timeout`, so that it ends.

        with waiting_allowed():
            total = await jobs.result(part, timeout=60)
    """
    before = _body.set(None)
    try:
        yield
    finally:
        _body.reset(before)


def refuse_to_wait() -> None:
    """Called before anything waits for a job.

    Raises:
        WaitInsideTask: this is a task's body.
    """
    if (task := _body.get()) is not None:
        raise WaitInsideTask(
            f"{task} waits for another job while it holds a slot: once every slot is held by a "
            "body that waits, nothing runs any more. Chain them instead (lateack.chain, or then=), "
            "or enqueue what comes next at the end of this body. If the other job is sure to get "
            "a slot elsewhere: with lateack.waiting_allowed(): …"
        )
