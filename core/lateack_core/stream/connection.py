"""A connection to the broker: its errors in our words, its replies as plain values."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import redis.asyncio as redis
from redis import exceptions
from redis.asyncio.retry import Retry

GROUP = "workers"
_PASSING = (
    "READONLY",
    "UNBLOCKED",
    "LOADING",
    "NOGROUP",
    "MASTERDOWN",
    "OOM",
    "MISCONF",
    "CLUSTERDOWN",
)
_GONE = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.BusyLoadingError,
    exceptions.NoScriptError,
    OSError,
    asyncio.TimeoutError,
)


class BrokerUnavailable(Exception):
    """The broker gave no answer, or cannot take what it was given right now."""


class BrokerUnfit(Exception):
    """The broker cannot be used as it is; the message says what to change."""


class GroupMissing(BrokerUnavailable):
    """The stream or its group is gone: flushed, or never made. Ensure it and read again."""


class Entry(NamedTuple):
    """A hint that was read: its id in the stream and its fields."""

    stream: str
    entry_id: str
    fields: dict[str, str]


def translated(error: Exception) -> Exception:
    """An error of the client library in our words."""
    text = str(error)
    if "NOGROUP" in text or "UNBLOCKED" in text or "no longer exists" in text:
        return GroupMissing(text)
    if isinstance(error, _GONE) or any(word in text for word in _PASSING):
        return BrokerUnavailable(text or type(error).__name__)
    return error


def client(url: str, size: int, *, socket_timeout: float, retry: Retry) -> redis.Redis:
    # Callers wait for a connection instead of failing; the budget is `size`.
    pool = redis.BlockingConnectionPool.from_url(
        url,
        max_connections=size,
        timeout=5,
        socket_timeout=socket_timeout,
        socket_connect_timeout=3.0,
        retry=retry,
        decode_responses=True,
        encoding_errors="replace",
        health_check_interval=0,
    )
    return redis.Redis(connection_pool=pool)


def rows_of(reply: Any) -> list[tuple[str, Any]]:
    if not reply:
        return []
    return list(reply.items()) if isinstance(reply, dict) else [(row[0], row[1]) for row in reply]


def entries_of(reply: Any) -> list[Entry]:
    return [
        Entry(stream, entry_id, fields or {})
        for stream, rows in rows_of(reply)
        for entry_id, fields in rows
    ]


def pairs(fields: Any) -> dict[str, str]:
    if isinstance(fields, dict):
        return fields
    flat = [text_of(part) for part in fields or ()]
    return dict(zip(flat[::2], flat[1::2], strict=True))


def text_of(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
