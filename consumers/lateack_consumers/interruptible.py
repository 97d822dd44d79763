"""Raising an exception of our choice inside a running coroutine.

asyncio can only cancel: a task's body would see a bare CancelledError for its soft limit. Standing
between the event loop and the body, `Interruptible` turns the cancellation that it asked for into
the exception that it was given; cancellations by anyone else pass unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

R = TypeVar("R")


class Interruptible(Generic[R]):
    """Await it in place of the coroutine."""

    def __init__(self, body: Coroutine[Any, Any, R]) -> None:
        self._body = body
        self._task = asyncio.current_task()
        self._error: BaseException | None = None

    def interrupt(self, error: BaseException) -> None:
        """Raise `error` where the body waits; at its next wait when it runs right now."""
        if self._task is not None and not self._task.done():
            self._error = error
            self._task.cancel()

    def __await__(self) -> Generator[Any, Any, R]:
        return self

    def __iter__(self) -> Interruptible[R]:
        return self

    def __next__(self) -> Any:
        return self._body.send(None)

    def send(self, value: Any) -> Any:
        return self._body.send(value)

    def throw(self, kind: Any, value: Any = None, trace: Any = None) -> Any:
        error = kind if value is None else value
        if isinstance(error, type):
            error = error()
        ours, self._error = self._error, None
        if ours is not None and isinstance(error, asyncio.CancelledError):
            error = ours
            if self._task is not None:
                # It was not a cancellation of the task after all; time-outs inside count them.
                self._task.uncancel()
        elif ours is not None:
            self._error = ours
        return self._body.throw(error)

    def close(self) -> None:
        self._body.close()
