"""The events of a job over the wire: SSE, and WebSocket.

Close codes: 1000 the job has ended, 1012 this process stops (connect again), 1013 the client was
too slow (connect again with the last id), and 4000 + the HTTP status of a problem, its `type` first
in the reason: 4404 for an unknown or foreign job, 4422 for a cursor that is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable
from typing import Any

from litestar import Request, WebSocket, get, websocket
from litestar.exceptions import WebSocketException
from litestar.params import FromQuery
from litestar.types import ASGIApp, Receive, Scope, Send

from lateack_core.postgres import LedgerUnavailable

from .following import Follower, Told, place
from .given import GroundGiven, HubGiven, JobIdGiven, TenancyGiven, TenantGiven
from .jobs import find, identifier
from .problems import refusal_of
from .progress import Hub

log = logging.getLogger("lateack.progress")

# A client that takes nothing for this long is let go; it can come back with its last id.
SEND_TIMEOUT = 10.0
# It may take its close frame for so much longer; nothing is kept for it meanwhile.
CLOSE_TIMEOUT = 30.0
RETRY_MS = 1000

AnySocket = WebSocket[Any, Any, Any]


class Gone(Exception):
    """The client has gone."""


class TooSlow(Exception):
    """The client takes nothing."""


@get("/v1/jobs/{job_id:str}/events", summary="A job's events, as they come (SSE)", status_code=200)
async def stream_events(
    request: Request[Any, Any, Any],
    ground: GroundGiven,
    hub: HubGiven,
    tenant: TenantGiven,
    job_id: JobIdGiven,
    after: FromQuery[str | None] = None,
) -> ASGIApp:
    """From now, or from behind the event `after` (or the header Last-Event-ID, which comes first).

    204 when the event that is given was the last one, which tells an EventSource to stop.
    """
    # An EventSource that comes back repeats its first address; the header is the newer word.
    cursor = request.headers.get("last-event-id") or after
    start = None if cursor is None else place(cursor)
    number = identifier(job_id)
    job = await find(ground, tenant, number)
    follower = Follower(hub, number, start, ended=job.ended)
    return EventStream(hub, follower, heartbeat=ground.settings.stream_ping)


class EventStream:
    """An answer that goes on until the job ends, the client leaves or the process stops."""

    def __init__(self, hub: Hub, follower: Follower, *, heartbeat: float) -> None:
        self._hub = hub
        self._follower = follower
        self._heartbeat = heartbeat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        follower = self._follower
        with self._hub.watching(follower.job_id, follower.sink):
            first = await follower.begin()
            if follower.ended and not first:
                await _send_empty(send)
                return
            leaving = asyncio.create_task(_until_gone(receive, follower))
            try:
                await self._send_all(send, first)
            except (TooSlow, Gone) as error:
                log.debug("an event stream ends: %s", type(error).__name__)
            finally:
                leaving.cancel()

    async def _send_all(self, send: Send, first: list[Told]) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await _in_time(send({"type": "http.response.start", "status": 200, "headers": headers}))
        await _send_part(send, b"retry: %d\n\n" % RETRY_MS)
        async for batch in follow(self._follower, self._heartbeat, first):
            await _send_part(send, b"".join(map(_sse, batch)) or b": nothing new\n\n")
        await _send_part(send, b"", more=False)


@websocket("/v1/jobs/{job_id:str}/progress")
async def watch_one(
    socket: AnySocket,
    ground: GroundGiven,
    hub: HubGiven,
    tenancy: TenancyGiven,
    job_id: JobIdGiven,
) -> None:
    """A job's events as JSON texts; `?after=` goes on from behind an event."""
    await socket.accept()
    try:
        tenant = tenancy.tenant_of(socket)
        after = socket.query_params.get("after")
        start = None if after is None else place(after)
        number = identifier(job_id)
        job = await find(ground, tenant, number)
        follower = Follower(hub, number, start, ended=job.ended)
        with hub.watching(number, follower.sink):
            leaving = asyncio.create_task(_until_gone(socket.receive, follower))
            try:
                async for batch in follow(follower, ground.settings.stream_ping):
                    for told in batch:
                        await send_text(socket, told.text)
            finally:
                leaving.cancel()
        await close_after(socket, follower.sink.over)
    except Exception as error:
        await close_for(socket, error)


async def follow(
    follower: Follower, heartbeat: float, first: list[Told] | None = None
) -> AsyncIterator[list[Told]]:
    """Batches of events until the end; an empty one is a sign of life.

    Raises:
        LedgerUnavailable: at the very beginning only.
    """
    yield await follower.begin() if first is None else first
    while not follower.ended and follower.sink.over is None:
        try:
            batch = await follower.next(heartbeat)
        except LedgerUnavailable:
            # Neither stream nor ledger: wait for either, the client stays.
            await asyncio.sleep(0.5)
            follower.sink.lag()
            continue
        yield batch


# -- sending ------------------------------------------------------------------------------


async def send_text(socket: AnySocket, text: bytes) -> None:
    """Send one text.

    Raises:
        Gone, TooSlow
    """
    await _in_time(socket.send({"type": "websocket.send", "text": text.decode(), "bytes": None}))


async def close_after(socket: AnySocket, over: str | None) -> None:
    """Close a socket that was followed to its end, for the sink's reason; None is the job's end."""
    if over == "left":
        return
    code, reason = {
        None: (1000, "the job has ended"),
        "stopping": (1012, "the service stops; connect again"),
        "gone": (4404, "job-not-found: the job has been pruned"),
    }[over]
    await _close(socket, code, reason)


async def close_for(socket: AnySocket, error: Exception) -> None:
    """Close a socket because of an error, with what the client should know of it."""
    if isinstance(error, (Gone, WebSocketException)):
        return
    if isinstance(error, TooSlow):
        await _close(socket, 1013, "nothing was read for too long; connect again with the last id")
        return
    refused = refusal_of(error)
    await _close(socket, 4000 + refused.status, f"{refused.type}: {refused.detail}")


async def _close(socket: AnySocket, code: int, reason: str) -> None:
    # A reason has 123 bytes at most.
    short = reason.encode()[:123].decode(errors="ignore")
    with contextlib.suppress(Gone, TooSlow):
        closing = socket.send({"type": "websocket.close", "code": code, "reason": short})
        await _in_time(closing, CLOSE_TIMEOUT)


async def _send_part(send: Send, body: bytes, *, more: bool = True) -> None:
    await _in_time(send({"type": "http.response.body", "body": body, "more_body": more}))


async def _send_empty(send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _in_time(sending: Awaitable[Any], seconds: float | None = None) -> None:
    try:
        async with asyncio.timeout(SEND_TIMEOUT if seconds is None else seconds):
            await sending
    except TimeoutError:
        raise TooSlow from None
    except (OSError, RuntimeError) as error:
        # The server's words for a connection that is closed, or closing.
        raise Gone(str(error)) from None


async def _until_gone(receive: Receive, follower: Follower) -> None:
    while True:
        message = await receive()
        if message["type"] in ("http.disconnect", "websocket.disconnect"):
            follower.sink.finish("left")
            return


def _sse(told: Told) -> bytes:
    head = b"" if told.resume is None else b"id: %s\n" % told.resume.encode()
    return head + b"event: %s\ndata: %s\n\n" % (told.event.type.encode(), told.text)
