"""Watching a job: what a watcher has seen, and what it does when the line drops.

The service sends a snapshot first, then each event as it happens, until the job's one outcome.
Whatever cuts the line (a proxy, a restart, a laptop's lid), the watcher asks again with the id of
the last event it saw, and goes on from there. Nothing here reads or writes; the clients do.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

import msgspec

from ._calls import Address, JobRef, job_path
from ._exchange import Call, Reply, backed_off, error_of, is_final, retry_after
from .errors import Problem, Unreachable
from .models import Event, Job

# Once something was seen, the service may be away so many times longer than for a single call: a
# restart is no reason to lose sight of a job.
PATIENCE = 10.0
OPEN_TIMEOUT = 10.0  # seconds
CLOSE_TIMEOUT = 1.0

_decode = msgspec.json.Decoder(Event).decode


class Watching:
    """Where a watcher of one job stands. `timeout` is that of the client, in seconds."""

    def __init__(self, job: JobRef, after: str | None, *, timeout: float) -> None:
        self._job = job
        self._last = after
        self._timeout = timeout
        self._retries = 0
        self._seen = False
        self._heard_at = time.monotonic()
        self.ended = False
        # Whether the current connection brought an event.
        self.brought = False

    def url(self, address: Address) -> str:
        """Where to connect next."""
        self.brought = False
        query = () if self._last is None else (("after", self._last),)
        call = Call("GET", f"{job_path(self._job)}/progress", query)
        return f"ws{address.of(call).removeprefix('http')}"

    def take(self, frame: str | bytes) -> Event | None:
        """The event of a frame; None when it was seen before.

        Raises:
            Problem: this is no event.
        """
        try:
            event = _decode(frame)
        except msgspec.MsgspecError as error:
            raise Problem(
                101, "about:blank", f"this is no event of a lateack service: {error}"
            ) from error
        self.brought = self._seen = True
        self._retries = 0
        self._heard_at = time.monotonic()
        if event.type == "gap":
            # What follows is a snapshot, whose id then is the one to go on from.
            return event
        if event.type != "snapshot" and self._is_old(event):
            return None
        self._last = event.id
        self.ended = event.ended
        return event

    def pause(self, reason: str, reply: Reply | None = None) -> float:
        """Seconds until the next connection; `reply` is a refusal that came instead of events.

        Raises:
            Problem: the refusal is final.
            Unreachable: the service has been away for too long.
        """
        if reply is not None and is_final(reply):
            raise error_of(reply)
        asked = retry_after(reply) if reply is not None and reply.status in (429, 503) else None
        pause = backed_off(self._retries) if asked is None else max(0.0, asked)
        self._retries += 1
        if time.monotonic() + pause - self._heard_at > self.patience:
            raise Unreachable(f"the events of job {self._job} cannot be had: {reason}")
        return pause

    @property
    def patience(self) -> float:
        """Seconds without a word after which watching is given up."""
        return self._timeout * (PATIENCE if self._seen else 1.0)

    @property
    def forgiving(self) -> bool:
        """Whether the service may still be away for a while."""
        return time.monotonic() - self._heard_at < self.patience

    def end_with(self, job: Job) -> Event:
        """The last event, made of the document of a job that has ended."""
        self.ended = True
        return Event(
            id=self._last or "0-0",
            job_id=job.job_id,
            type="snapshot",
            status=job.status,
            progress=job.progress,
            step=job.step,
            message=job.error_message,
            attempt=job.attempt,
            at=job.completed_at or datetime.now(UTC),
        )

    def _is_old(self, event: Event) -> bool:
        """Whether an event comes twice, which a line that drops may cause."""
        try:
            return self._last is not None and _order(event.id) <= _order(self._last)
        except ValueError:
            return event.id == self._last


def closed(code: int, reason: str) -> Reply | None:
    """The refusal that a close code stands for (4000 + the status of a problem), if it is one."""
    if not 4400 <= code < 4600:
        return None
    type_, _, detail = reason.partition(": ")
    document = {"type": type_, "detail": detail or reason}
    return Reply(code - 4000, {}, msgspec.json.encode(document))


def _order(event_id: str) -> tuple[int, int]:
    fence, _, seq = event_id.partition("-")
    return int(fence), int(seq)
