"""What may become of each task: the other half of `tasks`.

What befalls a job from outside (its worker is lost three times, somebody cancels it, its expiry
passes) is judged elsewhere; here is what the body itself leads to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .snapshot import JobRow

# (job, its result) -> why this cannot have come of it, or None.
Judge = Callable[[JobRow, Any], str | None]


def _returns(value: Callable[[JobRow], Any]) -> Judge:
    def judge(job: JobRow, result: Any) -> str | None:
        if job.status != "succeeded":
            return "its body never fails"
        wanted = value(job)
        return None if result == wanted else f"its body returns {wanted!r}, not {result!r}"

    return judge


def _fails(code: str) -> Judge:
    def judge(job: JobRow, result: Any) -> str | None:
        fits = (job.status, job.error_code) == ("failed", code)
        return None if fits else f"its body can only fail with {code}"

    return judge


def _retries(job: JobRow, result: Any) -> str | None:
    """Fails at the first so many attempts: `args[0]`."""
    failures = job.args[0]
    if job.status == "succeeded":
        if job.attempt <= failures:
            return f"its body fails up to attempt {failures}, and this was attempt {job.attempt}"
        return None if result == job.attempt else f"attempt {job.attempt} did not return {result!r}"
    if job.error_code not in ("TransientError", "Retry"):
        return "its body never fails like that"
    if job.attempt <= job.max_retries:
        return f"it had attempts left: this was {job.attempt} of {job.max_retries + 1}"
    return None


def _crashes(job: JobRow, result: Any) -> str | None:
    """Kills its process at the first so many attempts: `args[0]`."""
    if job.status == "failed":
        return "its body does not fail, it crashes"
    return None if job.attempt > job.args[0] else f"its body kills itself at attempt {job.attempt}"


def _pays(job: JobRow, result: Any) -> str | None:
    if job.status != "succeeded":
        return "its body is tried again until it succeeds"
    return None if set(result or {}) == {"reserve", "charge"} else f"{result!r} is not what it pays"


JUDGES: dict[str, Judge] = {
    "storm.instant": _returns(lambda job: job.args[0]),
    "storm.tick": _returns(lambda job: job.attempt),
    "storm.slow": _returns(lambda job: job.attempt),
    "storm.heavy.thread": _returns(lambda job: job.attempt),
    "storm.heavy.process": _returns(lambda job: job.attempt),
    "storm.flaky": _retries,
    "storm.again": _retries,
    "storm.failing": _fails("ValueError"),
    "storm.heavy.crash": _crashes,
    "storm.crash_worker": _crashes,
    "storm.block": _returns(lambda job: job.attempt),
    "storm.stuck": _fails("TimeLimitExceeded"),
    "storm.book": _returns(lambda job: {"booked": job.args[0]}),
    "storm.pay": _pays,
    "storm.heavy.pay_thread": _pays,
    "storm.heavy.pay_process": _pays,
}
