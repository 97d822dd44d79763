"""Running ended jobs again with both clients."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from lateack import Conflict, InvalidRequest, Job, NotFound
from lateack_core import redrive
from lateack_core.settings import Settings
from tests.client.callers import Caller
from tests.client.networks import Line, Say, ScriptedServer, line_to
from tests.client.services import Service, WorkerOf

Callers = Callable[..., Caller]


async def fails(client: Caller, words: str = "no good", **options: Any) -> Job:
    """A job that failed for good."""
    job = await client.call("submit", "t.fail", args=[words], **options)
    ended: Job = await client.call("wait", job, 30)
    assert ended.status == "failed"
    return ended


async def test_a_failed_job_runs_again(service: Service, worker: WorkerOf, caller: Callers) -> None:
    """RTY-10: a new job, linked; the second time the same one, and it is told."""
    client = caller(service.url)
    old = await fails(client)
    new = await client.call("retry", old)
    assert (new.retry_of, new.replayed) == (old.job_id, False)
    assert (await client.call("wait", new, 30)).status == "failed"
    again = await client.call("retry", str(old.job_id))
    assert (again.job_id, again.replayed, again.status) == (new.job_id, True, "failed")
    assert (await client.call("get", old)) == old


async def test_a_lost_reply_retries_once(
    service: Service, worker: WorkerOf, caller: Callers
) -> None:
    """CLI-01, RTY-10: the request arrives, its reply does not; the client asks again by itself."""
    direct = caller(service.url)
    old = await fails(direct)
    async with line_to(service.url) as line:
        line.lose = 2
        new = await caller(line.url).call("retry", old)
        assert line.lost == 2
    assert new.replayed
    assert [job.job_id async for job in direct.each("list")] == [new.job_id, old.job_id]


async def test_what_cannot_be_retried(service: Service, caller: Callers) -> None:
    """CLI-04: a conflict and an unknown job are errors of their own."""
    client = caller(service.url)
    job = await client.call("submit", "t.echo")
    with pytest.raises(Conflict) as met:
        await client.call("retry", job)
    assert met.value.type == "job-not-ended"
    for unknown in (uuid4(), "../x"):
        with pytest.raises(NotFound):
            await client.call("retry", unknown)


async def test_many_are_counted_then_retried(
    service: Service, worker: WorkerOf, caller: Callers
) -> None:
    """Only `dry_run=False` does anything, and a second run finds nothing."""
    client = caller(service.url)
    jobs = [await fails(client, tags=["t"]) for _ in range(3)]
    found = await client.call("retry_many", task="t.fail")
    assert (found.dry_run, found.matched, found.retried) == (True, 3, 0)
    assert [(c.error_code, c.jobs) for c in found.counts] == [("PermanentError", 3)]
    moment = datetime.now(UTC) - timedelta(hours=1)
    assert (await client.call("retry_many", until=moment)).matched == 0
    with pytest.raises(InvalidRequest, match="timezone"):
        await client.call("retry_many", until=moment.replace(tzinfo=None))

    done = await client.call("retry_many", tag="t", since=moment, limit=2, dry_run=False)
    assert (done.dry_run, done.retried, done.done) == (False, 2, True)
    assert [(await client.call("get", one)).retry_of for one in done.job_ids] == [
        job.job_id for job in jobs[:2]
    ]
    for new in done.job_ids:
        await client.call("wait", new, 30)
    done = await client.call("retry_many", task="t.fail", until=jobs[2].completed_at)
    assert done.matched == 0
    dead = [letter.job_id async for letter in client.each("dead", tag="t")]
    assert dead == sorted([jobs[2].job_id, *await successors(client)], reverse=True)
    counts = await client.call("dead_counts", error_code="PermanentError")
    assert (counts.total, counts.items[0].jobs) == (3, 3)


async def successors(client: Caller) -> list[UUID]:
    """The jobs that run others again."""
    return [job.job_id async for job in client.each("list") if job.retry_of]


async def test_a_run_of_many_requests_with_lost_replies(
    service: Service,
    settings: Settings,
    caller: Callers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CLI-01: each job is run again once, and the number in the end is that of the whole run."""
    monkeypatch.setattr(redrive, "BATCH", 10)
    # Each request does one batch, then says that there is more.
    monkeypatch.setattr(redrive.Redrives.many, "__kwdefaults__", {"seconds": 0.000_01})
    ledger = await asyncpg.connect(settings.database_url)
    await ledger.execute(
        "INSERT INTO lateack.jobs (id, tenant_id, task, queue, status, created_at, run_at, "
        "completed_at, error_code) SELECT lateack.uuid7(), 'default', 't.echo', 'default', "
        "'failed', now(), now(), now(), 'Boom' FROM generate_series(1, 95)"
    )
    async with line_to(service.url) as line:
        lose_some(line)
        answer = await caller(line.url).call("retry_many", dry_run=False)
        assert line.lost >= 2
    assert (answer.retried, answer.done, len(answer.job_ids)) == (95, True, 95)
    made = "SELECT count(*) || '/' || count(DISTINCT retry_of) FROM lateack.jobs"
    assert await ledger.fetchval(f"{made} WHERE retry_of IS NOT NULL") == "95/95"
    await ledger.close()


def lose_some(line: Line) -> None:
    """Lose the first reply, and the one after the third that arrives."""
    line.lose = 1
    heard = 0

    def overhear(data: bytes) -> None:
        nonlocal heard
        heard += data.startswith(b"HTTP/1.1")
        if heard == 3:
            heard += 1
            line.lose = 1

    line.overhear = overhear


async def test_one_run_is_named_once(caller: Callers) -> None:
    """CLI-01: every request of a run, and each repetition, says the same."""
    unfinished = {"dry_run": False, "matched": 1, "retried": 1, "done": False}
    async with ScriptedServer(
        Say(200, unfinished), Say(0), Say(503, {}), Say(200, {**unfinished, "done": True})
    ) as server:
        answer = await caller(server.url).call("retry_many", dry_run=False, error_code="E")
        assert answer.done
        bodies = [request.body for request in server.requests]
    assert len(bodies) == 4
    assert len(set(bodies)) == 1
    assert {"run", "error_code", "dry_run"} == set(server.requests[0].document)


async def test_steps_in_doubt(
    service: Service, worker: WorkerOf, settings: Settings, caller: Callers
) -> None:
    """Page after page, of the newest job first."""
    client = caller(service.url)
    jobs = [await fails(client) for _ in range(3)]
    ledger = await asyncpg.connect(settings.database_url)
    for job in jobs:
        await ledger.execute(
            "INSERT INTO lateack.steps (job_id, name, fence, attempt, began_at) "
            "VALUES ($1, 'charge', 1, 1, now())",
            job.job_id,
        )
    await ledger.close()
    found = [step async for step in client.each("steps_in_doubt", limit=2)]
    assert [step.job_id for step in found] == [jobs[2].job_id, jobs[1].job_id]
    assert (found[0].name, found[0].key) == ("charge", f"{jobs[2].job_id}:charge")
