"""Whether some order of the moves, one after the other, explains what all of them saw at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

from tests.sql.machine.model import State
from tests.sql.machine.moves import Answer, Move


class Call(NamedTuple):
    """A move that was made, with what it was told."""

    move: Move
    answer: Answer


def explained(before: State, after: State, calls: Sequence[Call], *, held: bool) -> bool:
    """Whether an order of these calls leads from one state to the other, with their answers.

    A move that skips what is locked may have passed over anything, if somebody else was there: one
    of the other calls, or (`held`) a lock of the machine's own.
    """
    family = before.rows
    after = _with_new_slips(before, after)
    seen = [Call(move, move.seen(answer, before)) for move, answer in calls]
    contended = held or sum(move.touches(family) for move, _ in seen) > 1

    def search(state: State, left: list[Call]) -> bool:
        if not left:
            return state.like(after)
        for number, call in enumerate(left):
            rest = left[:number] + left[number + 1 :]
            for answer, following in _outcomes(call.move, state, before, contended):
                if answer == call.answer and search(following, rest):
                    return True
        return False

    return search(before, seen)


def _with_new_slips(before: State, after: State) -> State:
    """What was not there before has no number that a model could know."""
    old = {slip.number for slip in before.outbox}
    slips = [s if s.number in old else s._replace(number=None) for s in after.outbox]
    return replace(after, outbox=tuple(slips))


def _outcomes(
    move: Move, state: State, start: State, contended: bool
) -> Iterator[tuple[Answer, State]]:
    """What the move may answer and leave behind when its turn is now."""
    for chosen in _choices(move.eligible(state, start), move.skips and contended):
        following = state.copy()
        yield move.apply(following, chosen, start), following


def _choices(eligible: list[Any], skips: bool) -> Iterator[list[Any]]:
    sizes = range(len(eligible), -1, -1) if skips else [len(eligible)]
    for size in sizes:
        for chosen in combinations(eligible, size):
            yield list(chosen)
