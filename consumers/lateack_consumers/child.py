"""A child of the process pool: it runs one body at a time and can be killed at any moment.

Frames of JSON go over a socket pair, each behind its length: `Order` in; `Began`, any number of
`Said` and one `Ended` out. Only between the first and the last of these may a signal be sent. A
body that takes a step sends an `Ask` and waits for the `Answer`. What the body prints goes where
the worker's own output goes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from types import FrameType
from typing import Any

import msgspec

from lateack.arguments import misfit
from lateack.context import Context, JobInfo
from lateack.effects import Found, Move
from lateack.errors import JobCancelled, SoftTimeLimitExceeded
from lateack.tasks import Task
from lateack_core.loading import load_app

from .verdict import Verdict, of_bad_arguments, of_bad_start, of_error, of_value

SOFT_LIMIT_SIGNAL = signal.SIGUSR1
CANCEL_SIGNAL = signal.SIGUSR2
# The worker merges to five a second; more than this would only fill the socket.
REPORT_INTERVAL = 0.05


# A frame that claims to be longer than this was not written by us.
LONGEST_FRAME = 64 * 1024 * 1024


class Order(msgspec.Struct, tag="order"):
    """A job to run. Every frame that answers carries its number."""

    number: int
    info: JobInfo
    args: list[Any]
    kwargs: dict[str, Any]
    ignore_result: bool
    soft_time_limit: float | None


class Answer(msgspec.Struct, tag="answer"):
    """What the ledger says to an `Ask`."""

    found: Found


class Began(msgspec.Struct, tag="began"):
    """The body starts: from here on it can be interrupted."""

    number: int


class Said(msgspec.Struct, tag="said"):
    """A report of the body."""

    number: int
    progress: float | None
    step: str | None
    message: str | None


class Ask(msgspec.Struct, tag="ask"):
    """A move of a step, for the ledger; the body waits for the answer."""

    number: int
    move: Move


class Ended(msgspec.Struct, tag="ended"):
    """The end of the body. With number 0: the application cannot be loaded here."""

    number: int
    verdict: Verdict


class Ready(msgspec.Struct, tag="ready"):
    """The child has loaded the application."""


FromChild = Began | Said | Ask | Ended | Ready


def write_frame(frame: Any) -> bytes:
    """A frame as bytes."""
    body = msgspec.json.encode(frame)
    return len(body).to_bytes(4) + body


_decode = msgspec.json.Decoder(Order | Answer).decode


class Link:
    """The child's end of the socket pair."""

    def __init__(self, descriptor: int) -> None:
        # Neither a program that a body starts nor a copy of this process that it forks may hold the
        # link: it would answer for jobs that are not its own, and hide the end of this process.
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._socket.close)

    @property
    def closed(self) -> bool:
        """Whether this is a forked copy, which has no link."""
        return self._socket.fileno() < 0

    def send(self, frame: FromChild) -> None:
        data = write_frame(frame)
        with self._lock:
            self._socket.sendall(data)

    def receive(self) -> Order | Answer | None:
        """The next frame, None when the worker has gone."""
        head = self._exactly(4)
        body = head and self._exactly(int.from_bytes(head))
        return _decode(body) if body else None

    def _exactly(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                return None
            data += part
        return data


class LinkReporter:
    """Sends reports over the link, the last one always."""

    def __init__(self, link: Link, number: int) -> None:
        self._link = link
        self._last = Said(number, None, None, None)
        self._sent_at = 0.0
        self._unsent = False

    def report(self, progress: float | None, step: str | None, message: str | None) -> None:
        before = self._last
        self._last = Said(
            before.number,
            before.progress if progress is None else progress,
            before.step if step is None else step,
            message,
        )
        self._unsent = True
        if time.monotonic() - self._sent_at >= REPORT_INTERVAL:
            self.flush()

    def interruption(self) -> BaseException | None:
        # Signals raise where the body is; there is nothing to meet here.
        return None

    def flush(self) -> None:
        if self._unsent:
            self._unsent = False
            self._sent_at = time.monotonic()
            self._link.send(self._last)


class _Interruptions:
    """Turns the worker's signals into exceptions inside the body, and only there."""

    def __init__(self) -> None:
        self.inside = False
        self.soft_limit: float | None = None
        self._held = False
        self._pending: BaseException | None = None
        signal.signal(SOFT_LIMIT_SIGNAL, self._soft)
        signal.signal(CANCEL_SIGNAL, self._cancel)

    def _soft(self, number: int, frame: FrameType | None) -> None:
        self._meet(SoftTimeLimitExceeded(self.soft_limit))

    def _cancel(self, number: int, frame: FrameType | None) -> None:
        self._meet(JobCancelled("interrupted by the worker"))

    def _meet(self, error: BaseException) -> None:
        if self._held:
            self._pending = error
        elif self.inside:
            raise error

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Interruptions wait until the end: half a frame would make nonsense of the link."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            pending, self._pending = self._pending, None
            if pending is not None:
                self._meet(pending)


class LinkEffects:
    """Asks the worker, which asks the ledger."""

    def __init__(self, link: Link, number: int, interruptions: _Interruptions) -> None:
        self._link = link
        self._number = number
        self._interruptions = interruptions
        # A body may take steps from threads of its own.
        self._turn = threading.Lock()

    async def move(self, move: Move) -> Found:
        raise TypeError("ctx.step() needs an async task on the event loop; here, ctx.step_sync()")

    def move_sync(self, move: Move) -> Found:
        with self._turn, self._interruptions.held():
            self._link.send(Ask(self._number, move))
            answer = self._link.receive()
        if not isinstance(answer, Answer):
            raise ConnectionError("the worker has gone")
        return answer.found

    def transaction(self, result: Callable[[], Any]) -> AbstractAsyncContextManager[Any]:
        raise TypeError("ctx.transaction() needs an async task on the event loop, not a process")


def run(order: Order, task: Task[..., Any], link: Link, interruptions: _Interruptions) -> Verdict:
    """Run one body and say how it ended."""
    if reason := misfit(task.parameters, order.args, order.kwargs):
        return of_bad_arguments(f"{task.name} {reason}")
    reporter = LinkReporter(link, order.number)
    kwargs = dict(order.kwargs)
    if task.context_name is not None:
        effects = LinkEffects(link, order.number, interruptions)
        kwargs[task.context_name] = Context(order.info, reporter, effects)
    interruptions.soft_limit = order.soft_time_limit
    try:
        interruptions.inside = True
        link.send(Began(order.number))
        value = task.function(*order.args, **kwargs)
        interruptions.inside = False
        verdict = of_value(task, value, ignore_result=order.ignore_result)
    except BaseException as error:
        interruptions.inside = False
        verdict = of_error(task, error, order.info.attempt)
    finally:
        interruptions.inside = False
    if not link.closed:
        reporter.flush()
    return verdict


def main() -> None:
    """Serve orders until the worker closes the link: `python -m lateack_consumers.child APP FD`."""
    _die_with_parent(int(sys.argv[3]))
    # Ctrl-C in a terminal reaches the worker, which decides what becomes of its children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    link = Link(int(sys.argv[2]))
    interruptions = _Interruptions()
    try:
        tasks = load_app(sys.argv[1]).tasks
    except Exception as error:
        link.send(Ended(0, of_bad_start(error)))
        return
    with contextlib.suppress(ConnectionError, BrokenPipeError):
        link.send(Ready())
        _serve(link, tasks, interruptions)


def _serve(link: Link, tasks: dict[str, Task[..., Any]], interruptions: _Interruptions) -> None:
    process = os.getpid()
    while isinstance(order := link.receive(), Order):
        verdict = run(order, tasks[order.info.task], link, interruptions)
        if os.getpid() != process:
            # A copy that the body forked and that came back here: it has nothing to say.
            os._exit(0)
        link.send(Ended(order.number, verdict))


def _die_with_parent(parent: int) -> None:
    """On Linux, ask the kernel to kill this process when the worker dies."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


if __name__ == "__main__":
    main()
