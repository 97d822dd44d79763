"""What comes from the broker: its errors in our words, its replies as plain values."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from redis import exceptions

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
    "TRYAGAIN",
    # No node of a cluster answers, or none of those that do knows who has a slot.
    "Redis Cluster cannot be connected",
    "slots are not covered",
)
_GONE = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.BusyLoadingError,
    exceptions.NoScriptError,
    # The slot has moved, is on its way, or nobody has it: all pass.
    exceptions.AskError,
    exceptions.SlotNotCoveredError,
    OSError,
    asyncio.TimeoutError,
)
# What XREADGROUP, a reader that waited and XINFO say when the stream or its group is not there.
_MISSING = ("NOGROUP", "UNBLOCKED", "no longer exists", "no such key")
# An answer, and it is "not now". The client cuts its first word off, so the text does not tell.
_NOT_NOW = (
    exceptions.OutOfMemoryError,
    exceptions.MasterDownError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
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
    if any(word in text for word in _MISSING):
        return GroupMissing(text)
    if "Cluster mode is not enabled" in text:
        return BrokerUnfit("the broker is no cluster: take cluster=true out of REDIS_URL")
    if isinstance(error, _GONE + _NOT_NOW) or any(word in text for word in _PASSING):
        return BrokerUnavailable(text or type(error).__name__)
    return error


def lost(replies: Sequence[Any]) -> Exception | None:
    """The first reply of a pipeline that tells that the others got no answer, if there is one.

    The client of a cluster hands a lost connection back as the reply to each command.
    """
    return next((reply for reply in replies if isinstance(reply, _GONE)), None)


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
