"""Between scripts and the two libraries that carry them: httpx for calls, websockets for events."""

from __future__ import annotations

import httpx
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from ._exchange import Call, Reply, Send
from .watch import closed

PAGE_SIZE = 100
# How a connection for events fails, or ends other than by our own wish.
DROPPED = (WebSocketException, OSError, EOFError)


def request_of(http: httpx.Client | httpx.AsyncClient, url: str, step: Send) -> httpx.Request:
    """What to send for a step."""
    call: Call = step.call
    return http.build_request(
        call.method,
        url,
        content=call.body,
        headers=None if call.body is None else {"content-type": "application/json"},
        timeout=step.timeout,
    )


def refusal_of(error: BaseException) -> Reply | None:
    """What the service said when it refused a connection for events, if it said anything."""
    if isinstance(error, InvalidStatus):
        response = error.response
        return Reply(response.status_code, response.headers, bytes(response.body or b""))
    if isinstance(error, ConnectionClosed) and error.rcvd is not None:
        return closed(error.rcvd.code, error.rcvd.reason)
    return None


def words(error: BaseException) -> str:
    """What to tell of an error."""
    return str(error) or type(error).__name__
