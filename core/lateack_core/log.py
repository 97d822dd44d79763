"""Logging: one line says one thing, with who and what in front."""

from __future__ import annotations

import logging
import sys


def configure(level: str, *, process: str) -> None:
    """Log to standard error from now on. `process` is serve, worker, scheduler."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter(
            f"%(asctime)s %(levelname)-7s {process} %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S%z"
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Every request at INFO would drown what matters.
    logging.getLogger("httpx").setLevel(logging.WARNING)


class Throttled:
    """Says a repeated trouble once every so many seconds, with how often it happened meanwhile."""

    def __init__(self, logger: logging.Logger, *, every: float = 10.0) -> None:
        self._logger = logger
        self._every = every
        self._last: dict[str, tuple[float, int]] = {}

    def warning(self, message: str, now: float) -> None:
        """Log `message`, unless it was logged less than `every` seconds before `now`."""
        at, held = self._last.get(message, (-1e9, 0))
        if now - at < self._every:
            self._last[message] = (at, held + 1)
            return
        self._last[message] = (now, 0)
        if len(self._last) > 100:
            self._last.pop(next(iter(self._last)))
        self._logger.warning("%s%s", message, f" ({held} more like it)" if held else "")
