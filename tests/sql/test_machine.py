"""Random lives: whatever is called in whatever order, no job makes a move that the table lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
from hypothesis import HealthCheck
from hypothesis import settings as how
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lateack.states import LIVE, MOVES, TERMINAL
from lateack_core.ground import Ground, open_ground
from lateack_core.jobs import Beat, Failure, Moved, Owned, Success, Term
from lateack_core.settings import Settings
from tests.sql.desk import Desk, open_desk

T = TypeVar("T")
SLACK = timedelta(seconds=1)
# Few jobs at a time, so that their owners meet.
FEW = 4


class Lives(RuleBasedStateMachine):
    """Jobs and chains on one ledger, moved by everybody; every move is held against MOVES."""

    settings_for_ground: Settings

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.jobs: list[UUID] = []
        self.owned: list[Owned] = []
        self.rows: dict[UUID, asyncpg.Record] = {}
        # As the last move left them, and as it found them.
        self.leases: dict[UUID, asyncpg.Record] = {}
        self.before: dict[UUID, asyncpg.Record] = {}
        self.ground: Ground = self.do(open_ground(self.settings_for_ground, process="test"))
        self.opened = open_desk(self.ground)
        self.desk: Desk = self.do(self.opened.__aenter__())
        self.do(self.desk.connection.execute("DELETE FROM lateack.leader"))
        self.do(self.desk.pass_time(0))
        self.term: Term = self.do(self.desk.lead())

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def move(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Make one move, then hold what it left against what there was."""
        answer = self.do(work)
        self.do(self.compare())
        return answer

    def as_owner(self, owned: list[Owned], move: Coroutine[Any, Any, list[Moved]]) -> None:
        """A worker's move: it moves what is the caller's, all of it, and nothing else."""
        current = {o.job_id for o in owned if self.lease_of(o.job_id) == o.fence}
        assert {moved.job_id for moved in self.move(move)} == current

    def lease_of(self, job: UUID) -> int | None:
        lease = self.leases.get(job)
        return None if lease is None else int(lease["fence"])

    @property
    def live(self) -> list[UUID]:
        return [job for job in self.jobs if self.rows[job]["status"] in LIVE]

    def some_owned(self, data: st.DataObject) -> list[Owned]:
        # The stale are among them: they are never removed.
        live = set(self.live)
        held = [owned for owned in self.owned if owned.job_id in live] or self.owned
        if not held:
            return []
        chosen = st.lists(
            st.sampled_from(held), min_size=1, max_size=3, unique_by=lambda owned: owned.job_id
        )
        return data.draw(chosen)

    # -- moves ----------------------------------------------------------------------------

    @rule(
        countdown=st.sampled_from([None, 5.0]),
        expires=st.sampled_from([None, 20.0]),
        retries=st.integers(0, 2),
    )
    @precondition(lambda self: len(self.live) < FEW)
    def submit(self, countdown: float | None, expires: float | None, retries: int) -> None:
        job = self.desk.submit(countdown=countdown, expires=expires, max_retries=retries)
        self.jobs.append(self.move(job))

    @rule(steps=st.integers(2, 3))
    @precondition(lambda self: len(self.live) < FEW)
    def submit_chain(self, steps: int) -> None:
        own, ids = self.move(self.desk.chain(steps, max_retries=1))
        self.jobs += [own, *ids]

    @rule()
    def claim(self) -> None:
        claimed = self.move(self.desk.claim(*self.live, lease=10))
        self.owned += [one.owned for one in claimed]

    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        owned = self.some_owned(data)
        self.as_owner(owned, self.desk.ledger.complete([Success(o, "1") for o in owned]))

    @rule(data=st.data(), retry=st.sampled_from([None, 0.0, 5.0]))
    def fail(self, data: st.DataObject, retry: float | None) -> None:
        owned = self.some_owned(data)
        failures = [Failure(o, "Boom", "", {}, retry) for o in owned]
        self.as_owner(owned, self.desk.ledger.fail(failures))

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        owned = self.some_owned(data)
        self.as_owner(owned, self.desk.ledger.release(owned))

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        owned = self.some_owned(data)
        self.as_owner(owned, self.desk.ledger.lose(owned, max_losses=2))

    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        beats = [Beat(o, 10.0, "step") for o in self.some_owned(data)]
        current = {b.owned.job_id for b in beats if self.lease_of(b.owned.job_id) == b.owned.fence}
        renewals = self.move(self.desk.ledger.heartbeat(beats, lease=10))
        assert {one.job_id for one in renewals if one.renewed} == current

    @rule(data=st.data())
    @precondition(lambda self: bool(self.jobs))
    def cancel(self, data: st.DataObject) -> None:
        self.move(self.desk.ledger.cancel("default", [data.draw(st.sampled_from(self.jobs))]))

    @rule(seconds=st.sampled_from([1, 6, 11, 40]))
    def time_passes(self, seconds: int) -> None:
        self.move(self.desk.pass_time(seconds))

    @rule()
    def reap(self) -> None:
        now = self.do(self.desk.connection.fetchval("SELECT lateack.now()"))
        expired = {job for job, lease in self.leases.items() if lease["until"] < now}
        # A lease may run out between the two statements; a valid one is never among them.
        reaped = {moved.job_id for moved in self.move(self.desk.ledger.reap(None, max_losses=2))}
        assert reaped >= expired
        assert all(self.before[job]["until"] < now + SLACK for job in reaped)

    @rule()
    def expire(self) -> None:
        self.move(self.desk.ledger.expire())

    @rule()
    def clean(self) -> None:
        self.move(
            self.desk.ledger.fail_stale_pending(
                self.term, timeouts={"": 30.0}, unpublished_timeout=60, gone_after=5
            )
        )

    @rule()
    def relay(self) -> None:
        self.move(self.ground.relay.turn())

    @rule()
    def republish(self) -> None:
        self.move(self.desk.ledger.republish_lost(self.term, "work", (0, 9), older_than=3))

    # -- what always holds ----------------------------------------------------------------

    async def compare(self) -> None:
        fetch = self.desk.connection.fetch
        rows = {row["id"]: row for row in await fetch("SELECT * FROM lateack.jobs")}
        self.before = self.leases
        self.leases = {row["job_id"]: row for row in await fetch("SELECT * FROM lateack.leases")}
        outbox = {row["job_id"] for row in await fetch("SELECT job_id FROM lateack.outbox")}
        for job, row in rows.items():
            before, status = self.rows.get(job), row["status"]
            if before is not None:
                if before["status"] in TERMINAL:
                    assert row == before
                assert status == before["status"] or status in MOVES[before["status"]]
                assert row["fence"] >= before["fence"]
            # I3: a lease if and only if it runs, under the fence of its owner.
            assert self.lease_of(job) == (row["fence"] if status == "running" else None)
            assert (row["completed_at"] is not None) == (status in TERMINAL)
            assert (row["error_code"] is not None) == (status == "failed")
            assert row["attempt"] <= row["max_retries"] + 1
            # I1: what waits for its time is in the outbox, or nobody would ever publish it.
            assert status not in ("scheduled", "retrying") or job in outbox
        await self.compare_chains(rows)
        self.rows = rows

    async def compare_chains(self, rows: dict[UUID, asyncpg.Record]) -> None:
        """I5: a step waits exactly as long as what it waits for has not ended."""
        ends = {row["feeds"]: row["status"] for row in rows.values() if row["feeds"] is not None}
        for row in rows.values():
            if row["waits_for"] is None or row["status"] == "cancelled":
                continue
            upstream = ends[row["waits_for"]]
            assert (row["status"] == "blocked") == (upstream in LIVE)
            assert row["error_code"] != "UpstreamFailed" or upstream == "failed"

    def teardown(self) -> None:
        self.do(
            self.desk.connection.execute("TRUNCATE lateack.jobs, lateack.leases, lateack.outbox")
        )
        self.do(self.opened.__aexit__(None, None, None))
        self.do(self.ground.close())
        self.loop.close()


def test_no_life_leaves_the_table(settings: Settings) -> None:
    """I2, I3, I5: the state table, fences, leases and joins under random moves."""
    Lives.settings_for_ground = settings
    run_state_machine_as_test(
        Lives,
        settings=how(
            max_examples=100,
            stateful_step_count=50,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
