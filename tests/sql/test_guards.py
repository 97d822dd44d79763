"""Guards that the moves themselves never put to the test, each alone: what is true of every ledger
that only moves have touched is made untrue here by hand, and what a moment hides is held open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import pytest

from lateack_core.identifiers import uuid7
from lateack_core.jobs import Beat, Failure, Owned, Success
from lateack_core.outbox import Relay
from lateack_core.settings import Settings
from lateack_core.stream import Broker, BrokerUnavailable, Hint
from lateack_sql import query
from tests.sql.desk import Desk


async def test_a_lease_keeps_everybody_out(desk: Desk) -> None:
    """I3: the lease decides, whatever the job's row says; a claim that meets one gets nothing, is
    no error, and leaves it as it was."""
    leased, free = await desk.submit_many(2)
    owner = uuid7()
    await desk.connection.execute(
        "INSERT INTO lateack.leases (job_id, fence, worker_id, until) "
        "VALUES ($1, 7, $2, lateack.now() - interval '1 hour')",
        leased,
        owner,
    )
    assert [one.job_id for one in await desk.claim(leased, free)] == [free]
    lease = await desk.connection.fetchrow("SELECT * FROM lateack.leases WHERE job_id = $1", leased)
    assert lease is not None
    assert (lease["fence"], lease["worker_id"]) == (7, owner)
    assert await desk.status(leased) == "pending"


async def test_a_claim_heeds_a_cancellation(desk: Desk) -> None:
    """CAN-02: a job that somebody wants cancelled does not start, however it came to wait again."""
    job = await desk.submit()
    await desk.connection.execute("UPDATE lateack.jobs SET cancel_requested_at = lateack.now()")
    assert await desk.claim(job) == []


async def test_a_lease_of_another_fence_is_not_reaped(desk: Desk) -> None:
    """I3: it is not the lease of whoever runs the job now."""
    job = await desk.submit()
    await desk.run(job, lease=5)
    await desk.connection.execute("UPDATE lateack.jobs SET fence = fence + 1")
    await desk.pass_time(6)
    assert await desk.ledger.reap(None, max_losses=3) == []


@pytest.mark.parametrize("word", ["complete", "fail", "release", "lose", "heartbeat", "begin"])
async def test_a_stale_word_while_another_runs_the_job(desk: Desk, word: str) -> None:
    """I2, REC-02: the fence alone tells them apart."""
    job = await desk.submit()
    stale = await desk.run(job, lease=5)
    await desk.pass_time(6)
    assert len(await desk.ledger.reap(None, max_losses=3)) == 1
    fresh = await desk.run(job)
    select = "SELECT * FROM lateack.jobs JOIN lateack.leases ON job_id = id"
    before = await desk.connection.fetch(select)
    answers: list[Any] = []
    for owned in (stale, Owned(job, fresh.fence + 1)):
        match word:
            case "complete":
                answers += await desk.ledger.complete([Success(owned, "1")])
            case "fail":
                answers += await desk.ledger.fail([Failure(owned, "Boom", "", {}, None)])
            case "release":
                answers += await desk.ledger.release([owned])
            case "lose":
                answers += await desk.ledger.lose([owned], max_losses=1)
            case "begin":
                answers += await desk.ledger.begin([owned])
            case _:
                renewals = await desk.ledger.heartbeat([Beat(owned, 50.0, "x")], lease=99)
                answers += [one for one in renewals if one.renewed or one.held]
    assert answers == []
    assert await desk.connection.fetch(select) == before
    assert await desk.complete(fresh)


@pytest.mark.parametrize("second", ["complete", "fail", "release", "lose"])
async def test_a_second_word_on_a_settled_attempt(desk: Desk, second: str) -> None:
    """I2, RTY-02: a retry keeps the fence, and the owner who asked for it has nothing to say any
    more."""
    job = await desk.submit()
    owned = await desk.run(job)
    assert await desk.fail(owned, retry_after=60) == "retrying"
    before = await desk.row(job)
    said: dict[str, Any] = {
        "complete": desk.ledger.complete([Success(owned, "1")]),
        "fail": desk.ledger.fail([Failure(owned, "Boom", "", {}, None)]),
        "release": desk.ledger.release([owned]),
        "lose": desk.ledger.lose([owned], max_losses=1),
    }
    word = said.pop(second)
    for other in said.values():
        other.close()
    assert await word == []
    assert await desk.row(job) == before


@pytest.mark.parametrize("second", ["complete", "fail", "release"])
@pytest.mark.parametrize("first", ["complete", "fail", "release"])
async def test_two_words_at_once(desk: Desk, first: str, second: str) -> None:
    """I2: the same owner twice, as after an answer that was not heard: the second waits for the
    first one's row and finds that there is nothing of its own any more."""
    job = await desk.submit()
    fence = (await desk.run(job)).fence
    args: dict[str, list[Any]] = {
        "complete": [[job], [fence], ["1"], [None]],
        "fail": [[job], [fence], ["E"], [""], ["{}"], [0.0]],
        "release": [[job], [fence]],
    }
    async with desk.open_transaction() as one, desk.open_transaction() as two:
        assert await one.fetch(query(f"{first}_jobs"), *args[first])
        waiting = asyncio.create_task(two.fetch(query(f"{second}_jobs"), *args[second]))
        await desk.blocked()
        await one.execute("COMMIT")
        assert await waiting == []
        await two.execute("COMMIT")


async def test_whoever_moves_a_job_raises_its_fence(desk: Desk) -> None:
    """I2, I8: he speaks of it under a fence that no owner before him had."""
    cancelled, late, stale, released, reaped = [
        await desk.submit(expires=10 if n == 1 else None) for n in range(5)
    ]
    owned = await desk.run(released)
    lost = await desk.run(reaped, lease=5)
    ledger = desk.ledger
    moves = [*await ledger.cancel("default", [cancelled]), *await ledger.release([owned])]
    await desk.publish()
    await desk.pass_time(11)
    moves += [*await ledger.reap(None, max_losses=3), *await ledger.expire()]
    await desk.connection.execute("DELETE FROM lateack.jobs WHERE id = $1", released)
    moves += await ledger.fail_stale_pending(
        await desk.lead(), timeouts={"": 5.0}, unpublished_timeout=1e6, gone_after=60
    )
    assert {move.job_id: move.fence for move in moves} == {
        cancelled: 1,
        late: 1,
        stale: 1,
        released: owned.fence + 1,
        reaped: lost.fence + 1,
    }


async def test_two_cancellations_at_once(desk: Desk) -> None:
    """CAN-01: the second one meets a terminal row, and that is no error."""
    job = await desk.submit()
    async with desk.open_transaction() as one:
        assert len(await one.fetch(query("cancel_jobs"), "default", [job])) == 1
        waiting = asyncio.create_task(desk.ledger.cancel("default", [job]))
        await desk.blocked()
        await one.execute("COMMIT")
        assert await waiting == []


async def test_a_worker_without_the_task_loses_no_hint(desk: Desk) -> None:
    """I1, design §10.11: what it puts back is a row of its own. The row whose hint it has read may
    still be there, and is deleted by whoever published it."""
    job = await desk.submit()
    fresh = await desk.connection.fetchval("SELECT id FROM lateack.outbox")
    # Published, read by a worker that lacks the task, and only then deleted.
    assert await desk.ledger.claim([job], uuid7(), lease=30, tasks=["t.other"]) == []
    await desk.ledger.defer({job: 5.0})
    await desk.ground.postgres.fetch("delete_outbox", [fresh])
    assert await desk.count("outbox") == 1


# -- what is locked, and what is not due -------------------------------------------------


async def test_a_relay_passes_over_what_another_takes(desk: Desk) -> None:
    """OUT-02: two relays share what is due, and neither waits."""
    await desk.submit_many(2)
    await desk.pass_time(60)
    fetch = desk.ground.postgres.fetch_with_lock_timeout
    async with desk.open_transaction() as one:
        taken = await one.fetch(query("lease_outbox"), 5.0, 1)
        others = await fetch("lease_outbox", 500, 5.0, 10)
        assert len(taken) == len(others) == 1
        assert taken[0]["id"] != others[0]["id"]
        await one.execute("COMMIT")
    # Taken, they are not due.
    assert await fetch("lease_outbox", 500, 5.0, 10) == []


class Refusing(Broker):
    """A broker that answers, and takes no hint: all of them, or the second of two."""

    taken: tuple[bool, ...] = ()

    async def publish(self, hints: Sequence[Hint]) -> list[bool]:
        if not self.taken:
            raise BrokerUnavailable("full")
        return list(self.taken)


@pytest.mark.parametrize("taken", [(), (True, False)])
async def test_what_was_not_published_stays_in_the_outbox(
    desk: Desk, settings: Settings, taken: tuple[bool, ...]
) -> None:
    """OUT-02, I7: a row is deleted after the broker has said that it has the hint, not before."""
    assert settings.redis_url
    await desk.submit_many(2)
    await desk.pass_time(60)
    broker = Refusing(settings.redis_url)
    broker.taken = taken
    relay = Relay(desk.ground.postgres, broker, interval=1)
    with contextlib.suppress(BrokerUnavailable):
        await relay.turn()
    await broker.close()
    assert await desk.count("outbox") == (1 if taken else 2)
    # They are the first relay's for a while.
    await desk.pass_time(6)
    await desk.publish()
    assert await desk.count("outbox") == 0


async def test_an_acknowledged_entry_is_in_neither_book(desk: Desk) -> None:
    """BRK-07, BRK-04: not in the stream, and pending with nobody."""
    broker = desk.ground.broker
    stream = broker.stream("work", 2)
    await broker.ensure_group(stream)
    await broker.publish([Hint(uuid7(), "work", 5) for _ in range(3)])
    entries = await broker.read([stream], "me", 10)
    assert await broker.depth("work") == (0, 3)
    # BRK-04: who owns entries is not forgotten, or they would be nobody's.
    assert await broker.remove_idle_consumers(stream, 0) == 0
    assert await broker.ack(stream, [entry.entry_id for entry in entries]) == 3
    assert await broker.ghosts(stream, "me") == []
    assert await broker.depth("work") == (0, 0)
    assert await desk.entries(stream) == []
    assert await broker.remove_idle_consumers(stream, 0) == 1


async def test_what_is_on_its_way_is_not_published_again(desk: Desk) -> None:
    """I7: a second look before the relay's turn finds nothing lost, however old the job is."""
    await desk.submit()
    await desk.publish()
    await desk.pass_time(60)
    term = await desk.lead()
    again = []
    for _ in range(2):
        again.append(await desk.ledger.republish_lost(term, "work", (0, 9), older_than=1))
        await desk.pass_time(60)
    assert again == [1, 0]


async def test_a_relay_marks_nothing_before_its_time(desk: Desk) -> None:
    """DEL-10: though its row were taken too early, a delayed job stays what it is."""
    job = await desk.submit(countdown=60)
    (marked,) = await desk.ground.postgres.fetch("mark_runnable", [job], [False])
    assert (marked["ready"], marked["gone"]) == (False, False)
    assert await desk.status(job) == "scheduled"


async def test_only_a_dead_process_is_lost_at_once(desk: Desk) -> None:
    """I3: an owner's word ends its own lease; the sweep leaves a valid one alone."""
    job = await desk.submit()
    owned = await desk.run(job)
    assert await desk.ledger.reap([job], max_losses=3) == []
    assert await desk.ledger.lose([Owned(job, owned.fence + 1)], max_losses=3) == []
    assert len(await desk.ledger.lose([owned], max_losses=3)) == 1
