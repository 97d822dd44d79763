"""Rescue, expiry and janitor: what died is found, and what lives is left alone."""

from __future__ import annotations

from uuid import UUID

import msgspec

from lateack_core.identifiers import uuid7
from lateack_core.jobs import Beat, Worker
from lateack_scheduler.expiry import expire
from lateack_scheduler.janitor import sweep
from lateack_scheduler.rescue import reap
from tests.sql.desk import Desk, until


async def settled(desk: Desk) -> None:
    """Wait until this process has known its ledger for long enough."""

    async def enough() -> bool:
        return desk.ground.postgres.settled_for > desk.ground.settings.ledger_settle

    await until(enough)


async def test_abandoned_jobs_run_again(desk: Desk) -> None:
    """I1, design §10.10: their next attempt is in the outbox at once, for more than one batch."""
    await settled(desk)
    jobs = await desk.submit_many(25)
    living, *dead = [claimed.owned for claimed in await desk.claim(*jobs, lease=5)]
    await desk.pass_time(6)
    await desk.ledger.heartbeat([Beat(living, None, None)], lease=30)
    assert await reap(desk.ground, batch=10) == 24
    assert await desk.status(living.job_id) == "running"
    assert await desk.statuses([owned.job_id for owned in dead]) == ["pending"] * 24
    assert await desk.count("outbox", "due <= lateack.now()") >= 24
    assert await reap(desk.ground) == 0


async def test_nothing_is_reaped_right_after_trouble(desk: Desk) -> None:
    """Design §10.7: after an outage every lease looks expired; the workers beat first."""
    ground = desk.ground
    job = await desk.submit()
    owned = await desk.run(job, lease=5)
    await desk.pass_time(600)
    ground.settings = msgspec.structs.replace(ground.settings, ledger_settle=3600.0)
    assert await reap(ground) == 0
    assert await desk.status(job) == "running"
    (renewal,) = await desk.ledger.heartbeat([Beat(owned, None, None)], lease=30)
    assert renewal.renewed


async def test_a_job_that_always_kills_its_worker_does_not_hold_up_others(desk: Desk) -> None:
    """RTY-01: it ends as WorkerLost, and all others finish."""
    await settled(desk)
    killer, other = await desk.submit_many(2, max_retries=100)
    for _ in range(desk.ground.settings.max_worker_losses):
        await desk.run(killer, lease=5)
        await desk.pass_time(6)
        await reap(desk.ground)
    row = await desk.row(killer)
    assert (row["status"], row["error_code"]) == ("failed", "WorkerLost")
    assert "lost 3 times" in row["error_message"]
    assert await desk.complete(await desk.run(other))


async def test_late_jobs_expire(desk: Desk) -> None:
    """RTY-09"""
    late = await desk.submit_many(3, expires=10)
    fine = await desk.submit(expires=1000)
    await desk.pass_time(11)
    assert await expire(desk.ground) == 3
    assert await desk.statuses(late) == ["failed"] * 3
    assert await desk.status(fine) == "pending"


async def test_a_dead_workers_jobs_come_before_its_name(desk: Desk) -> None:
    """BRK-04: a consumer that owns entries, a worker that holds leases: they stay until free."""
    await settled(desk)
    ground, dead = desk.ground, uuid7()
    jobs = await desk.submit_many(10)
    streams = ground.broker.streams("work")
    for stream in streams:
        await ground.broker.ensure_group(stream)
    await desk.publish()
    # Only where it owns entries: elsewhere it would be an idle consumer, and rightly forgotten.
    entries = await ground.broker.read([streams[1]], "dead", 10)
    assert len(await desk.claim(*jobs, lease=5, worker=dead)) == 10
    await desk.ledger.beat_worker(Worker(dead, "dead", "h", 1, ["work"], ["t.work"], 10))
    ground.settings = msgspec.structs.replace(
        ground.settings, lease=0.003, heartbeat=0.001, cleanup_interval=0.01
    )
    await desk.pass_time(600)
    assert await sweep(ground) == (0, 0)
    assert await reap(ground) == 10
    _, taken, _ = await ground.broker.take_over(streams[1], "living", 0, "0-0")
    assert len(taken) == len(entries) == 10

    async def forgotten() -> bool:
        await sweep(ground)
        return await desk.count("workers") == 0 and (await consumers(desk)) == {"living"}

    await until(forgotten)
    assert await desk.statuses(jobs) == ["pending"] * 10


async def consumers(desk: Desk) -> set[str]:
    """The names in the group of the queue's usual stream."""
    broker = desk.ground.broker
    rows = await broker._redis.xinfo_consumers(broker.stream("work", 2), "workers")
    return {str(row["name"]) for row in rows}


async def test_hundreds_that_died_are_forgotten(desk: Desk) -> None:
    """BRK-13: the list shrinks back to the living."""
    ground, living = desk.ground, uuid7()
    await desk.submit()
    streams = ground.broker.streams("work")
    for stream in streams:
        await ground.broker.ensure_group(stream)
    for number in range(200):
        await ground.broker.read(streams, f"dead-{number}", 1)
        await desk.ledger.beat_worker(Worker(uuid7(), f"d{number}", "h", 1, ["work"], [], 1))
    ground.settings = msgspec.structs.replace(
        ground.settings, lease=300.0, reclaim_idle=301.0, cleanup_interval=0.01
    )
    await desk.pass_time(601)
    await desk.ledger.beat_worker(Worker(living, "living", "h", 1, ["work"], [], 1))
    assert (await sweep(ground))[0] == 200
    left: list[UUID] = [row["id"] for row in await desk.ledger.workers(600)]
    assert left == [living]
    ground.settings = msgspec.structs.replace(ground.settings, lease=0.003, heartbeat=0.001)

    async def forgotten() -> bool:
        await sweep(ground)
        return not await consumers(desk)

    await until(forgotten)
