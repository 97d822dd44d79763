"""Submitting, looking, waiting, listing, cancelling."""

from __future__ import annotations

import asyncio
import time
from uuid import UUID, uuid4

import httpx

from .conftest import Worker, submit


async def test_an_accepted_job_is_a_document_with_an_address(http: httpx.AsyncClient) -> None:
    """202, Location, the whole document, which no cache may keep."""
    reply = await http.post(
        "/v1/jobs",
        json={"task": "t.pair", "args": [1], "kwargs": {"b": 2}, "tags": ["x"], "meta": {"m": 1}},
    )
    assert reply.status_code == 202
    job = reply.json()
    assert reply.headers["location"] == f"/v1/jobs/{job['job_id']}"
    assert reply.headers["cache-control"] == "no-store"
    assert job["status"] == "pending"
    assert job["tags"] == ["x"]
    assert job["meta"] == {"m": 1}
    assert UUID(job["job_id"]).version == 7
    shown = await http.get(reply.headers["location"])
    assert shown.json() == job
    assert shown.headers["retry-after"] == "1"


async def test_etag_says_whether_anything_changed(http: httpx.AsyncClient, worker: Worker) -> None:
    job = await submit(http)
    path = f"/v1/jobs/{job['job_id']}"
    first = await http.get(path)
    again = await http.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    await worker.claim(job["job_id"])
    changed = await http.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert changed.status_code == 200
    assert changed.json()["status"] == "running"


async def test_wait_answers_as_soon_as_the_job_ends(
    http: httpx.AsyncClient, worker: Worker
) -> None:
    """The end comes through the stream; nobody polls the ledger for each waiter."""
    job = await submit(http)
    claimed = await worker.claim(job["job_id"])
    waiting = asyncio.create_task(http.get(f"/v1/jobs/{job['job_id']}?wait=20"))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await worker.complete(claimed, '{"a": 1e22, "b": [12345678901234567890123]}')
    await worker.tell(worker.trail(claimed), "status", "succeeded")
    reply = await asyncio.wait_for(waiting, 10)
    assert reply.json()["status"] == "succeeded"
    # Verbatim, digit by digit.
    assert '{"a": 1e22, "b": [12345678901234567890123]}' in reply.text
    assert "retry-after" not in reply.headers


async def test_wait_finds_an_end_that_no_event_told(
    http: httpx.AsyncClient, worker: Worker
) -> None:
    """I8: a worker may die between its commit and its last event."""
    job = await submit(http)
    claimed = await worker.claim(job["job_id"])
    waiting = asyncio.create_task(http.get(f"/v1/jobs/{job['job_id']}?wait=30"))
    await asyncio.sleep(0.2)
    await worker.complete(claimed)
    assert (await asyncio.wait_for(waiting, 15)).json()["status"] == "succeeded"


async def test_wait_ends_with_its_time(http: httpx.AsyncClient) -> None:
    job = await submit(http)
    began = time.monotonic()
    reply = await http.get(f"/v1/jobs/{job['job_id']}?wait=0.5")
    assert reply.json()["status"] == "pending"
    assert time.monotonic() - began >= 0.5


async def test_wait_is_sixty_seconds_at_most(http: httpx.AsyncClient) -> None:
    job = await submit(http)
    for wait in ("61", "-1", "nan", "soon"):
        reply = await http.get(f"/v1/jobs/{job['job_id']}?wait={wait}")
        assert reply.status_code == 422, wait


async def test_lists_are_filtered_and_paged(http: httpx.AsyncClient, worker: Worker) -> None:
    made = [await submit(http, tags=[f"n{n % 2}"]) for n in range(5)]
    other = await submit(http, "t.pair", args=[1, 2], queue="elsewhere")
    await worker.claim(made[0]["job_id"])
    newest_first = [job["job_id"] for job in reversed([*made, other])]

    page = (await http.get("/v1/jobs?limit=4")).json()
    assert [job["job_id"] for job in page["items"]] == newest_first[:4]
    rest = (await http.get("/v1/jobs", params={"limit": 4, "cursor": page["next"]})).json()
    assert [job["job_id"] for job in rest["items"]] == newest_first[4:]
    assert rest["next"] is None

    async def ids(query: str) -> list[str]:
        reply = await http.get(f"/v1/jobs?{query}")
        assert reply.status_code == 200, reply.text
        return [job["job_id"] for job in reply.json()["items"]]

    assert await ids("status=running") == [made[0]["job_id"]]
    assert set(await ids("status=running&status=pending")) == set(newest_first)
    assert set(await ids("status=running,pending")) == set(newest_first)
    assert await ids("task=t.pair") == [other["job_id"]]
    assert await ids("queue=elsewhere") == [other["job_id"]]
    assert await ids("tag=n1") == [made[3]["job_id"], made[1]["job_id"]]
    assert await ids("since=2100-01-01T00:00:00Z") == []
    assert await ids("since=2100-01-01T00:00:00Z") == []
    assert len(await ids("since=2000-01-01T00:00:00Z&until=2100-01-01T00:00:00%2B08:00")) == 6


async def test_filters_that_cannot_be_meant_are_refused(http: httpx.AsyncClient) -> None:
    for query in (
        "status=done",
        "stauts=failed",
        "limit=0",
        "limit=201",
        "limit=many",
        "cursor=xyz",
        "since=2030-01-01T00:00:00",
        "since=yesterday",
        "tag=%00",
    ):
        reply = await http.get(f"/v1/jobs?{query}")
        assert reply.status_code == 422, query
        assert reply.headers["content-type"] == "application/problem+json", query


async def test_cancelling_a_job_that_nobody_runs_ends_it(http: httpx.AsyncClient) -> None:
    job = await submit(http)
    path = f"/v1/jobs/{job['job_id']}"
    reply = await http.post(f"{path}/cancel")
    assert (reply.status_code, reply.json()["status"]) == (202, "cancelled")
    again = await http.post(f"{path}/cancel")
    # I2: a terminal row never changes.
    assert (again.status_code, again.json()) == (200, reply.json())


async def test_cancelling_a_running_job_asks_its_worker(
    http: httpx.AsyncClient, worker: Worker
) -> None:
    job = await submit(http)
    await worker.claim(job["job_id"])
    reply = await http.post(f"/v1/jobs/{job['job_id']}/cancel")
    assert reply.status_code == 202
    assert (reply.json()["status"], reply.json()["cancel_requested"]) == ("running", True)


async def test_attempts_tell_how_they_ended(http: httpx.AsyncClient, worker: Worker) -> None:
    job = await submit(http)
    path = f"/v1/jobs/{job['job_id']}/attempts"
    assert (await http.get(path)).json() == {"items": []}
    await worker.fail(await worker.claim(job["job_id"]), "ValueError", "no")
    (attempt,) = (await http.get(path)).json()["items"]
    assert (attempt["attempt"], attempt["outcome"]) == (1, "failed")
    assert (attempt["error_code"], attempt["error_message"]) == ("ValueError", "no")
    assert "worker_id" not in attempt


async def test_a_chain_answers_with_its_steps(http: httpx.AsyncClient, worker: Worker) -> None:
    job = await submit(http, then=[{"task": "t.next"}])
    assert job["task"] == "lateack.chain"
    assert [step["status"] for step in job["steps"]] == ["pending", "blocked"]
    await worker.complete(await worker.claim(job["steps"][0]["job_id"]), "1")
    await worker.complete(await worker.claim(job["steps"][1]["job_id"]), "2")
    shown = (await http.get(f"/v1/jobs/{job['job_id']}")).json()
    assert (shown["status"], shown["result"]) == ("succeeded", 2)


async def test_queues_and_tasks(http: httpx.AsyncClient, worker: Worker) -> None:
    first = await submit(http)
    await submit(http)
    await submit(http, "t.pair", args=[1, 2])
    await worker.claim(first["job_id"])
    default, echo = (await http.get("/v1/queues")).json()["items"]
    assert (echo["queue"], echo["counts"]) == ("echo", {"pending": 1, "running": 1})
    assert (default["queue"], default["counts"]) == ("default", {"pending": 1})
    assert 0 <= default["oldest_age"] < 60
    tasks = {task["name"]: task for task in (await http.get("/v1/tasks")).json()["items"]}
    assert set(tasks) == {"t.echo", "t.pair", "t.next"}
    assert tasks["t.echo"]["queue"] == "echo"
    assert [p["name"] for p in tasks["t.pair"]["parameters"]] == ["a", "b"]


async def test_the_schema_names_the_service_and_its_bodies(http: httpx.AsyncClient) -> None:
    schema = (await http.get("/schema")).json()
    assert schema["info"]["title"] == "lateack"
    body = schema["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]
    assert {"task", "group", "then", "idempotency_key"} <= body["schema"]["properties"].keys()


async def test_health(http: httpx.AsyncClient) -> None:
    assert (await http.get("/livez")).status_code == 200
    assert (await http.head("/readyz")).status_code == 200
    assert (await http.get("/readyz")).json() == {"status": "ready", "reasons": []}


async def test_unknown_jobs_and_ids_that_are_none_are_one_answer(http: httpx.AsyncClient) -> None:
    bodies = set()
    for job_id in (str(uuid4()), "nope", "1", "%00", "0" * 32, "{" + str(uuid4()) + "}"):
        reply = await http.get(f"/v1/jobs/{job_id}")
        assert reply.status_code == 404, job_id
        bodies.add(reply.content)
    assert len(bodies) == 1
