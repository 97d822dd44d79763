"""A workflow as rows: which step waits for what, and feeds what.

Every row waits for one join at most and feeds exactly one. A chain puts a join after each of its
parts. A group is a row of its own: it waits for the join that its members feed, ends with the list
of their results, and feeds what comes next. The workflow's own row is the last of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from .identifiers import uuid7
from .validation import CheckedChain, CheckedGroup, CheckedPart, CheckedStep

GROUP_TASK = "lateack.group"


# Ids of rows and of joins are given in the order in which ends run through a workflow, which is the
# order in which everybody locks them: whoever ends a row goes on to those behind it.
NOT_YET = UUID(int=0)


@dataclass(eq=False)
class Join:
    """What rows wait for: `total` ends that feed it."""

    total: int
    gather: bool = False
    rule: str = "all"
    join_id: UUID = NOT_YET


@dataclass(eq=False)
class RowOf:
    """A row to insert. `step` is None for a group."""

    step: CheckedStep | None
    parent: RowOf | None
    waits: Join | None
    feeds: Join | None
    position: int
    # What the row was given instead of a result before it, as JSON text: for a group's empty list.
    given: str | None = None
    row_id: UUID = NOT_YET


class Plan:
    """The rows and joins of one workflow; `own` is its own row, the last."""

    def __init__(self, parts: Sequence[CheckedPart]) -> None:
        self.rows: list[RowOf] = []
        self.joins: list[Join] = []
        last = Join(1)
        self.own = RowOf(None, None, last, None, 0)
        self._chain(parts, None, last, 0, self.own)
        self._add_join(last)
        self.own.row_id = uuid7()

    def _add_join(self, join: Join) -> None:
        join.join_id = uuid7()
        self.joins.append(join)

    def _add(self, row: RowOf) -> None:
        row.row_id = uuid7()
        self.rows.append(row)

    def _chain(
        self,
        parts: Sequence[CheckedPart],
        waits: Join | None,
        feeds: Join,
        position: int,
        parent: RowOf,
        given: str | None = None,
    ) -> None:
        links: list[tuple[CheckedPart | None, str | None]] = []
        for part in parts:
            if isinstance(part, CheckedGroup) and not part.members:
                # Satisfied at once (design §10.13): all that it leaves is its empty list.
                given = "[]"
            else:
                links.append((part, given))
                given = None
        if given is not None:
            links.append((None, given))
        for number, (one, before) in enumerate(links):
            last = number == len(links) - 1
            after = feeds if last else Join(1)
            self._part(one, waits, after, position if last else 0, parent, before)
            if not last:
                self._add_join(after)
            waits = after

    def _part(
        self,
        part: CheckedPart | None,
        waits: Join | None,
        feeds: Join,
        position: int,
        parent: RowOf,
        given: str | None,
    ) -> None:
        if isinstance(part, CheckedChain):
            self._chain(part.parts, waits, feeds, position, parent, given)
        elif isinstance(part, CheckedGroup):
            members = Join(len(part.members), gather=True, rule=part.rule)
            group = RowOf(None, parent, members, feeds, position)
            for number, member in enumerate(part.members):
                self._part(member, waits, members, number, group, given)
            self._add_join(members)
            self._add(group)
        else:
            self._add(RowOf(part, parent, waits, feeds, position, given))


def columns_of(plan: Plan, queue: str, priority: int) -> list[Any]:
    """The parameters of create_workflow from its joins on, without the last one."""
    rows = plan.rows
    steps = [row.step for row in rows]
    return [
        [join.join_id for join in plan.joins],
        [join.total for join in plan.joins],
        [join.gather for join in plan.joins],
        [join.rule for join in plan.joins],
        [row.row_id for row in rows],
        [GROUP_TASK if step is None else step.task.name for step in steps],
        [queue if step is None else step.queue for step in steps],
        [priority if step is None else step.priority for step in steps],
        [_args(row) for row in rows],
        ["{}" if step is None else step.kwargs for step in steps],
        [0 if step is None else step.max_retries for step in steps],
        [None if row.waits is None else row.waits.join_id for row in rows],
        [None if row.feeds is None else row.feeds.join_id for row in rows],
        [row.position for row in rows],
        [_takes_no_result(row) for row in rows],
        [None if row.parent is None else row.parent.row_id for row in rows],
        ["workflow" if step is None else "lateack" for step in steps],
        plan.joins[-1].join_id,
    ]


def _args(row: RowOf) -> str:
    if row.step is None:
        return row.given or "[]"
    if row.given is None or row.step.immutable:
        return row.step.args
    rest = row.step.args[1:-1]
    return f"[{row.given}{',' if rest else ''}{rest}]"


def _takes_no_result(row: RowOf) -> bool:
    return row.given is not None or (row.step is not None and row.step.immutable)
