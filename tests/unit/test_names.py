"""What things may be called (PAY-07)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lateack.names import key_problem, queue_problem, task_problem, tenant_problem
from lateack_core.stream import Broker

GOOD: list[tuple[Callable[[str], str | None], list[str]]] = [
    (queue_problem, ["default", "a", "gpu.large", "x-1_2", "9", "Q" * 64]),
    (task_problem, ["t", "tasks.parse", "a.b.c_d.E1", "_x._y", "t" * 200]),
    (tenant_problem, ["default", "acme:eu", "ann@example.com", "1", "T" * 128]),
    (key_problem, ["k", "doc-1:v4", "订单 17", "ключ", "k" * 255, "a b"]),
]
BAD: list[tuple[Callable[[str], str | None], list[str]]] = [
    (queue_problem, ["", ".a", "-a", "a b", "a:b", "a{b}", "a/b", "a\n", "é", "а", "🚀", "Q" * 65]),
    (task_problem, ["", "a..b", ".a", "a.", "a b", "1a", "a-b", "a\n", "tâche", "t" * 201]),
    (tenant_problem, ["", ":a", "a b", "a/b", "a\x00", "a\n", "тenant", "T" * 129]),
    (key_problem, ["", " k", "k ", "a\tb", "a\nb", "a\x00", "a\u200bb", "a\u00a0b", "k" * 256]),
]


@pytest.mark.parametrize(("problem", "name"), [(p, name) for p, names in GOOD for name in names])
def test_fine_names(problem: Callable[[str], str | None], name: str) -> None:
    assert problem(name) is None


@pytest.mark.parametrize(("problem", "name"), [(p, name) for p, names in BAD for name in names])
def test_names_that_would_collide_or_mislead_are_refused(
    problem: Callable[[str], str | None], name: str
) -> None:
    """PAY-07: refused, never folded."""
    assert problem(name)


@given(st.sets(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,9}", fullmatch=True), min_size=2))
def test_two_queues_never_share_a_stream(queues: set[str]) -> None:
    """PAY-07: nor a hash tag, so that what belongs to one queue lies in one slot of a cluster."""
    broker = Broker("redis://127.0.0.1:1/0")
    streams = [stream for queue in queues for stream in broker.streams(queue)]
    assert len(set(streams)) == len(streams)
    tags = {stream.partition("{")[2].partition("}")[0] for stream in streams}
    assert len(tags) == len(queues)
