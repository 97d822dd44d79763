"""Several connections at once, at random: some order of their moves explains what each was told.

A step makes two to four moves at the same time, often all of them caught behind one lock, so that
each has looked before any of them wrote. Then the ledger is read, and `order.explained` looks for
an order; `promises.check` holds whatever was done. A deadlock is a failure, and so is a violated
constraint.

MACHINE_EXAMPLES=2000 makes it a long search, and another one each time; without it, it is always
the same.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from random import Random
from typing import Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import settings as how
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from lateack_core import postgres as door
from lateack_core.identifiers import uuid7
from lateack_core.jobs import Owned, Term
from lateack_core.settings import Settings
from tests.sql.machine import chores, moves
from tests.sql.machine.bench import ACTORS, HOLDS, Bench, open_bench
from tests.sql.machine.model import State
from tests.sql.machine.moves import LEADER, Answer, Move
from tests.sql.machine.order import Call, explained
from tests.sql.machine.promises import check
from tests.sql.machine.submit import Item, Submit
from tests.sql.machine.table import Table, read, set_clock

T = TypeVar("T")
EXAMPLES = int(os.environ.get("MACHINE_EXAMPLES", "0"))
# Few jobs at a time, so that the moves meet.
FEW = 3
# On a machine that is busy with other things the search ends earlier; seconds.
BUDGET = 20.0
HOW = how(
    max_examples=EXAMPLES or 40,
    stateful_step_count=30,
    deadline=None,
    database=None,
    derandomize=not EXAMPLES,
    print_blob=True,
    # What happened once may not happen again: the first failure is told as it was.
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
# What a move is made of is drawn by a seed of its own: what hypothesis itself draws must not depend
# on who was first.
SEEDS = st.integers(0, 2**32 - 1)
# How often each is drawn.
KINDS = (
    *["claim"] * 6, *["complete"] * 3, *["fail"] * 3, *["release"] * 2, *["heartbeat"] * 2,
    *["lose"] * 2, "begin", *["reap"] * 2, *["cancel"] * 2, *["submit"] * 3, *["again"] * 3,
    *["take_outbox"] * 2, *["mark"] * 3, *["delete"] * 4, *["defer"] * 3, *["clean"] * 2,
    *["republish"] * 3, *["lead"] * 2, "step_down", "expire",
)  # fmt: skip


class Connections(RuleBasedStateMachine):
    """Workers, relays, leaders and callers on one ledger, at the same moments."""

    bench: Bench
    loop: asyncio.AbstractEventLoop
    until: float

    def __init__(self) -> None:
        super().__init__()
        # What hypothesis draws is the same all the same.
        self.over = time.monotonic() > self.until
        self.now = 0.0
        self.workers = [uuid7(), uuid7()]
        self.terms = [Term(chores.NAME, uuid7(), 1), Term(chores.NAME, uuid7(), 1)]
        self.candidates = [term.holder for term in self.terms]
        self.past: list[Owned] = []
        self.taken: list[chores.Taken] = []
        self.published: list[chores.Taken] = []
        # Hints in the broker, and hints that a worker read and could not claim.
        self.hints: set[UUID] = set()
        self.puzzles: set[UUID] = set()
        self.history: list[Move | Submit] = []
        self.items: dict[str, Item] = {}
        if self.over:
            return
        self.do(self.bench.empty())
        self.table: Table = self.do(read(self.bench.looker, self.now))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    # -- what can be done -----------------------------------------------------------------

    @property
    def live(self) -> list[UUID]:
        return sorted(job for job, row in self.table.rows.items() if not row.ended)

    def some(self, dice: Random, things: Sequence[T], most: int = 3) -> tuple[T, ...]:
        """A few, in any order."""
        return tuple(dice.sample(things, dice.randint(1, min(most, len(things)))))

    def some_owned(self, dice: Random) -> tuple[Owned, ...]:
        rows = self.table.rows
        now = [Owned(job, rows[job].fence) for job in self.live if rows[job].status == "running"]
        # The stale say their word too.
        held = now + [one for one in self.past[-4:] if one not in now]
        if not held:
            return ()
        chosen = self.some(dice, held)
        return tuple({one.job_id: one for one in chosen}.values())

    def move(self, kind: str, dice: Random) -> Move | Submit | None:
        """A move of this kind; mostly one that would do something if it were alone, of whatever
        kind that is."""
        first = self.made(kind, dice)
        if dice.random() < 0.3:
            return first
        others = (self.made(other, dice) for other in dice.sample(KINDS, 8))
        whole = self.table.state(frozenset(self.table.rows))
        for made in (first, *others):
            if isinstance(made, Submit) or (made is not None and made.eligible(whole, whole)):
                return made
        return first

    def made(self, kind: str, dice: Random) -> Move | Submit | None:
        if kind == "again":
            return dice.choice(self.history[-5:]) if self.history else None
        make: Callable[[Random], Move | Submit | None] = getattr(self, f"make_{kind}")
        return make(dice)

    def some_term(self, dice: Random) -> Term:
        """The newest mostly; those that are over try as well."""
        return self.terms[-1] if dice.random() < 0.6 else dice.choice(self.terms)

    def make_submit(self, dice: Random) -> Submit | None:
        if len([f for f in self.table.families() if not f.isdisjoint(self.live)]) >= FEW:
            return None
        return Submit.drawn(dice)

    def make_claim(self, dice: Random) -> Move | None:
        if not self.live:
            return None
        # Now and then a worker that lacks the task.
        tasks = dice.choice([("t.work",), ("t.work",), ("t.work",), ()])
        worker = dice.choice(self.workers)
        return moves.Claim(self.some(dice, self.live), worker, tasks, dice.random() < 0.3)

    def make_complete(self, dice: Random) -> Move | None:
        owned = self.some_owned(dice)
        result = dice.choice(["1", None])
        return moves.Complete(owned, result) if owned else None

    def make_fail(self, dice: Random) -> Move | None:
        owned = self.some_owned(dice)
        return moves.Fail(owned, dice.choice([0.0, 5.0, None])) if owned else None

    def make_release(self, dice: Random) -> Move | None:
        owned = self.some_owned(dice)
        return moves.Release(owned) if owned else None

    def make_heartbeat(self, dice: Random) -> Move | None:
        owned = self.some_owned(dice)
        return moves.Heartbeat(owned) if owned else None

    def make_begin(self, dice: Random) -> Move | None:
        owned = self.some_owned(dice)
        return moves.Begin(owned) if owned else None

    def make_lose(self, dice: Random) -> Move | None:
        owned = self.some_owned(dice)
        return moves.Lose(owned) if owned else None

    def make_reap(self, dice: Random) -> Move | None:
        named = bool(self.live) and dice.random() < 0.5
        return moves.Reap(self.some(dice, self.live) if named else None)

    def make_expire(self, dice: Random) -> Move | None:
        return moves.Expire(None)

    def make_cancel(self, dice: Random) -> Move | None:
        jobs = sorted(self.table.rows)
        return moves.Cancel(self.some(dice, jobs, most=2)) if jobs else None

    def make_lead(self, dice: Random) -> Move | None:
        return chores.Lead(dice.choice(self.candidates))

    def make_step_down(self, dice: Random) -> Move | None:
        return chores.StepDown(self.some_term(dice))

    def make_clean(self, dice: Random) -> Move | None:
        return chores.Clean(self.some_term(dice))

    def make_republish(self, dice: Random) -> Move | None:
        return chores.Republish(self.some_term(dice))

    def make_take_outbox(self, dice: Random) -> Move | None:
        return chores.TakeOutbox()

    def make_mark(self, dice: Random) -> Move | None:
        return chores.Mark(self.some(dice, self.taken)) if self.taken else None

    def make_delete(self, dice: Random) -> Move | None:
        return chores.Delete(self.some(dice, self.published)) if self.published else None

    def make_defer(self, dice: Random) -> Move | None:
        """What a worker puts back, by what it was told of the jobs that it could not claim."""
        rows = self.table.rows
        waits = [
            job
            for job in sorted(self.puzzles)
            if rows[job].status == "pending" and rows[job].runnable(self.now)
        ]
        self.puzzles.intersection_update(waits)
        return chores.Defer(self.some(dice, waits)) if waits else None

    # -- steps ----------------------------------------------------------------------------

    @initialize(seed=SEEDS)
    def begin(self, seed: int) -> None:
        if not self.over:
            self.step([Submit.drawn(Random(seed))], None)

    @rule(
        seconds=st.sampled_from([0, 0, 0, 1, 4, 6, 11, 31]),
        plan=st.lists(st.tuples(st.sampled_from(KINDS), SEEDS), min_size=2, max_size=ACTORS),
        hold=st.sampled_from(["", *HOLDS]),
    )
    def at_once(self, seconds: int, plan: list[tuple[str, int]], hold: str) -> None:
        if self.over:
            return
        if seconds:
            self.do(self.time_passes(seconds))
        drawn = [self.move(kind, Random(seed)) for kind, seed in plan]
        calls = [call for call in drawn if call is not None]
        if calls:
            self.step(calls, HOLDS.get(hold))

    async def time_passes(self, seconds: int) -> None:
        self.now += seconds
        await set_clock(self.bench.looker, self.now)
        self.table = await read(self.bench.looker, self.now)

    def step(self, calls: Sequence[Move | Submit], held: str | None) -> None:
        answers = self.do(self.bench.together(calls, held))
        before, after = self.table, self.do(read(self.bench.looker, self.now))
        pairs = list(zip(calls, answers, strict=True))
        submits = [(call, answer) for call, answer in pairs if isinstance(call, Submit)]
        made = [Call(call, answer) for call, answer in pairs if isinstance(call, Move)]
        Submit.check(before, after, submits, self.items)
        for call in made:
            known = {job for job in call.answer if job is not LEADER}
            assert known <= before.rows.keys(), f"{call} speaks of jobs that nobody had heard of"
            self.heard(call.move, call.answer)
        for family in before.families():
            self.explain(before.state(family), after.state(family), made, held is not None)
        check(before, after, self.hints | self.puzzles)
        self.table = after
        self.history += calls

    def explain(self, before: State, after: State, made: Sequence[Call], held: bool) -> None:
        calls = [call for call in made if call.move.touches(before.rows)]
        assert explained(before, after, calls, held=held), "\n".join(
            ["no order explains this:", *map(str, calls), f"before {before}", f"after {after}"]
        )

    def heard(self, move: Move, answer: Answer) -> None:
        """What the callers remember of their answers."""
        if isinstance(move, moves.Claim):
            self.hints.difference_update(move.ids)
            self.puzzles.update(job for job in move.ids if job not in answer)
            self.past += [Owned(job, answer[job][0]) for job in move.ids if job in answer]
        elif isinstance(move, chores.Defer):
            self.puzzles.difference_update(move.ids)
        elif isinstance(move, chores.Lead):
            holder, epoch = answer[LEADER]
            if epoch is not None:
                self.terms.append(Term(chores.NAME, holder, epoch))
        elif isinstance(move, chores.TakeOutbox):
            self.taken += [
                chores.Taken(number, job, again)
                for job, slips in answer.items()
                if job is not None
                for number, again in slips
            ]
        elif isinstance(move, chores.Mark):
            for slip in move.slips:
                ready, gone = answer[slip.job]
                if ready:
                    self.hints.add(slip.job)
                if ready or gone:
                    self.published.append(slip)


def test_some_order_explains_them_all(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """I1 to I5, I10: any moves, from four connections at once."""
    # What the product sends again after a deadlock is to be seen here.
    monkeypatch.setattr(door, "_REPEATABLE", ())
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        Connections.loop = runner.get_loop()
        Connections.until = time.monotonic() + (BUDGET if not EXAMPLES else 1e9)
        Connections.bench = runner.run(stack.enter_async_context(open_bench(settings)))
        try:
            run_state_machine_as_test(Connections, settings=HOW)
        finally:
            runner.run(stack.aclose())
