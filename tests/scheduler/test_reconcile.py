"""Reconciler: what the broker lost is published again, and a healthy backlog never is (I7)."""

from __future__ import annotations

import asyncio
from uuid import UUID

import msgspec
import pytest

from lateack_core.jobs import Success, Term
from lateack_core.stream import Broker, Entry, Hint
from lateack_scheduler.reconcile import Reconciler
from tests.sql.desk import Desk

QUEUE = "work"


# What a publish may take from the ledger's mark to the broker's entry, on a slow machine; and what
# passes between two publishes, so that the watermark tells them apart.
GRACE, APART = 0.8, 1.0


@pytest.fixture
def patient(desk: Desk) -> Desk:
    """A desk with a short grace, so that a test need not wait for a minute."""
    ground = desk.ground
    ground.settings = msgspec.structs.replace(ground.settings, reconcile_grace=GRACE)
    return desk


async def backlog(desk: Desk, count: int) -> list[UUID]:
    """Jobs that wait in a stream whose group exists, as workers make it."""
    for stream in desk.ground.broker.streams(QUEUE):
        await desk.ground.broker.ensure_group(stream)
    jobs = await desk.submit_many(count)
    await desk.publish()
    assert await desk.count("outbox") == 0
    return jobs


async def run_some(desk: Desk, count: int) -> list[UUID]:
    """A worker takes so many entries, runs them and acknowledges."""
    broker = desk.ground.broker
    entries: list[Entry] = await broker.read(broker.streams(QUEUE), "one", count)
    claimed = await desk.claim(*(UUID(entry.fields["job"]) for entry in entries))
    await desk.ledger.complete([Success(one.owned, None) for one in claimed])
    for entry in entries:
        await broker.ack(entry.stream, [entry.entry_id])
    return [one.job_id for one in claimed]


async def republished(desk: Desk) -> list[UUID]:
    """What was put in the outbox again."""
    rows = await desk.connection.fetch("SELECT job_id FROM lateack.outbox WHERE republish")
    return sorted(row["job_id"] for row in rows)


async def look(desk: Desk, reconciler: Reconciler, term: Term) -> list[UUID]:
    """One turn of the chore; everything in the outbox after it."""
    await reconciler.turn(term)
    return await republished(desk)


async def test_a_healthy_backlog_is_left_alone(patient: Desk) -> None:
    """Deep, older than the grace, half delivered: nothing is published again."""
    desk, reconciler = patient, Reconciler(patient.ground)
    term = await desk.lead()
    await backlog(desk, 300)
    assert await look(desk, reconciler, term) == []
    await asyncio.sleep(APART)
    assert await reconciler.walk(term) == 0
    await run_some(desk, 100)
    await asyncio.sleep(APART)
    assert await reconciler.walk(term) == 0
    assert await look(desk, reconciler, term) == []


@pytest.mark.parametrize("by_workers", [False, True])
async def test_a_flushed_broker(desk: Desk, by_workers: bool) -> None:
    """BRK-01, I7: exactly what had not been delivered, at the next look, whether the workers have
    made the groups anew before it or not; and once only."""
    reconciler, term = Reconciler(desk.ground), await desk.lead()
    jobs = await backlog(desk, 300)
    await run_some(desk, 100)
    assert await look(desk, reconciler, term) == []
    await desk.ground.broker._redis.flushall()
    if by_workers:
        for stream in desk.ground.broker.streams(QUEUE):
            await desk.ground.broker.ensure_group(stream)
    expected = [job for job in jobs if await desk.status(job) == "pending"]
    assert len(expected) == 200
    assert await look(desk, reconciler, term) == expected
    await desk.publish()
    for _ in range(3):
        assert await look(desk, reconciler, term) == []
    assert sorted(await run_some(desk, 500)) == expected


async def test_a_broker_that_was_restored_from_a_snapshot(desk: Desk) -> None:
    """I7, BRK-02: an older mark tells that the streams are older ones too."""
    ground = desk.ground
    reconciler, term = Reconciler(ground), await desk.lead()
    early = await backlog(desk, 5)
    await look(desk, reconciler, term)
    key = f"{ground.broker.namespace}:{{q:{QUEUE}}}:mark"
    snapshot = str(await ground.broker._redis.get(key))
    late = await backlog(desk, 7)
    await look(desk, reconciler, term)
    # Back to the snapshot: the late ones were never there.
    stream = ground.broker.stream(QUEUE, 2)
    newest = [entry_id for entry_id, _ in (await desk.entries(stream))[-7:]]
    await ground.broker._redis.xdel(stream, *newest)
    await ground.broker.mark(QUEUE, snapshot)
    found = await look(desk, reconciler, term)
    assert set(late) <= set(found) <= set(early + late)
    await desk.publish()
    # Those that were there twice are refused by the claim the second time.
    assert sorted(await run_some(desk, 500)) == sorted(early + late)


async def test_entries_lost_behind_a_moving_head(patient: Desk) -> None:
    """Exactly the ten that were deleted in the middle, once the head has passed them."""
    desk, reconciler = patient, Reconciler(patient.ground)
    term = await desk.lead()
    await backlog(desk, 100)
    broker = desk.ground.broker
    stream = broker.stream(QUEUE, 2)
    lost = (await desk.entries(stream))[30:40]
    await broker._redis.xdel(stream, *(entry_id for entry_id, _ in lost))
    await asyncio.sleep(APART)
    await backlog(desk, 20)
    await run_some(desk, 20)
    assert await reconciler.walk(term) == 0
    await run_some(desk, 80)
    assert await reconciler.walk(term) == 10
    assert await republished(desk) == sorted(UUID(fields["job"]) for _, fields in lost)
    await desk.publish()
    await run_some(desk, 100)
    assert await desk.count("jobs", "status = 'succeeded'") == 120
    assert await reconciler.walk(term) == 0


async def test_a_late_publish_is_no_loss(patient: Desk) -> None:
    """Design §10.4: a job that is published late counts from its publish, or it would be published
    again for ever."""
    desk, reconciler = patient, Reconciler(patient.ground)
    term = await desk.lead()
    late = await desk.submit(countdown=30)
    await desk.pass_time(60)
    await backlog(desk, 20)
    await run_some(desk, 10)
    assert await reconciler.walk(term) == 0
    assert await desk.status(late) in ("pending", "succeeded")


async def test_levels_are_compared_apart(patient: Desk) -> None:
    """Design §10.4: a stream whose head moves says nothing of a stream that is starved."""
    desk, reconciler = patient, Reconciler(patient.ground)
    term = await desk.lead()
    for stream in desk.ground.broker.streams(QUEUE):
        await desk.ground.broker.ensure_group(stream)
    await desk.submit_many(5, priority=0)
    await desk.submit_many(5, priority=9)
    await desk.publish()
    await asyncio.sleep(APART)
    assert len(await run_some(desk, 5)) == 5
    await asyncio.sleep(APART)
    assert await reconciler.walk(term) == 0


async def test_a_queue_is_young(desk: Desk) -> None:
    """A first job makes its stream before any worker makes the group: it is there, once."""
    reconciler, term = Reconciler(desk.ground), await desk.lead()
    job = await desk.submit()
    await desk.ground.broker.publish([Hint(job, QUEUE, 5)])
    await desk.connection.execute("DELETE FROM lateack.outbox")
    assert await look(desk, reconciler, term) == []
    assert await run_some(desk, 5) == [job]


async def test_a_broker_that_is_away_is_no_failure(desk: Desk) -> None:
    """I7: the chore waits, and compares when it is back."""
    term = await desk.lead()
    await desk.submit()
    await desk.ground.broker.close()
    desk.ground.broker = Broker("redis://127.0.0.1:1/0")
    await Reconciler(desk.ground).turn(term)


async def test_a_leader_that_is_no_longer_one_republishes_nothing(patient: Desk) -> None:
    """SCH-03: the statement carries the term."""
    desk = patient
    term = await desk.lead()
    await backlog(desk, 3)
    await desk.ground.broker._redis.flushall()
    old = term._replace(epoch=term.epoch - 1)
    assert await look(desk, Reconciler(desk.ground), old) == []
