"""Groups and chords over HTTP: one id, one document, one progress stream, one cancel."""

from __future__ import annotations

from typing import Any

import httpx

from .conftest import Worker
from .test_progress import receive, until_closed, watching

GROUP: dict[str, Any] = {
    "group": [
        {"task": "t.echo", "args": ["a"]},
        {"chain": [{"task": "t.echo", "args": ["b"]}, {"task": "t.next"}]},
    ],
    "then": [{"task": "t.next"}],
}


async def submitted(http: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    reply = await http.post("/v1/jobs", json=body)
    assert reply.status_code == 202, reply.text
    job: dict[str, Any] = reply.json()
    return job


async def test_a_group_is_one_job_with_steps(http: httpx.AsyncClient, worker: Worker) -> None:
    """I5, I8: its progress is the sum of its steps', and its watcher hears of each of them."""
    job = await submitted(http, GROUP)
    assert [step["status"] for step in job["steps"]] == ["pending", "pending", "blocked", "blocked"]
    assert job["progress"] == 0
    async with watching(str(http.base_url), job["job_id"]) as socket:
        assert (await receive(socket)).progress == 0
        for number, step in enumerate(job["steps"], 1):
            await worker.complete(await worker.claim(step["job_id"]), f'"{number}"')
            if number < len(job["steps"]):
                event = await receive(socket)
                while event.progress != 25.0 * number:
                    event = await receive(socket)
        events, _ = await until_closed(socket)
    assert events[-1].status == "succeeded"
    ended = (await http.get(f"/v1/jobs/{job['job_id']}")).json()
    assert (ended["status"], ended["result"]) == ("succeeded", "4")
    upstream = [step["status"] for step in ended["steps"]]
    assert upstream == ["succeeded"] * 4


async def test_a_workflows_step_is_the_task_that_runs(
    http: httpx.AsyncClient, worker: Worker
) -> None:
    job = await submitted(http, GROUP)
    await worker.claim(job["steps"][0]["job_id"])
    assert (await http.get(f"/v1/jobs/{job['job_id']}")).json()["step"] == "t.echo"


async def test_one_cancel_for_all(http: httpx.AsyncClient) -> None:
    job = await submitted(http, GROUP)
    assert (await http.post(f"/v1/jobs/{job['job_id']}/cancel")).status_code == 202
    ended = (await http.get(f"/v1/jobs/{job['job_id']}")).json()
    assert {ended["status"], *(step["status"] for step in ended["steps"])} == {"cancelled"}


async def test_what_a_workflow_lacks_is_named(http: httpx.AsyncClient) -> None:
    """A clear 422 with the place of the mistake."""
    for body, reason in [
        ({}, "give a task, or a group"),
        ({"group": []}, "nothing to run"),
        ({"group": [{"task": "t.echo"}, {"task": "t.pair", "args": [1]}]}, "group[1]: t.pair"),
        ({"task": "t.echo", "then": [{"group": [{"chain": []}]}]}, "then[0]: group[0]: a chain"),
        ({"group": [{"task": "t.echo"}], "on_failure": "ignore"}, "on_failure"),
    ]:
        reply = await http.post("/v1/jobs", json=body)
        assert reply.status_code in (400, 422), reply.text
        assert reason in reply.text, reply.text


async def test_a_group_is_replayed_by_its_key(http: httpx.AsyncClient) -> None:
    """I4: the whole workflow is what the key stands for."""
    first = await submitted(http, {**GROUP, "idempotency_key": "k"})
    again = await http.post("/v1/jobs", json={**GROUP, "idempotency_key": "k"})
    assert (again.status_code, again.json()["job_id"]) == (200, first["job_id"])
    other = {**GROUP, "group": GROUP["group"][:1], "idempotency_key": "k"}
    assert (await http.post("/v1/jobs", json=other)).status_code == 409
