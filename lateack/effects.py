"""Effects that are taken once, however often a body runs: what a context asks of its worker.

A step is begun in the ledger, run, and its result recorded. Later attempts of the job get that
result instead of running it again. What is left is the one moment that nobody can close from here:
a worker that dies after the outside took effect and before the record. Such a step is in doubt;
the next attempt meets it and asks `reconcile`, or runs it again under the same token.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

import msgspec

from .arguments import unfit_value
from .errors import InvalidResult, LeaseLost, ResultTooLarge
from .models import MAX_RESULT_BYTES

if TYPE_CHECKING:
    import asyncpg

MAX_STEP_NAME = 200


class NotDone(enum.Enum):
    """The type of NOT_DONE."""

    NOT_DONE = "not done"


NOT_DONE: Final = NotDone.NOT_DONE
"""What a `reconcile` function returns when the outside system knows nothing of the step."""


class Move(msgspec.Struct, frozen=True):
    """What is asked of the ledger. `text` is the result as JSON (end) or the error (leave)."""

    kind: Literal["begin", "repeat", "end", "leave"]
    name: str
    text: str = ""


class Found(msgspec.Struct, frozen=True):
    """The ledger's answer. `held` is false when the job is not this attempt's any more."""

    held: bool
    done: bool = False
    doubt: bool = False
    result: str | None = None


class Effects(Protocol):
    """Where a context's effects go."""

    async def move(self, move: Move) -> Found:
        """Write to the ledger, for as long as it takes to be answered. For async tasks."""
        ...

    def move_sync(self, move: Move) -> Found:
        """The same, waiting in the calling thread. For def tasks."""
        ...

    def transaction(
        self, result: Callable[[], Any]
    ) -> AbstractAsyncContextManager[asyncpg.Connection]:
        """A transaction whose commit is the job's success; `result` gives what it returns."""
        ...


class Call(NamedTuple):
    """Something of the task's own that is to be called."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


Course = Generator[Move | Call, Any, Any]


def course(name: str, key: str, call: Call, reconcile: Callable[..., Any] | None) -> Course:
    """A step from its beginning to its result, told as what has to be done next.

    Written once for async and for def tasks: `run` and `run_sync` do what it asks for.

    Raises:
        LeaseLost, InvalidResult, and whatever the step's function and `reconcile` raise.
    """
    found: Found = _held(name, (yield Move("begin", name)))
    if found.done:
        return msgspec.json.decode(found.result or "null")
    if found.doubt:
        if reconcile is not None:
            known = yield Call(reconcile, (key,), {})
            if known is not NOT_DONE:
                return (yield from _end(name, known))
        _held(name, (yield Move("repeat", name)))
    try:
        value = yield call
    except Exception as error:
        yield Move("leave", name, _words(error))
        raise
    return (yield from _end(name, value))


def _end(name: str, value: Any) -> Course:
    """Record the result. What is returned went through JSON, as later attempts will get it."""
    try:
        text = _stored(name, value)
    except InvalidResult as error:
        yield Move("leave", name, _words(error))
        raise
    _held(name, (yield Move("end", name, text)))
    return msgspec.json.decode(text)


async def run(steps: Course, effects: Effects) -> Any:
    """Follow a course in an async task; the functions called may be async or not."""
    asked = next(steps)
    try:
        while True:
            try:
                if isinstance(asked, Move):
                    answer: Any = await effects.move(asked)
                else:
                    answer = asked.function(*asked.args, **asked.kwargs)
                    if inspect.isawaitable(answer):
                        answer = await answer
            except BaseException as error:
                asked = steps.throw(error)
            else:
                asked = steps.send(answer)
    except StopIteration as end:
        return end.value


def run_sync(steps: Course, effects: Effects) -> Any:
    """Follow a course in a def task."""
    asked = next(steps)
    try:
        while True:
            try:
                if isinstance(asked, Move):
                    answer: Any = effects.move_sync(asked)
                else:
                    answer = asked.function(*asked.args, **asked.kwargs)
            except BaseException as error:
                asked = steps.throw(error)
            else:
                asked = steps.send(answer)
    except StopIteration as end:
        return end.value


def _held(name: str, found: Found) -> Found:
    if not found.held:
        raise LeaseLost(f"step {name!r}: this attempt does not own the job any more")
    return found


def _stored(name: str, value: Any) -> str:
    try:
        encoded = msgspec.json.encode(value)
        reason = unfit_value(msgspec.json.decode(encoded)) or unfit_value(value)
    except Exception as error:
        # A foreign object's own encoding may raise anything.
        raise InvalidResult(f"the result of step {name!r} is no JSON: {error}") from error
    if reason:
        raise InvalidResult(f"the result of step {name!r} {reason}")
    if len(encoded) > MAX_RESULT_BYTES:
        raise ResultTooLarge(
            f"the result of step {name!r} has {len(encoded)} bytes of JSON, {MAX_RESULT_BYTES} are "
            "allowed; store it elsewhere and return a reference to it"
        )
    return encoded.decode()


def _words(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"[:1_000]
    return text.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")


def unfit_name(name: str) -> str | None:
    """Why this cannot be a step's name, or None."""
    if not 0 < len(name) <= MAX_STEP_NAME:
        return f"a step's name is a text of 1 to {MAX_STEP_NAME} characters, not {name!r:.60}"
    reason = unfit_value(name)
    return reason and f"the step's name {reason}"
