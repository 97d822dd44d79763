"""One call to the service and its retries, without any input or output.

A *script* is a generator that says what to do next, `Send` or `Pause`, and is told what came of it.
The two clients differ only in how they carry a script out, so each rule below is written once.

Every call of ours may be repeated: reads and cancels by nature, submissions because they carry a
key (CLI-01). What is repeated: lost connections and lost replies, 429 and 503 after the time they
ask for, 408, 425, 502 and 504, and other server errors of reads. All within the budget (CLI-04).
"""

from __future__ import annotations

import random
import time
from collections.abc import Generator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from .errors import (
    Busy,
    ClientError,
    Conflict,
    InvalidRequest,
    NotAllowed,
    NotFound,
    Problem,
    Unreachable,
)

T = TypeVar("T")

FIRST_PAUSE = 0.1  # seconds, doubled at each retry
LONGEST_PAUSE = 5.0
# One attempt may take this long, or half the budget: a reply that got lost is asked for again.
SHORTEST_ATTEMPT = 5.0
# A read that fails inside the service may work the next time, but not for ever.
MOST_FAILED_READS = 3

_GATEWAY = frozenset({408, 425, 502, 504})
_BUSY = frozenset({429, 503})
_CLASSES: dict[int, type[Problem]] = {
    **dict.fromkeys((400, 413, 415, 422), InvalidRequest),
    **dict.fromkeys((401, 403), NotAllowed),
    404: NotFound,
    409: Conflict,
    **dict.fromkeys(_BUSY, Busy),
}


class Call(NamedTuple):
    """A request. `path` is quoted, below the service's URL; `slow` is how many seconds the service
    may take by our own wish (a long poll)."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    slow: float = 0.0


class Reply(NamedTuple):
    """An answer of any status. The names of `headers` compare without case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Lost(NamedTuple):
    """No answer; whether the service saw the request is not known."""

    reason: str


class Send(NamedTuple):
    """Send this, and wait for the whole reply so many seconds at most."""

    call: Call
    timeout: float


class Pause(NamedTuple):
    """Wait so many seconds."""

    seconds: float


Script: TypeAlias = Generator[Send | Pause, Reply | Lost | None, T]


class Budget:
    """Seconds that may be spent from now on."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._end - time.monotonic()


def exchange(call: Call, budget: Budget) -> Script[Reply]:
    """A successful reply to `call`.

    Raises:
        Problem: the service refused; the subclass says in which way.
        Unreachable: it gave no answer within the budget.
    """
    retries = 0
    while True:
        attempt = call.slow + max(SHORTEST_ATTEMPT, budget.seconds / 2)
        outcome = yield Send(call, max(0.05, min(budget.left, attempt)))
        assert outcome is not None
        if isinstance(outcome, Reply) and 200 <= outcome.status < 300:
            return outcome
        pause = pause_before_retry(call, outcome, retries)
        if pause is None or pause >= budget.left:
            raise error_of(outcome)
        yield Pause(pause)
        retries += 1


def pause_before_retry(call: Call, outcome: Reply | Lost, retries: int) -> float | None:
    """Seconds until the next try, or None when trying again is not safe or cannot help."""
    pause = backed_off(retries)
    if isinstance(outcome, Lost) or outcome.status in _GATEWAY:
        return pause
    if outcome.status in _BUSY:
        asked = retry_after(outcome)
        # A little later than asked, so that those who were refused together do not return together.
        return pause if asked is None else asked + random.uniform(0, min(1.0, 0.1 + asked / 10))
    if outcome.status >= 500 and call.method == "GET" and retries + 1 < MOST_FAILED_READS:
        return pause
    return None


def backed_off(retries: int) -> float:
    """Seconds to wait after so many retries: doubled each time, jittered."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(retries, 30)) * random.uniform(0.5, 1.0)


def error_of(outcome: Reply | Lost) -> ClientError:
    """The error that stands for an outcome that is no success."""
    if isinstance(outcome, Lost):
        return Unreachable(f"no answer from the service: {outcome.reason}")
    if outcome.status in _GATEWAY:
        return Unreachable(f"no answer from the service: a gateway says {outcome.status}")
    document = _document(outcome.body)
    detail = document.get("detail") or document.get("title") or "no reason given"
    if 300 <= outcome.status < 400:
        detail = "the service redirects; give the client the URL that it redirects to"
    return _CLASSES.get(outcome.status, Problem)(
        outcome.status,
        str(document.get("type") or "about:blank"),
        str(detail),
        retry_after=retry_after(outcome),
        document=document,
    )


def is_final(reply: Reply) -> bool:
    """Whether this refusal will be the same the next time."""
    return 300 <= reply.status < 500 and reply.status not in _GATEWAY | _BUSY


def retry_after(reply: Reply) -> float | None:
    """Seconds of the Retry-After header (a number or a date), or else of the problem document."""
    text = reply.headers.get("retry-after")
    if text is None:
        given = _document(reply.body).get("retry_after")
        return max(0.0, float(given)) if isinstance(given, int | float) else None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())


def decoded(reply: Reply, type_: type[T]) -> T:
    """The reply's body as a `type_`.

    Raises:
        Problem: it is something else, such as the page of a proxy.
    """
    try:
        return msgspec.json.decode(reply.body, type=type_)
    except msgspec.MsgspecError as error:
        raise Problem(
            reply.status, "about:blank", f"this is no answer of a lateack service: {error}"
        ) from error


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    return document if isinstance(document, dict) else {}
