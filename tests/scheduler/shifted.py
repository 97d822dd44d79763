"""A replica of the scheduler whose own clock is wrong by so many seconds, its first argument."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import sys
import time
from typing import Any


def shift_clock(seconds: float) -> None:
    """Every way in which Python tells the time of day, before anybody else has looked."""
    wall, wall_ns = time.time, time.time_ns
    shift = dt.timedelta(seconds=seconds)

    class Shifted(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Any:
            return super().now(tz) + shift

        @classmethod
        def utcnow(cls) -> Any:
            return super().now(dt.UTC).replace(tzinfo=None) + shift

    time.time = lambda: wall() + seconds
    time.time_ns = lambda: wall_ns() + int(seconds * 1e9)
    dt.datetime = Shifted  # type: ignore[misc]


if __name__ == "__main__":
    shift_clock(float(sys.argv[1]))
    logging.basicConfig(stream=sys.stderr, level="INFO")

    from lateack_core.settings import from_environment
    from tests.scheduler.replica import scheduler

    asyncio.run(scheduler(from_environment()))
