"""Running ended jobs again over HTTP: one, many, and what there is to be run again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest

from lateack_core.settings import Settings, environment_of
from lateack_sql import query
from tests.cli.processes import Bench, Command

from .conftest import Worker, client, eventually, is_ready, served, submit

NOBODY = "00000000-0000-7000-8000-000000000000"


async def failed(http: httpx.AsyncClient, worker: Worker, code: str = "Boom", **more: Any) -> str:
    """A job that failed for good; its id."""
    job = await submit(http, **more)
    await worker.fail(await worker.claim(job["job_id"]), code, "no\ngood")
    return str(job["job_id"])


async def run(http: httpx.AsyncClient, **which: Any) -> dict[str, Any]:
    """A run over what matches, to its end."""
    which = {"dry_run": False, "run": str(uuid4()), **which}
    while True:
        reply = await http.post("/v1/jobs/retry", json=which)
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        if answer["done"]:
            return answer


async def test_a_failed_job_is_retried_once(http: httpx.AsyncClient, worker: Worker) -> None:
    """RTY-10: 202 with the new job and its address, then 200 with the same one, whatever became of
    it; the old document is what it was."""
    old = await failed(http, worker, args=[1], tags=["x"])
    before = (await http.get(f"/v1/jobs/{old}")).json()
    reply = await http.post(f"/v1/jobs/{old}/retry")
    new = reply.json()
    assert reply.status_code == 202
    assert reply.headers["location"] == f"/v1/jobs/{new['job_id']}"
    assert (new["retry_of"], new["status"], new["attempt"]) == (old, "pending", 0)
    assert new["tags"] == ["x"]
    assert (await http.get(reply.headers["location"])).json() == new
    assert (await http.get(f"/v1/jobs/{old}")).json() == before

    await worker.fail(await worker.claim(new["job_id"]), "Boom", "again")
    again = await http.post(f"/v1/jobs/{old}/retry", json={})
    assert (again.status_code, again.headers["idempotency-replayed"]) == (200, "true")
    assert (again.json()["job_id"], again.json()["status"]) == (new["job_id"], "failed")
    third = await http.post(f"/v1/jobs/{new['job_id']}/retry")
    assert (third.status_code, third.json()["retry_of"]) == (202, new["job_id"])


async def test_a_retried_job_is_published(
    http: httpx.AsyncClient, worker: Worker, settings: Settings
) -> None:
    """I1: it reaches a worker like any other."""
    old = await failed(http, worker)
    before = sum(await worker.ground.broker.depth("echo"))
    await http.post(f"/v1/jobs/{old}/retry")

    async def published() -> bool:
        return sum(await worker.ground.broker.depth("echo")) > before

    await eventually(published)


async def test_what_cannot_be_retried_says_why(http: httpx.AsyncClient, worker: Worker) -> None:
    """409 with a stable word and what to do instead."""
    job = await submit(http)
    refused = await http.post(f"/v1/jobs/{job['job_id']}/retry")
    assert (refused.status_code, refused.json()["type"]) == (409, "job-not-ended")
    assert "pending" in refused.json()["detail"]
    await worker.complete(await worker.claim(job["job_id"]))
    refused = await http.post(f"/v1/jobs/{job['job_id']}/retry")
    assert (refused.status_code, refused.json()["type"]) == (409, "job-succeeded")
    chain = await submit(http, then=[{"task": "t.next"}])
    await http.post(f"/v1/jobs/{chain['job_id']}/cancel")
    for part in (chain["job_id"], chain["steps"][0]["job_id"]):
        refused = await http.post(f"/v1/jobs/{part}/retry")
        assert (refused.status_code, refused.json()["type"]) == (409, "part-of-workflow")
    assert refused.headers["content-type"] == "application/problem+json"


async def test_unknown_and_foreign_are_one_answer(http: httpx.AsyncClient, worker: Worker) -> None:
    """SUB-05, I9: byte for byte, and nothing changes, also where a stranger asks in bulk."""
    old = await failed(http, worker)
    stranger = {"X-Tenant-ID": "stranger"}
    foreign = await http.post(f"/v1/jobs/{old}/retry", headers=stranger)
    unknown = await http.post(f"/v1/jobs/{NOBODY}/retry", headers=stranger)
    nothing = await http.post("/v1/jobs/nothing/retry", headers=stranger)
    assert foreign.status_code == 404
    assert foreign.content == unknown.content == nothing.content
    for which in ({}, {"dry_run": False}):
        reply = await http.post("/v1/jobs/retry", json=which, headers=stranger)
        assert (reply.json()["matched"], reply.json()["retried"]) == (0, 0)
    assert (await http.get("/v1/dead", headers=stranger)).json() == {"items": [], "next": None}
    assert (await http.get("/v1/dead/counts", headers=stranger)).json()["total"] == 0
    assert (await http.post(f"/v1/jobs/{old}/retry")).status_code == 202
    # Retried meanwhile, and still a stranger sees no difference.
    foreign = await http.post(f"/v1/jobs/{old}/retry", headers=stranger)
    assert foreign.content == unknown.content


async def test_the_key_of_a_retried_job(http: httpx.AsyncClient, worker: Worker) -> None:
    """I4: who submits the same again gets the job that is running it now."""
    body = {"task": "t.echo", "idempotency_key": "k"}
    old = (await http.post("/v1/jobs", json=body)).json()["job_id"]
    await worker.fail(await worker.claim(old), "Boom", "boom")
    assert (await http.post("/v1/jobs", json=body)).json()["job_id"] == old
    new = (await http.post(f"/v1/jobs/{old}/retry")).json()["job_id"]
    reply = await http.post("/v1/jobs", json=body)
    assert (reply.status_code, reply.json()["job_id"]) == (200, new)


async def test_in_bulk_a_dry_run_comes_first(http: httpx.AsyncClient, worker: Worker) -> None:
    """Nothing is made unless it is asked for in so many words; then each job is run again once."""
    lost = [await failed(http, worker, "WorkerLost") for _ in range(3)]
    boom = await failed(http, worker)
    answer = (await http.post("/v1/jobs/retry", json={})).json()
    assert (answer["dry_run"], answer["matched"], answer["retried"]) == (True, 4, 0)
    assert [(c["task"], c["error_code"], c["jobs"]) for c in answer["counts"]] == [
        ("t.echo", "WorkerLost", 3),
        ("t.echo", "Boom", 1),
    ]
    assert len((await http.get("/v1/jobs")).json()["items"]) == 4

    answer = await run(http, error_code="WorkerLost")
    assert (answer["dry_run"], answer["retried"], answer["done"]) == (False, 3, True)
    jobs = (await http.get("/v1/jobs?status=pending")).json()["items"]
    assert {job["retry_of"] for job in jobs} == set(lost)
    assert {job["job_id"] for job in jobs} == set(answer["job_ids"])
    assert (await run(http, error_code="WorkerLost"))["retried"] == 0
    assert (await http.post("/v1/jobs/retry", json={})).json()["matched"] == 1
    page = (await http.get("/v1/dead")).json()
    assert [letter["job_id"] for letter in page["items"]] == [boom]


async def test_bulk_requests_that_cannot_be_meant(http: httpx.AsyncClient) -> None:
    """A misspelt filter would retry other jobs than those that were meant."""
    bodies: tuple[Any, ...] = (
        {"tsak": "t.echo"},
        {"status": "succeeded"},
        {"status": ["failed"]},
        {"since": "2030-01-01T00:00:00"},
        {"since": "yesterday"},
        {"limit": 0},
        {"run": "x"},
        {"dry_run": "no"},
        {"tag": "\x00"},
        [],
    )
    for body in bodies:
        reply = await http.post("/v1/jobs/retry", json=body)
        assert reply.status_code == 422, body
        assert reply.headers["content-type"] == "application/problem+json", body
    assert (await http.post("/v1/jobs/retry", content=b"")).status_code == 415


async def test_dead_letters(http: httpx.AsyncClient, worker: Worker) -> None:
    """What an operator needs to judge: attempts, lost workers, error; filters, pages, counts."""
    first = await failed(http, worker, tags=["mine"])
    poison = (await submit(http))["job_id"]
    for _ in range(3):
        claimed = await worker.claim(poison)
        await worker.ground.ledger.lose([claimed.owned], max_losses=3)
    page = (await http.get("/v1/dead?limit=1")).json()
    (letter,) = page["items"]
    assert letter["job_id"] == poison == page["next"]
    assert (letter["attempt"], letter["worker_losses"], letter["error_code"]) == (
        3,
        3,
        "WorkerLost",
    )
    attempts = (await http.get(f"/v1/jobs/{poison}/attempts")).json()["items"]
    assert [attempt["outcome"] for attempt in attempts] == ["lost"] * 3
    rest = (await http.get("/v1/dead", params={"limit": 1, "cursor": page["next"]})).json()
    assert ([one["job_id"] for one in rest["items"]], rest["next"]) == ([first], None)

    for question, found in {
        "tag=mine": [first],
        "error_code=WorkerLost": [poison],
        "task=t.echo": [poison, first],
        "queue=none": [],
        "since=2100-01-01T00:00:00Z": [],
        "until=2100-01-01T00:00:00%2B08:00": [poison, first],
    }.items():
        items = (await http.get(f"/v1/dead?{question}")).json()["items"]
        assert [one["job_id"] for one in items] == found, question
    counts = (await http.get("/v1/dead/counts")).json()
    assert counts["total"] == 2
    assert {(c["error_code"], c["worker_losses"]) for c in counts["items"]} == {
        ("Boom", 0),
        ("WorkerLost", 3),
    }


async def test_steps_in_doubt(http: httpx.AsyncClient, worker: Worker) -> None:
    """Pages of what began and never ended, with the key to ask the outside system with."""
    job = await submit(http)
    claimed = await worker.claim(job["job_id"])
    for name in ("a", "b:c", "名"):
        await worker.ground.postgres.fetch("begin_step", *claimed.owned, name, 1)
    await worker.ground.postgres.fetch("leave_step", *claimed.owned, "a", "TimeoutError: away")
    assert (await http.get("/v1/steps?in_doubt=true")).json()["items"] == []
    await worker.fail(claimed, "Boom", "boom")
    found: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = (
            await http.get("/v1/steps", params={"in_doubt": "true", "limit": 1, **cursor})
        ).json()
        found += page["items"]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert [step["name"] for step in found] == ["名", "b:c", "a"]
    assert (found[1]["key"], found[1]["status"]) == (f"{job['job_id']}:b:c", "failed")
    assert [step["error"] for step in found] == [None, None, "TimeoutError: away"]
    stranger = {"X-Tenant-ID": "stranger"}
    assert (await http.get("/v1/steps?in_doubt=true", headers=stranger)).json()["items"] == []


async def test_questions_that_cannot_be_meant(http: httpx.AsyncClient) -> None:
    """A parameter that is passed over would answer another question than was asked."""
    for question in (
        *("dead?stauts=failed", "dead?limit=0", "dead?limit=201", "dead?limit=many"),
        *("dead?cursor=x", "dead?since=2030-01-01T00:00:00", "dead?tag=%00", "dead?tag=a&tag=b"),
        *("dead/counts?limit=1", "steps", "steps?in_doubt=false", "steps?in_doubt=true&cursor=x"),
        "steps?in_doubt=true&cursor=%00",
    ):
        reply = await http.get(f"/v1/{question}")
        assert reply.status_code == 422, question
        assert reply.json()["type"] == "invalid-request", question


async def test_the_schema_tells_of_them(http: httpx.AsyncClient) -> None:
    paths = (await http.get("/schema")).json()["paths"]
    assert "202" in paths["/v1/jobs/{job_id}/retry"]["post"]["responses"]
    body = paths["/v1/jobs/retry"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"status", "error_code", "dry_run", "run"} <= set(body["properties"])
    for path, names in {
        "/v1/dead": {"task", "error_code", "since", "limit", "cursor"},
        "/v1/dead/counts": {"task", "until"},
        "/v1/steps": {"in_doubt", "limit", "cursor"},
    }.items():
        assert names <= {one["name"] for one in paths[path]["get"]["parameters"]}, path


# -- processes of their own ---------------------------------------------------------------


@contextlib.asynccontextmanager
async def two_apis(
    folder: Path, settings: Settings
) -> AsyncIterator[tuple[Command, httpx.AsyncClient, httpx.AsyncClient]]:
    """Two API processes: the first one's handle, and a client of each."""
    async with contextlib.AsyncExitStack() as stack:
        commands = []
        for name in ("one", "other"):
            (folder / name).mkdir()
            bench = Bench(folder / name)
            stack.push_async_callback(bench.close)
            arguments = ("serve", "-A", "tried:app", "--port", "0")
            commands.append(await bench.start(*arguments, **environment_of(settings)))
        one, other = [
            await stack.enter_async_context(client(await address(command))) for command in commands
        ]
        yield commands[0], one, other


async def address(command: Command) -> str:
    """The URL of an API process, once it is ready."""

    async def listening() -> bool:
        return "listening at " in command.errors.read_text()

    await eventually(listening, seconds=60)
    url = command.errors.read_text().partition("listening at ")[2].split()[0]
    await eventually(lambda: is_ready(url), seconds=60)
    return url


@pytest.fixture
async def ledger(settings: Settings) -> AsyncIterator[asyncpg.Connection]:
    """A connection of the test's own."""
    connection = await asyncpg.connect(settings.database_url)
    yield connection
    await connection.close()


async def put_failed(ledger: asyncpg.Connection, count: int) -> None:
    """So many jobs that failed."""
    await ledger.execute(
        "INSERT INTO lateack.jobs (id, tenant_id, task, queue, status, created_at, run_at, "
        "completed_at, error_code) SELECT lateack.uuid7(), 'default', 'tried.add', 'default', "
        f"'failed', now(), now(), now(), 'Boom' FROM generate_series(1, {count})"
    )


async def line(ledger: asyncpg.Connection) -> tuple[int, int, int]:
    """How many jobs run another again, how many others they are, and how many of them are noted."""
    row = await ledger.fetchrow(
        "SELECT count(*), count(DISTINCT retry_of), (SELECT count(*) FROM lateack.redrives) "
        "FROM lateack.jobs WHERE retry_of IS NOT NULL"
    )
    assert row is not None
    return row[0], row[1], row[2]


async def test_two_operators_at_once(
    tmp_path: Path, settings: Settings, ledger: asyncpg.Connection
) -> None:
    """RTY-10: two API processes, many hands, one new job for each of the old ones."""
    await put_failed(ledger, 10)
    jobs = [row["id"] for row in await ledger.fetch("SELECT id FROM lateack.jobs")]
    async with two_apis(tmp_path, settings) as (_, first, second):
        turns = itertools.cycle((first, second))
        replies = await asyncio.gather(
            *(next(turns).post(f"/v1/jobs/{job}/retry") for job in jobs for _ in range(10)),
            *(run(next(turns)) for _ in range(4)),
        )
    singles = [reply for reply in replies if isinstance(reply, httpx.Response)]
    assert {reply.status_code for reply in singles} <= {200, 202}
    for job in jobs:
        found = {r.json()["job_id"] for r in singles if r.json()["retry_of"] == str(job)}
        assert len(found) == 1
    made = sum(reply.status_code == 202 for reply in singles)
    made += sum(answer["retried"] for answer in replies if isinstance(answer, dict))
    assert made == 10
    assert await line(ledger) == (10, 10, 10)


async def test_an_api_killed_in_the_middle_of_a_run(
    tmp_path: Path, settings: Settings, ledger: asyncpg.Connection
) -> None:
    """RTY-10: what it had committed stays, what it had not never was; the run is called again
    through another process, and then each job has been run again once."""
    await put_failed(ledger, 1300)
    number = str(uuid4())
    async with two_apis(tmp_path, settings) as (dying, first, second):
        assert (await run(first, run=number, limit=500))["retried"] == 500
        await ledger.execute("BEGIN; LOCK TABLE lateack.redrives IN SHARE MODE")
        asked = asyncio.create_task(
            first.post("/v1/jobs/retry", json={"dry_run": False, "run": number})
        )

        async def in_the_middle() -> bool:
            # Its jobs are locked, the new ones not yet made.
            return bool(
                await ledger.fetchval(
                    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                    "AND datname = current_database()"
                )
            )

        await eventually(in_the_middle)
        dying.process.send_signal(signal.SIGKILL)
        with pytest.raises(httpx.HTTPError):
            await asked
        await dying.ended()
        await ledger.execute("COMMIT")
        assert (await line(ledger))[2] == 500
        answer = await run(second, run=number)
        assert (answer["retried"], answer["done"]) == (1300, True)
        assert (await run(second))["retried"] == 0
    assert await line(ledger) == (1300, 1300, 1300)


async def test_a_frozen_api_holds_nobody_up(
    settings: Settings, http: httpx.AsyncClient, worker: Worker, ledger: asyncpg.Connection
) -> None:
    """SUB-05: a run that is stuck in its transaction is passed over; the others' jobs go on."""
    jobs = [await failed(http, worker) for _ in range(3)]
    await ledger.execute("BEGIN")
    found = await ledger.fetch(query("redrive_failed"), "default", *(None,) * 6, UUID(int=0), 2)
    assert [row["free"] for row in found] == [True, True]
    async with served(settings) as other, client(other) as second:
        assert (await run(second))["retried"] == 1
        await ledger.execute("ROLLBACK")
        assert (await run(second))["retried"] == 2
    assert sorted(jobs) == jobs
    assert await line(ledger) == (3, 3, 3)
