"""Redrive: an ended job is run again as a new one, once; what goes with it and what does not."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from lateack.ended import Ended, Redrive, RedriveAnswer
from lateack_core import redrive
from lateack_core.dead import dead_letters, steps_in_doubt
from lateack_core.identifiers import uuid7
from lateack_core.jobs import Owned
from lateack_core.redrive import Redrives
from lateack_core.validation import Refused
from lateack_sql import query
from tests.sql.desk import TENANT, Desk

# What a new job does not share with the one that it continues.
OWN = {
    *("id", "status", "fence", "attempt", "worker_losses", "retry_of", "origin_id"),
    *("created_at", "run_at", "runnable_since", "enqueued_at", "expires_at", "started_at"),
    *("completed_at", "cancel_requested_at", "progress", "step", "result_location"),
    *("error_code", "error_message", "error_info", "external_id"),
}


async def failed(desk: Desk, **options: Any) -> UUID:
    """A job that failed for good."""
    job = await desk.submit(**options)
    assert await desk.fail(await desk.run(job)) == "failed"
    return job


async def again(desk: Desk, job: UUID) -> UUID:
    """The job that runs this one again."""
    accepted = await Redrives(desk.ground).one(TENANT, job)
    assert accepted is not None
    return accepted.job.job_id


async def many(desk: Desk, *, seconds: float = 60.0, **which: Any) -> RedriveAnswer:
    return await Redrives(desk.ground).many(
        TENANT, Redrive(dry_run=False, **which), seconds=seconds
    )


async def refused(desk: Desk, job: UUID) -> str:
    """Why a job is not run again."""
    with pytest.raises(Refused) as met:
        await Redrives(desk.ground).one(TENANT, job)
    assert met.value.refusal.status == 409
    return met.value.refusal.type


async def test_a_new_job_has_what_was_asked_for_and_nothing_of_what_came(desk: Desk) -> None:
    """RTY-10, I2: a fresh budget of attempts; the old row and its history stay as they ended."""
    old = await desk.submit(
        args=[1e22], kwargs={"b": "名"}, queue="other", priority=7, max_retries=1, tags=["x"],
        meta={"m": 1}, owner="o", external_ref="e", ignore_result=True,
    )  # fmt: skip
    assert await desk.fail(await desk.run(old), retry_after=0) == "retrying"
    assert await desk.fail(await desk.run(old)) == "failed"
    before = await desk.row(old)

    new = await again(desk, old)
    assert await desk.row(old) == before
    assert [a["outcome"] for a in await desk.ledger.attempts(TENANT, old)] == ["retried", "failed"]
    row = await desk.row(new)
    assert (row["retry_of"], row["origin_id"], row["status"]) == (old, old, "pending")
    assert (row["attempt"], row["fence"], row["worker_losses"], row["error_code"]) == (
        0,
        0,
        0,
        None,
    )
    for name, value in before.items():
        assert name in OWN or row[name] == value, name
    assert row["created_at"] == row["run_at"] > before["completed_at"]
    assert await desk.count("outbox", f"job_id = '{new}'") == 1
    # The whole budget again.
    assert await desk.fail(await desk.run(new), retry_after=0) == "retrying"
    assert await desk.complete(await desk.run(new))


async def test_lost_workers_are_counted_anew(desk: Desk) -> None:
    """RTY-10: a poison job that is redriven may lose as many workers as the first did."""
    old = await desk.submit()
    for _ in range(3):
        await desk.run(old)
        await desk.pass_time(31)
        await desk.ledger.reap([old], max_losses=3)
    assert (await desk.row(old))["error_code"] == "WorkerLost"
    (letter,) = await dead_letters(desk.ledger, TENANT, Ended(), before=None, most=10)
    assert (letter.job_id, letter.attempt, letter.worker_losses) == (old, 3, 3)
    new = await again(desk, old)
    await desk.run(new)
    await desk.pass_time(31)
    (moved,) = await desk.ledger.reap([new], max_losses=3)
    assert moved.status == "pending"
    assert await dead_letters(desk.ledger, TENANT, Ended(), before=None, most=10) == []


async def test_two_at_once_make_one_job(desk: Desk) -> None:
    """RTY-10: who waits for the other finds what the other made."""
    old = await failed(desk)
    redrives = Redrives(desk.ground)
    async with desk.open_transaction() as one:
        (made,) = await one.fetch(query("redrive_jobs"), TENANT, [old], None, 2.0)
        other = asyncio.create_task(redrives.one(TENANT, old))
        await desk.blocked()
        await one.execute("COMMIT")
        accepted = await other
    assert accepted is not None
    assert accepted.replayed
    assert accepted.job.job_id == made["new_id"]
    found = await asyncio.gather(*(redrives.one(TENANT, old) for _ in range(20)))
    assert {one.job.job_id for one in found if one} == {made["new_id"]}
    assert await desk.count("jobs") == 2


async def test_one_that_is_rolled_back_leaves_the_job_to_the_other(desk: Desk) -> None:
    """RTY-10: the first one never committed, so the second makes the job."""
    old = await failed(desk)
    async with desk.open_transaction() as one:
        await one.fetch(query("redrive_jobs"), TENANT, [old], None, 2.0)
        other = asyncio.create_task(Redrives(desk.ground).one(TENANT, old))
        await desk.blocked()
        await one.execute("ROLLBACK")
        accepted = await other
    assert accepted is not None
    assert not accepted.replayed
    assert await desk.count("jobs") == 2


async def test_the_new_one_is_redriven_in_turn(desk: Desk) -> None:
    """DEL-09: each knows the one before it, and all know the first, whose tokens they keep."""
    first = await failed(desk)
    second = await again(desk, first)
    assert await desk.fail(await desk.run(second)) == "failed"
    assert await again(desk, first) == second
    third = await again(desk, second)
    row = await desk.row(third)
    assert (row["retry_of"], row["origin_id"]) == (second, first)
    (claimed,) = await desk.claim(third)
    assert claimed.origin_id == first


async def test_a_retry_gets_a_new_limit(desk: Desk) -> None:
    """RTY-09: as long from now as the first had from its creation; a new expiry, a new chance."""
    old = await desk.submit(expires=60)
    await desk.pass_time(61)
    await desk.ledger.expire([old])
    assert (await desk.row(old))["error_code"] == "Expired"
    new = await again(desk, old)
    row = await desk.row(new)
    assert row["expires_at"] - row["created_at"] == timedelta(seconds=60)
    assert await desk.ledger.expire([new]) == []
    assert await desk.complete(await desk.run(new))


async def test_a_limit_before_the_creation_is_dropped(desk: Desk) -> None:
    """RTY-09: it says nothing about how long, and would end the new job at once."""
    await desk.pass_time(-3600)
    row = await desk.connection.fetchrow("SELECT lateack.now() - interval '1 hour' AS at")
    assert row is not None
    old = await desk.submit(expires=row["at"])
    await desk.ledger.expire([old])
    assert (await desk.row(await again(desk, old)))["expires_at"] is None


async def test_the_key_goes_with_the_new_job(desk: Desk) -> None:
    """I4: whoever submits the same again gets the new job; with other content, a conflict."""
    old = await failed(desk, idempotency_key="k")
    await desk.pass_time(86_000)
    new = await again(desk, old)
    assert await desk.submit(idempotency_key="k") == new
    assert (
        await desk.count(
            "idempotency", f"expires_at > lateack.now() + interval '23 hours' AND job_id = '{new}'"
        )
        == 1
    )
    with pytest.raises(Refused):
        await desk.submit(args=[1], idempotency_key="k")


async def test_only_what_ended_badly_is_run_again(desk: Desk) -> None:
    """Each refusal says what to do; nothing is made."""
    later = await desk.submit(countdown=60)
    running = await desk.submit()
    await desk.run(running)
    done = await desk.submit()
    await desk.complete(await desk.run(done))
    workflow, (first, second) = await desk.chain(2)
    assert await refused(desk, later) == "job-not-ended"
    assert await refused(desk, running) == "job-not-ended"
    assert await refused(desk, done) == "job-succeeded"
    assert await desk.fail(await desk.run(first)) == "failed"
    for part in (workflow, first, second):
        assert await refused(desk, part) == "part-of-workflow"
    assert await Redrives(desk.ground).one(TENANT, uuid7()) is None
    assert await desk.count("redrives") == 0

    await desk.ledger.cancel(TENANT, [later])
    new = await again(desk, later)
    row = await desk.row(new)
    # Runnable now, and nobody has asked for the end of this one.
    assert (row["status"], row["cancel_requested_at"]) == ("pending", None)


async def test_a_job_of_another_tenant(desk: Desk) -> None:
    """SUB-05, I9: as if it did not exist, one by one and in bulk; nothing changes."""
    old = await failed(desk)
    redrives = Redrives(desk.ground)
    assert await redrives.one("other", old) is None
    assert (await redrives.count("other", Redrive())).matched == 0
    assert (await redrives.many("other", Redrive(dry_run=False))).retried == 0
    assert await dead_letters(desk.ledger, "other", Ended(), before=None, most=10) == []
    run = uuid7()
    assert (await many(desk, run=run)).retried == 1
    # A run's number tells a stranger nothing.
    answer = await redrives.many("other", Redrive(dry_run=False, run=run))
    assert (answer.retried, answer.job_ids) == (0, [])


async def begin(desk: Desk, owned: Owned, name: str) -> None:
    await desk.connection.fetch(query("begin_step"), *owned, name, 1)


async def end(desk: Desk, owned: Owned, name: str, result: str) -> None:
    assert await desk.connection.fetch(query("end_step"), *owned, name, 1, result)


async def test_steps_go_with_the_new_job(desk: Desk) -> None:
    """DEL-09, RTY-10: a finished step is not run again; one that was begun is met in doubt, also on
    the attempt whose fence has the number of the one that began it."""
    old = await desk.submit()
    owned = await desk.run(old)
    await begin(desk, owned, "charge")
    await end(desk, owned, "charge", '{"id": 1e22}')
    await begin(desk, owned, "mail")
    await desk.connection.fetch(query("leave_step"), *owned, "mail", "TimeoutError: no answer")
    assert await desk.fail(owned) == "failed"
    new = await again(desk, old)

    owned = await desk.run(new)
    assert owned.fence == 1
    (charge,) = await desk.connection.fetch(query("begin_step"), *owned, "charge", 1)
    assert (charge["done"], charge["result"]) == (True, '{"id": 1e22}')
    (mail,) = await desk.connection.fetch(query("begin_step"), *owned, "mail", 1)
    assert (mail["done"], mail["doubt"]) == (False, True)
    rows = await desk.connection.fetch("SELECT * FROM lateack.steps WHERE job_id = $1", old)
    assert len(rows) == 2


async def test_steps_in_doubt_are_listed_until_somebody_settles_them(desk: Desk) -> None:
    """What began, never ended, and whose attempt is over; redriven, with the new job only."""

    async def doubts() -> list[tuple[UUID, str, str | None]]:
        found = await steps_in_doubt(desk.ledger, TENANT, before=None, most=10)
        return [(step.job_id, step.name, step.error) for step in found]

    old = await desk.submit()
    owned = await desk.run(old)
    await begin(desk, owned, "a")
    await begin(desk, owned, "b")
    assert await doubts() == []
    assert await desk.fail(owned, retry_after=0) == "retrying"
    assert await doubts() == [(old, "b", None), (old, "a", None)]
    (step,) = await steps_in_doubt(desk.ledger, TENANT, before=(old, "b"), most=10)
    assert (step.name, step.status, step.key) == ("a", "retrying", f"{old}:a")
    assert await steps_in_doubt(desk.ledger, "other", before=None, most=10) == []

    owned = await desk.run(old)
    await desk.connection.fetch(query("repeat_step"), *owned, "a", 2)
    assert await doubts() == [(old, "b", None)]
    await end(desk, owned, "a", "1")
    assert await desk.fail(owned) == "failed"
    new = await again(desk, old)
    (step,) = await steps_in_doubt(desk.ledger, TENANT, before=None, most=10)
    # The token is that of the first job: the outside knows it by no other.
    assert (step.job_id, step.name, step.key, step.attempt) == (new, "b", f"{old}:b", 1)
    owned = await desk.run(new)
    await begin(desk, owned, "b")
    await end(desk, owned, "b", "2")
    assert await doubts() == []


async def test_bulk_takes_what_matches_and_a_dry_run_counts_it(desk: Desk) -> None:
    """Each filter narrows; what was redriven, or is a part of a workflow, does not match."""
    plain = [await failed(desk, tags=["t"]) for _ in range(3)]
    other = await failed(desk, queue="other")
    once = await failed(desk, task="t.once")
    _, (first, _) = await desk.chain(2)
    await desk.fail(await desk.run(first))
    cancelled = await desk.submit()
    await desk.ledger.cancel(TENANT, [cancelled])
    await again(desk, plain[0])
    redrives = Redrives(desk.ground)

    async def matched(**which: Any) -> int:
        return (await redrives.count(TENANT, Redrive(**which))).matched

    answer = await redrives.count(TENANT, Redrive())
    counted = [(c.task, c.error_code, c.jobs, c.in_workflows) for c in answer.counts]
    assert counted == [("t.work", "Boom", 3, 1), ("t.once", "Boom", 1, 0)]
    assert answer.matched == 4
    assert await matched(task="t.work") == 3
    assert await matched(queue="other") == 1
    assert await matched(tag="t") == 2
    assert await matched(error_code="WorkerLost") == 0
    assert await matched(status="cancelled") == 1
    moment = (await desk.row(other))["completed_at"]
    assert await matched(since=moment) == 2
    assert await matched(until=moment) == 2
    assert await desk.count("redrives") == 1

    answer = await many(desk, tag="t")
    assert (answer.retried, answer.done, len(answer.job_ids)) == (2, True, 2)
    answer = await many(desk, limit=1)
    assert answer.retried == 1
    assert await matched() == 1
    assert (await matched(task="t.once"), (await desk.row(once))["status"]) == (1, "failed")
    assert (await many(desk)).retried == 1
    assert (await many(desk, status="cancelled")).retried == 1
    assert (await many(desk)).retried == 0
    assert await desk.count("jobs", "retry_of IS NOT NULL") == 6


async def test_a_run_does_not_chase_what_fails_meanwhile(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that always fails is run again once by a run, though its successor fails during it."""
    monkeypatch.setattr(redrive, "BATCH", 2)
    for _ in range(5):
        await failed(desk)
    answer = await many(desk, seconds=0.0)
    assert (answer.retried, answer.done) == (0, False)
    run, ends = answer.run, 0
    while not answer.done or not ends:
        answer = await many(desk, run=run, seconds=0.000_01)
        ends += answer.done
        for row in await desk.connection.fetch(
            "SELECT id FROM lateack.jobs WHERE status = 'pending'"
        ):
            await desk.fail(await desk.run(row["id"]))
    assert (answer.retried, len(answer.job_ids)) == (5, 5)
    assert await desk.count("jobs") == 10
    # A repeated request of a run that is over changes nothing and says the same.
    assert await many(desk, run=run) == answer
    assert (await Redrives(desk.ground).count(TENANT, Redrive())).matched == 5


async def test_runs_at_once_share_the_work(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """RTY-10: whatever the order, each job is redriven once; what one holds, another skips."""
    monkeypatch.setattr(redrive, "BATCH", 7)
    jobs = await desk.submit_many(60)
    for job in jobs:
        await desk.fail(await desk.run(job))
    deadlocks = await desk.deadlocks()
    answers = await asyncio.gather(
        *(many(desk) for _ in range(4)), *(again(desk, job) for job in jobs[::6])
    )
    by_runs = sum(a.retried for a in answers if isinstance(a, RedriveAnswer))
    assert by_runs + await desk.count("redrives", "run IS NULL") == 60
    assert await desk.count("jobs", "retry_of IS NOT NULL") == 60
    assert await desk.connection.fetchval("SELECT count(DISTINCT retry_of) FROM lateack.jobs") == 60
    assert await desk.deadlocks() == deadlocks


async def test_a_locked_job_is_passed_over_and_found_by_the_next_run(desk: Desk) -> None:
    """A sweeper waits for nobody."""
    jobs = [await failed(desk) for _ in range(3)]
    async with desk.open_transaction() as one:
        await one.execute(f"SELECT FROM lateack.jobs WHERE id = '{jobs[0]}' FOR UPDATE")
        answer = await many(desk)
        assert (answer.retried, answer.done) == (2, True)
    assert (await many(desk)).retried == 1


async def test_one_run_counts_once_however_often_it_is_asked(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLI-01: requests of one run that a client had to repeat make, and report, one run."""
    monkeypatch.setattr(redrive, "BATCH", 3)
    jobs = await desk.submit_many(20)
    for job in jobs:
        await desk.fail(await desk.run(job))
    run = uuid7()
    answers = await asyncio.gather(*(many(desk, run=run, limit=15) for _ in range(3)))
    assert [answer.retried for answer in answers] == [15, 15, 15]
    assert (
        sorted(
            row["retry_of"]
            for row in await desk.connection.fetch(
                "SELECT retry_of FROM lateack.jobs WHERE retry_of IS NOT NULL"
            )
        )
        == jobs[:15]
    )


async def test_a_repeated_request_waits_for_the_first_one(desk: Desk) -> None:
    """CLI-01: the reply of a run was lost before its batch was committed. The same run, asked
    again, counts what that batch made too, and does not say that it is done before."""
    jobs = [await failed(desk) for _ in range(4)]
    run = uuid7()
    async with desk.open_transaction() as first:
        await first.fetch(query("redrive_lock"), TENANT, run)
        await first.fetch(query("redrive_jobs"), TENANT, jobs[:3], run, 2.0)
        repeated = asyncio.create_task(many(desk, run=run))
        await desk.blocked()
        await first.execute("COMMIT")
        answer = await repeated
    assert (answer.retried, answer.done) == (4, True)


async def test_a_job_that_is_being_pruned(desk: Desk) -> None:
    """Who redrives it waits, and finds that it is gone; no job is left that continues none."""
    old = await failed(desk)
    async with desk.open_transaction() as pruning:
        await pruning.execute("DELETE FROM lateack.jobs WHERE id = $1", old)
        redriven = asyncio.create_task(Redrives(desk.ground).one(TENANT, old))
        await desk.blocked()
        await pruning.execute("COMMIT")
        assert await redriven is None
    assert await desk.count("jobs") == await desk.count("redrives") == 0


async def test_dead_letters_are_paged(desk: Desk) -> None:
    """Newest first; a failed step is one, the steps that failed because of it are not."""
    jobs = [await failed(desk) for _ in range(3)]
    _, (first, second) = await desk.chain(2)
    await desk.fail(await desk.run(first))

    async def page(before: UUID | None = None, **which: Any) -> list[UUID]:
        found = await dead_letters(desk.ledger, TENANT, Ended(**which), before=before, most=2)
        return [letter.job_id for letter in found]

    assert await page() == [first, jobs[2]]
    assert await page(jobs[2]) == [jobs[1], jobs[0]]
    assert second in await page(error_code="UpstreamFailed")


async def test_a_job_that_sql_submitted(desk: Desk) -> None:
    """I4: it is redriven like any other, and SQL finds the new job under its key."""
    row = await desk.connection.fetchrow(
        "SELECT lateack.submit('t.work', kwargs => '{\"n\": 1e22}', idempotency_key => 's') AS id"
    )
    assert row is not None
    await desk.fail(await desk.run(row["id"]))
    new = await again(desk, row["id"])
    assert (await desk.row(new))["kwargs"] == '{"n": 1e22}'
    submitted = await desk.connection.fetchval(
        "SELECT lateack.submit('t.work', kwargs => '{\"n\": 1e22}', idempotency_key => 's')"
    )
    assert submitted == new
