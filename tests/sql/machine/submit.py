"""Submissions, a few at once through one of several doors; with few keys, so that they meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple
from uuid import UUID

from lateack import Submission
from lateack.models import Step
from lateack_core.submission import Accepted, Submissions
from lateack_core.validation import Refused
from tests.sql.machine.model import Row
from tests.sql.machine.table import Table

OUTBOX_DELAY = 2.0


class Item(NamedTuple):
    """What a caller asks for. Content that differs under one key is a conflict."""

    key: str | None
    content: int
    countdown: float | None
    expires: float | None
    retries: int
    steps: int

    @property
    def submission(self) -> Submission:
        return Submission(
            task="t.work",
            idempotency_key=self.key,
            args=[self.content],
            countdown=self.countdown,
            expires=self.expires,
            max_retries=self.retries,
            then=[Step(task="t.work")] * (self.steps - 1),
        )


Said = Sequence["Accepted | Exception"]


@dataclass(frozen=True)
class Submit:
    """One caller's batch."""

    items: tuple[Item, ...]

    @staticmethod
    def drawn(dice: Random) -> Submit:
        items = [
            Item(
                key=dice.choice([None, "a", "b"]),
                content=dice.choice([1, 1, 1, 2]),
                countdown=dice.choice([None, None, 5.0]),
                expires=dice.choice([None, None, 20.0]),
                retries=dice.choice([0, 1, 2]),
                steps=dice.choice([1, 1, 2, 3]),
            )
            for _ in range(dice.randint(1, 3))
        ]
        return Submit(tuple(items))

    async def submit(self, door: Submissions) -> Said:
        return await door.accept_many("default", [item.submission for item in self.items])

    @staticmethod
    def check(
        before: Table,
        after: Table,
        submits: Sequence[tuple[Submit, Said]],
        items: dict[str, Item],
    ) -> None:
        """I4: of each key one job, ever; everybody is told of it, or of the conflict. `items` are
        the keys with what they were first used for, and grow."""
        told = [pair for submit, said in submits for pair in zip(submit.items, said, strict=True)]
        made: dict[UUID, Item] = {}
        for item, answer in told:
            if isinstance(answer, Accepted) and not answer.replayed:
                made[answer.job.job_id] = item
                if item.key is not None:
                    assert item.key not in items, "a key that was known made a job"
                    items[item.key] = item
                    assert after.keys[item.key] == answer.job.job_id
        for item, answer in told:
            if isinstance(answer, Refused):
                assert answer.refusal.type == "key-conflict", answer
                assert item.key is not None
                assert items[item.key] != item, "its own content was called a conflict"
            elif not isinstance(answer, Accepted):
                raise answer
            elif answer.replayed:
                assert item.key is not None
                assert items[item.key] == item, "other content was called a replay"
                assert after.keys[item.key] == answer.job.job_id
        fresh = [f for f in after.families() if f.isdisjoint(before.rows)]
        assert len(fresh) == len(made), "jobs that nobody was told of"
        for family in fresh:
            (own,) = family & made.keys()
            _is_fresh(after, family, made[own])


def _is_fresh(table: Table, family: frozenset[UUID], item: Item) -> None:
    rows = [table.rows[job] for job in family if not table.rows[job].workflow]
    slips = [slip for slip in table.outbox if slip.job in family]
    first = "pending" if item.countdown is None else "scheduled"
    assert sorted(map(_status, rows)) == sorted([first, *["blocked"] * (item.steps - 1)])
    assert all((row.fence, row.attempt, row.lease) == (0, 0, None) for row in rows)
    due = OUTBOX_DELAY if item.countdown is None else item.countdown
    assert [(slip.due, slip.republish) for slip in slips] == [(table.now + due, False)]


def _status(row: Row) -> str:
    return row.status
