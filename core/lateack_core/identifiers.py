"""UUIDv7: identifiers in the order of their making, so that the newest rows lie together."""

from __future__ import annotations

import os
import threading
import time
from uuid import UUID

_lock = threading.Lock()
_last = [0]


def uuid7() -> UUID:
    """A new UUIDv7; later ones of one process are greater, also within a millisecond."""
    with _lock:
        # 48 bits of milliseconds and 12 of their fraction make one number that only goes up.
        stamp = _last[0] = max(_last[0] + 1, time.time_ns() * 4096 // 1_000_000)
    high = (stamp >> 12) << 16 | 0x7000 | (stamp & 0xFFF)
    low = int.from_bytes(os.urandom(8)) & 0x3FFFFFFFFFFFFFFF | 0x8000000000000000
    return UUID(int=high << 64 | low)
