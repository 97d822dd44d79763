"""Pending cleanup: its documented numbers and texts, and never a job that somebody is claiming."""

from __future__ import annotations

import asyncio
from datetime import datetime
from uuid import UUID

import msgspec
import pytest

from lateack_core.ground import Ground
from lateack_core.identifiers import uuid7
from lateack_core.jobs import Success, Worker
from lateack_core.settings import Settings
from lateack_core.submission import Submissions
from lateack_core.validation import Refused
from lateack_scheduler.pending import fail_stale
from tests.sql.desk import Desk

HALF_AN_HOUR = 1800.0


async def published(desk: Desk, count: int, **options: object) -> list[UUID]:
    """Jobs that wait in the broker, pending."""
    jobs = await desk.submit_many(count, **options)
    await desk.publish()
    return jobs


def with_settings(ground: Ground, **changes: object) -> None:
    ground.settings = msgspec.structs.replace(ground.settings, **changes)


async def test_the_documented_words(desk: Desk) -> None:
    """30 minutes, exactly these texts, completed now, no attempt used."""
    (job,) = await published(desk, 1)
    term = await desk.lead()
    await desk.pass_time(HALF_AN_HOUR - 60)
    assert await fail_stale(desk.ground, term) == 0
    await desk.pass_time(61)
    assert await fail_stale(desk.ground, term) == 1
    row = await desk.row(job)
    assert (row["status"], row["attempt"], row["started_at"]) == ("failed", 0, None)
    assert row["error_code"] == "PendingTimeout"
    assert row["error_message"] == "pending timeout: auto cleanup"
    info = msgspec.json.decode(row["error_info"])
    assert info["type"] == "PendingTimeout"
    assert datetime.fromisoformat(info["timestamp"]) == row["completed_at"]
    assert await fail_stale(desk.ground, term) == 0


async def test_twenty_stale_jobs_block_the_queue_and_cleanup_frees_it(
    desk: Desk, settings: Settings
) -> None:
    """SCH-02: a full queue answers 503; the cleanup frees it; what failed never runs again."""
    ground = desk.ground
    ground.submissions = Submissions(
        ground.ledger,
        ground.registry,
        ground.publisher,
        caps={"": 20},
        outbox_delay=settings.outbox_delay,
    )
    stale = await published(desk, 20)
    with pytest.raises(Refused) as refused:
        await desk.submit()
    assert (refused.value.refusal.status, refused.value.refusal.type) == (503, "queue-full")
    assert refused.value.refusal.retry_after
    await desk.pass_time(HALF_AN_HOUR + 1)
    assert await fail_stale(ground, await desk.lead(), batch=7) == 20
    assert await desk.status(await desk.submit()) == "pending"
    # A worker that comes back finds their hints: nothing starts, and it is told to drop them.
    streams = ground.broker.streams("work")
    for stream in streams:
        await ground.broker.ensure_group(stream)
    entries = await ground.broker.read(streams, "late", 100)
    assert sorted(UUID(entry.fields["job"]) for entry in entries) == stale
    assert await desk.claim(*stale) == []
    assert all(why.ended for why in await desk.ledger.why_not_claimed(stale))
    assert await desk.statuses(stale) == ["failed"] * 20


async def test_workers_and_cleanup_race(desk: Desk) -> None:
    """SCH-01: each job either failed without ever running, or ran and was never timed out."""
    jobs = await published(desk, 200)
    term = await desk.lead()
    await desk.pass_time(HALF_AN_HOUR + 1)

    async def worker(mine: list[UUID]) -> None:
        for start in range(0, len(mine), 3):
            claimed = await desk.claim(*mine[start : start + 3], worker=uuid7())
            await desk.ledger.complete([Success(one.owned, None) for one in claimed])

    await asyncio.gather(
        worker(jobs[::2]),
        worker(jobs[::-2]),
        *(fail_stale(desk.ground, term, batch=9) for _ in "12"),
    )
    rows = [await desk.row(job) for job in jobs]
    assert {(r["status"], r["attempt"], r["started_at"] is not None) for r in rows} <= {
        ("failed", 0, False),
        ("succeeded", 1, True),
    }


async def test_what_is_spared(desk: Desk) -> None:
    """Design §10.2: running, delayed and retrying jobs, paused queues, what was never published."""
    paused = await published(desk, 1, queue="paused")
    running, retrying = await desk.submit_many(2)
    delayed = await desk.submit(countdown=86_000)
    await desk.run(running, lease=86_000)
    assert await desk.fail(await desk.run(retrying), retry_after=86_000) == "retrying"
    await desk.connection.execute(
        "INSERT INTO lateack.queues (name, paused_at) VALUES ('paused', lateack.now())"
    )
    # An hour without a broker: the row stays in the outbox.
    unpublished = await desk.submit()
    await desk.pass_time(2 * HALF_AN_HOUR)
    term = await desk.lead()
    assert await fail_stale(desk.ground, term) == 0
    await desk.connection.execute("UPDATE lateack.queues SET paused_at = NULL")
    assert await fail_stale(desk.ground, term) == 1
    assert await desk.status(paused[0]) == "failed"
    await desk.pass_time(desk.ground.settings.unpublished_timeout)
    await fail_stale(desk.ground, term)
    assert await desk.status(unpublished) == "failed"
    assert await desk.status(running) == "running"
    assert "failed" not in await desk.statuses([retrying, delayed])


async def test_a_late_publish_starts_the_clock(desk: Desk) -> None:
    """Design §10.2: a broker that is down for hours times nothing out when it is back."""
    job = await desk.submit()
    await desk.pass_time(10 * HALF_AN_HOUR)
    await desk.publish()
    term = await desk.lead()
    assert await fail_stale(desk.ground, term) == 0
    await desk.pass_time(HALF_AN_HOUR + 1)
    assert await fail_stale(desk.ground, term) == 1
    assert await desk.status(job) == "failed"


async def test_each_queue_has_its_own_timeout(desk: Desk) -> None:
    """LATEACK_PENDING_TIMEOUT by queue, 0 is never; what was set for a queue comes before it."""
    with_settings(desk.ground, pending_timeout="100,fast=10,never=0")
    term, jobs = await desk.lead(), {}
    for queue in ("other", "fast", "never", "set"):
        (jobs[queue],) = await desk.submit_many(1, queue=queue)
    await desk.connection.execute(
        "INSERT INTO lateack.queues (name, pending_timeout) VALUES ('set', interval '1000 s')"
    )
    await desk.publish()
    failed = []
    for _ in range(3):
        await desk.pass_time(40)
        await fail_stale(desk.ground, term)
        failed.append([q for q in jobs if await desk.status(jobs[q]) == "failed"])
    assert failed == [["fast"], ["fast"], ["other", "fast"]]
    await desk.pass_time(1000)
    await fail_stale(desk.ground, term)
    assert await desk.status(jobs["never"]) == "pending"
    assert await desk.status(jobs["set"]) == "failed"


async def test_a_task_that_no_living_worker_knows(desk: Desk) -> None:
    """Design §10.11: the error says so, rather than that nobody took it."""
    (job,) = await published(desk, 1)
    await desk.pass_time(HALF_AN_HOUR + 1)
    await desk.ledger.beat_worker(Worker(uuid7(), "w", "h", 1, ["work"], ["t.other"], 1))
    await fail_stale(desk.ground, await desk.lead())
    row = await desk.row(job)
    assert row["error_code"] == "UnknownTask"
    assert "t.work" in row["error_message"]


async def test_watchers_are_told(desk: Desk) -> None:
    """I8: a watched job's stream carries the outcome, above all that its last owner could say."""
    (job,) = await published(desk, 1)
    await desk.ground.broker.open_progress(job)
    await desk.pass_time(HALF_AN_HOUR + 1)
    await fail_stale(desk.ground, await desk.lead())
    ((event_id, body),) = await desk.ground.broker.progress_range(job, "0-1")
    assert event_id == f"{(await desk.row(job))['fence']}-1"
    assert '"status":"failed"' in (body or "")
