"""What a body's end means: a result that can be stored, or an error and whether to try again."""

from __future__ import annotations

import traceback
from datetime import UTC, datetime
from typing import Any

import msgspec

from lateack.arguments import unfit_value
from lateack.models import MAX_RESULT_BYTES
from lateack.tasks import Task

MAX_CODE = 100
MAX_MESSAGE = 1_000
MAX_TRACE = 4_000
MIB = 1024 * 1024

_encode = msgspec.json.Encoder().encode


class Verdict(msgspec.Struct, omit_defaults=True):
    """How a body ended. `result` is JSON text; without a `code` it is a success.

    `retry_after` is seconds until the next attempt, None when there shall be none.
    """

    result: str | None = None
    code: str | None = None
    message: str = ""
    info: dict[str, Any] = {}
    retry_after: float | None = None


def of_value(task: Task[..., Any], value: Any, *, ignore_result: bool) -> Verdict:
    """The verdict on what a body returned. What cannot be stored fails the job at once: running the
    body again would return it again (PAY-02, PAY-03, PAY-04)."""
    if ignore_result or task.declared.ignore_result:
        return Verdict()
    try:
        encoded = _encode(value)
        reason = unfit_value(msgspec.json.decode(encoded)) or unfit_value(value)
    except Exception as error:
        # A foreign object's own encoding may raise anything.
        return _failure("InvalidResult", f"the result cannot be stored as JSON: {_words(error)}")
    if reason:
        return _failure("InvalidResult", f"the result {reason}")
    if len(encoded) > MAX_RESULT_BYTES:
        return _failure(
            "ResultTooLarge",
            f"the result has {len(encoded)} bytes of JSON, {MAX_RESULT_BYTES} are allowed; store "
            "it elsewhere and return a reference to it",
        )
    return Verdict(result=encoded.decode())


def of_error(task: Task[..., Any], error: BaseException, attempt: int) -> Verdict:
    """The verdict on what a body raised."""
    frames = "".join(traceback.format_exception(type(error), error, error.__traceback__)[-12:])
    verdict = _failure(type(error).__name__, _words(error))
    verdict.info["traceback"] = _clean(frames[-MAX_TRACE:])
    verdict.retry_after = task.declared.retry.after(error, attempt)
    return verdict


def of_bad_start(error: Exception) -> Verdict:
    """The verdict when the application cannot be loaded in a child process."""
    return _failure(type(error).__name__, f"the task's process could not start: {_words(error)}")


def of_past_limit(limit: float) -> Verdict:
    """The verdict when a body went on for longer than its hard limit, in seconds."""
    verdict = _failure("TimeLimitExceeded", f"the time limit of {limit:g} s was exceeded")
    verdict.info["time_limit"] = limit
    return verdict


def of_overrun(used: int, limit: int) -> Verdict:
    """The verdict when a body used more memory than it may, both in bytes. It is the job's own
    doing and would happen again, so there is no further attempt."""
    verdict = _failure(
        "MemoryLimitExceeded",
        f"the body used {used / MIB:.0f} MiB of memory, {limit / MIB:.0f} MiB are allowed",
    )
    verdict.info |= {"memory_limit": limit / MIB, "memory_used": round(used / MIB, 1)}
    return verdict


def of_refused(error: Exception) -> Verdict:
    """The verdict when the ledger cannot store what a body's end would be."""
    return _failure("InvalidOutcome", f"the outcome cannot be stored: {_words(error)}")


def of_bad_arguments(reason: str) -> Verdict:
    """The verdict when the arguments do not fit the code that this worker has."""
    return _failure("InvalidArguments", reason)


def _failure(code: str, message: str) -> Verdict:
    code, message = _shortened(code, MAX_CODE), _shortened(message, MAX_MESSAGE)
    at = datetime.now(UTC).isoformat()
    return Verdict(code=code, message=message, info={"type": code, "timestamp": at})


def _shortened(text: str, limit: int) -> str:
    text = _clean(text[: 4 * limit])
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _words(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__


def _clean(text: str) -> str:
    """Text that PostgreSQL can hold: no NUL, no half of a surrogate pair (PAY-01)."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")
