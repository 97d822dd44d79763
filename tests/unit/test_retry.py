"""When a failed attempt is tried again, and how long after (RTY-07)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lateack import PermanentError, Retry, TransientError
from lateack.errors import DeclarationError, JobCancelled
from lateack.retry import RetryPolicy

attempts = st.integers(1, 100_000)
seconds = st.floats(0, 10 * 365 * 86_400)


@given(attempt=attempts, first=seconds, cap=seconds, jitter=st.booleans())
def test_a_delay_stays_within_its_cap(attempt: int, first: float, cap: float, jitter: bool) -> None:
    """RTY-07: thousands of failures with extreme settings: the delay grows to its cap and stays."""
    policy = RetryPolicy(retry_backoff=first, retry_backoff_max=cap, retry_jitter=jitter)
    delay = policy.delay(attempt)
    assert 0 <= delay <= max(cap, policy.default_retry_delay if not first else 0.0)


def test_it_doubles_up_to_the_cap() -> None:
    policy = RetryPolicy(retry_backoff=2.0, retry_backoff_max=60.0, retry_jitter=False)
    assert [policy.delay(n) for n in range(1, 9)] == [2, 4, 8, 16, 32, 60, 60, 60]
    assert policy.delay(10**9) == 60
    # True is a first delay of one second, as in Celery.
    plain = RetryPolicy(retry_backoff=True, retry_jitter=False)
    assert [plain.delay(n) for n in (1, 2, 3)] == [1, 2, 4]


def test_full_jitter_draws_from_nothing_to_the_whole() -> None:
    policy = RetryPolicy(retry_backoff=8.0)
    assert [policy.delay(1, draw=[share].pop) for share in (0.0, 0.5, 1.0)] == [0, 4, 8]


def test_without_back_off_the_delay_is_fixed() -> None:
    assert {RetryPolicy(default_retry_delay=7.0).delay(n) for n in range(1, 50)} == {7.0}


class Chosen(Exception): ...


class Excepted(Chosen): ...


@pytest.mark.parametrize(
    ("error", "after"),
    [
        (Chosen(), 5.0),
        (Excepted(), None),
        (ValueError(), None),
        (TransientError(), None),
        (PermanentError(), None),
        (JobCancelled(), None),
        (Retry(), 5.0),
        (Retry(after=2.0), 2.0),
        (Retry(after=0.0), 0.0),
    ],
)
def test_only_what_was_named_is_retried(error: Exception, after: float | None) -> None:
    """Design §4: unknown exceptions fail at once."""
    policy = RetryPolicy(
        autoretry_for=(Chosen,), dont_autoretry_for=(Excepted,), default_retry_delay=5.0
    )
    assert policy.after(error, 1) == after


def test_a_permanent_error_is_final_even_when_everything_is_retried() -> None:
    policy = RetryPolicy(autoretry_for=(Exception,))
    assert policy.after(PermanentError(), 1) is None
    assert policy.after(ValueError(), 1) is not None


@pytest.mark.parametrize("name", ["default_retry_delay", "retry_backoff", "retry_backoff_max"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 1e12])
def test_invalid_settings_are_refused_at_start(name: str, value: float) -> None:
    """RTY-07"""
    with pytest.raises(DeclarationError, match=name):
        RetryPolicy(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="max_retries"):
        RetryPolicy(max_retries=-1)
