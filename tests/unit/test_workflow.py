"""How workflows are written in Python, and what goes over the wire."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lateack import App, chain, chord, group
from lateack.models import Job, Submission

app = App("t")


@app.task(name="a")
async def a(*values: Any) -> Any:
    return values


@app.task(name="b")
async def b(*values: Any) -> Any:
    return values


def wire(submission: Submission) -> Any:
    return msgspec.json.decode(msgspec.json.encode(submission))


def test_a_chain_is_its_first_step_and_the_rest() -> None:
    written = chain(a.s(1), b.s(2), a.si())
    assert wire(written.submission(tags=["x"])) == {
        "task": "a",
        "args": [1],
        "then": [{"task": "b", "args": [2]}, {"task": "a", "immutable": True}],
        "tags": ["x"],
    }
    assert wire((a.s(1) | b.s(2) | a.si()).submission(tags=["x"])) == wire(
        written.submission(tags=["x"])
    )


def test_a_group_stands_alone() -> None:
    written = group((a.s(n) for n in range(2)), on_failure="collect")
    assert wire(written.submission()) == {
        "group": [{"task": "a", "args": [0]}, {"task": "a", "args": [1]}],
        "on_failure": "collect",
    }
    assert wire(group(a.s(0), b.s()).submission())["group"][1] == {"task": "b"}


def test_a_chord_is_a_group_and_what_follows() -> None:
    expected = {"group": [{"task": "a"}, {"task": "b"}], "then": [{"task": "a", "args": [9]}]}
    assert wire(chord([a.s(), b.s()], a.s(9)).submission()) == expected
    assert wire(chord(group(a.s(), b.s()), a.s(9)).submission()) == expected
    assert wire((group(a.s(), b.s()) | a.s(9)).submission()) == expected


def test_parts_nest() -> None:
    written = chain(a.s(), group(chain(a.s(), b.s()), group(b.s())), chain(b.s(), chain(a.s())))
    assert wire(written.submission())["then"] == [
        {"group": [{"chain": [{"task": "a"}, {"task": "b"}]}, {"group": [{"task": "b"}]}]},
        {"task": "b"},
        {"task": "a"},
    ]


async def test_a_workflow_finds_its_app() -> None:
    """The transport of whichever task is in it; without one there is nothing to run."""
    sent: list[Submission] = []

    async def transport(submission: Submission) -> Job:
        sent.append(submission)
        raise LookupError

    app.use_transport(transport)
    with pytest.raises(LookupError):
        await chain(group(), a.s()).enqueue()
    assert wire(sent[0]) == {"group": [], "then": [{"task": "a"}]}
    with pytest.raises(ValueError, match="nothing to run"):
        await group().enqueue()
    app.use_transport(None)
