"""What a task's body sees of its job, and how it reports."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lateack import Context, JobCancelled
from lateack.context import JobInfo
from lateack.effects import Found, Move
from lateack_core.identifiers import uuid7


class Notebook:
    """A reporter that writes down what it was told."""

    def __init__(self) -> None:
        self.said: list[tuple[float | None, str | None, str | None]] = []
        self.stop: BaseException | None = None

    def report(self, progress: float | None, step: str | None, message: str | None) -> None:
        self.said.append((progress, step, message))

    def interruption(self) -> BaseException | None:
        return self.stop


class NoEffects:
    """Effects of a body that takes none."""

    async def move(self, move: Move) -> Found:
        raise AssertionError(move)

    def move_sync(self, move: Move) -> Found:
        raise AssertionError(move)

    def transaction(self, result: Callable[[], Any]) -> AbstractAsyncContextManager[Any]:
        raise AssertionError


def context(attempt: int = 1, max_retries: int = 3) -> tuple[Context, Notebook]:
    notebook = Notebook()
    job = JobInfo(uuid7(), "t.x", "work", "default", attempt, max_retries, {"run": 1})
    return Context(job, notebook, NoEffects()), notebook


@given(st.floats() | st.integers(-(10**30), 10**30))
def test_progress_is_a_percentage_or_nothing(value: float) -> None:
    """Values outside are cut to the range; what is no number is no progress; nothing is raised."""
    ctx, notebook = context()
    ctx.progress(value)
    ((progress, _, _),) = notebook.said
    assert (progress is None) == (value != value)
    assert progress is None or 0 <= progress <= 100


def test_done_of_total() -> None:
    ctx, notebook = context()
    ctx.progress(done=1, total=4)
    ctx.progress(done=9, total=4)
    ctx.progress(done=1, total=0)
    ctx.progress(50, done=1, total=4)
    ctx.progress(step="parse", message="page 1")
    assert [said[0] for said in notebook.said] == [25, 100, None, 50, None]
    assert notebook.said[-1] == (None, "parse", "page 1")


async def test_it_can_be_awaited_or_called() -> None:
    """One way to write it for `def` and `async def` tasks."""
    ctx, notebook = context()
    await ctx.progress(1)
    ctx.progress(2)
    assert len(notebook.said) == 2


def test_texts_are_made_fit_rather_than_refused() -> None:
    """PAY-01, PAY-04: a progress message never fails a job."""
    ctx, notebook = context()
    ctx.progress(step="s" * 999, message="a\x00b\ud800" + "m" * 9999)
    ((_, step, message),) = notebook.said
    assert step is not None
    assert message is not None
    assert len(step) == 200
    assert len(message) == 2000
    assert message.startswith("a\ufffdb?")
    message.encode()


def test_an_interruption_is_met_at_the_next_call() -> None:
    ctx, notebook = context()
    ctx.check()
    notebook.stop = JobCancelled()
    with pytest.raises(JobCancelled):
        ctx.progress(1)
    with pytest.raises(JobCancelled):
        ctx.check()
    assert notebook.said == []


def test_attempts_and_keys() -> None:
    """DEL-09: the key for an outside system is the same on every attempt."""
    ctx, _ = context()
    assert ctx.idempotency_key("charge") == f"{ctx.job_id}:charge"
    assert (ctx.root_id, ctx.meta) == (ctx.job_id, {"run": 1})
    assert [context(n, 2)[0].is_last_attempt for n in (1, 2, 3)] == [False, False, True]
