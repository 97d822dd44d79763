"""The only door to redis. It speaks of hints, entries and events, not of commands."""

from __future__ import annotations

from .broker import (
    LEVELS,
    Broker,
    Hint,
    ProgressEntry,
    level_of,
    priorities_of,
    progress_tag,
)
from .connection import BrokerUnavailable, BrokerUnfit, Entry, GroupMissing
from .reader import BlockingReader

__all__ = [
    "LEVELS",
    "BlockingReader",
    "Broker",
    "BrokerUnavailable",
    "BrokerUnfit",
    "Entry",
    "GroupMissing",
    "Hint",
    "ProgressEntry",
    "level_of",
    "priorities_of",
    "progress_tag",
]
