"""The state table is one list, and the schema says the same."""

from __future__ import annotations

import re
import typing

from lateack.states import LIVE, MOVES, TERMINAL, Status
from lateack_sql import migrations


def test_the_table_is_whole() -> None:
    everything = set(typing.get_args(Status))
    assert set(MOVES) == LIVE | TERMINAL == everything
    assert not LIVE & TERMINAL
    assert all(targets <= everything for targets in MOVES.values())


def test_nothing_leaves_a_terminal_state() -> None:
    """I2"""
    assert {state for state, targets in MOVES.items() if not targets} == TERMINAL


def test_every_live_state_can_end() -> None:
    """I1: from everywhere there is a way to an end, a cancel among them."""
    for state in LIVE:
        assert MOVES[state] >= {"failed", "cancelled"}


def test_the_constraint_lists_the_same() -> None:
    text = migrations()[0].text
    constraint = re.search(r"status_is_known CHECK \(status IN\s*\(([^)]*)\)", text)
    assert constraint is not None
    assert set(re.findall(r"'(\w+)'", constraint[1])) == set(MOVES)
