"""When a failed attempt is tried again, and how long after. Celery's options, Celery's meaning."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from .errors import DeclarationError, JobCancelled, PermanentError, Retry

Exceptions = tuple[type[BaseException], ...]

LONGEST_DELAY = 10 * 365 * 86_400.0


class RetryPolicy(msgspec.Struct, frozen=True):
    """How a task is retried.

    Only errors named in `autoretry_for`, and `Retry`, are tried again; every other error fails
    the job at once. `default_retry_delay` and `retry_backoff_max` are seconds; `retry_backoff`
    is False, True (= 1 s) or the first delay in seconds, doubled each time; `retry_jitter` draws
    the delay evenly from 0 up to that (full jitter), so that a fleet does not return in step.
    """

    autoretry_for: Exceptions = ()
    dont_autoretry_for: Exceptions = ()
    max_retries: int = 3
    default_retry_delay: float = 180.0
    retry_backoff: bool | float = False
    retry_backoff_max: float = 600.0
    retry_jitter: bool = True

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise DeclarationError("max_retries must be 0 or more")
        for name in ("default_retry_delay", "retry_backoff", "retry_backoff_max"):
            value = float(getattr(self, name))
            if not 0 <= value <= LONGEST_DELAY:
                raise DeclarationError(f"{name} is seconds, from 0 to ten years; got {value!r}")

    def delay(self, attempt: int, draw: Callable[[], float] = random.random) -> float:
        """Seconds to wait after the attempt of this number (the first is 1) has failed."""
        if not self.retry_backoff:
            return float(self.default_retry_delay)
        # 2**63 seconds is past any cap; the bound keeps the thousandth retry from overflowing.
        longest = float(self.retry_backoff) * 2.0 ** min(max(attempt - 1, 0), 63)
        longest = min(longest, float(self.retry_backoff_max))
        return longest * draw() if self.retry_jitter else longest

    def after(self, error: BaseException, attempt: int) -> float | None:
        """Seconds until the next attempt, or None when this error ends the job.

        Whether an attempt is left is the ledger's to say, since `max_retries` can be set per job.
        """
        if isinstance(error, Retry):
            after = self.delay(attempt) if error.after is None else float(error.after)
            # Beyond ten years is a mistake in a unit; NaN compares to nothing.
            return min(max(0.0, after), LONGEST_DELAY) if after == after else self.delay(attempt)
        if isinstance(error, (PermanentError, JobCancelled)):
            return None
        if isinstance(error, self.dont_autoretry_for):
            return None
        if isinstance(error, self.autoretry_for):
            return self.delay(attempt)
        return None
