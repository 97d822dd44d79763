"""Schedules over HTTP, and through the clients."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import httpx
import pytest

from lateack import Client, Conflict, InvalidRequest, NotFound, SyncClient, crontab
from lateack_core.ground import open_ground
from lateack_core.settings import Settings
from lateack_scheduler.scheduler import start
from tests.service.conftest import client, eventually, served

NIGHTLY = {"task": "t.echo", "cron": "30 2 * * *", "zone": "Europe/Berlin"}


async def put(http: httpx.AsyncClient, name: str = "nightly", **fields: Any) -> dict[str, Any]:
    """Make a schedule that must be accepted; its document."""
    reply = await http.put(f"/v1/schedules/{name}", json={**NIGHTLY, **fields})
    assert reply.status_code in (200, 201), reply.text
    document: dict[str, Any] = reply.json()
    return document


async def test_a_schedules_life(http: httpx.AsyncClient) -> None:
    """Made, looked at, changed, paused, resumed, deleted."""
    reply = await http.put(
        "/v1/schedules/nightly", json={**NIGHTLY, "args": [1e22], "paused": True}
    )
    assert reply.status_code == 201
    made = reply.json()
    assert made == (await http.get("/v1/schedules/nightly")).json()
    assert (made["cron"], made["zone"], made["misfire"], made["overlap"]) == (
        "30 2 * * *",
        "Europe/Berlin",
        "once",
        "allow",
    )
    assert (made["origin"], made["paused"], made["problem"], made["last"]) == (
        "api",
        True,
        None,
        None,
    )
    assert made["args"] == [1e22]
    assert datetime.fromisoformat(made["next_due"]) > datetime.now(UTC) - timedelta(minutes=1)

    changed = await put(http, cron=None, interval=60, overlap="skip", misfire="all(5)")
    assert (changed["cron"], changed["interval"], changed["args"]) == (None, 60.0, [])
    assert changed["paused"]
    resumed = await http.post("/v1/schedules/nightly/resume")
    assert not resumed.json()["paused"]
    assert (await http.post("/v1/schedules/nightly/pause")).json()["paused"]
    assert (await http.delete("/v1/schedules/nightly")).status_code == 204
    assert (await http.get("/v1/schedules/nightly")).status_code == 404


async def test_pages(http: httpx.AsyncClient) -> None:
    """By name, the next page after the last of this one."""
    names = [f"s {number:02}" for number in range(7)]
    for name in reversed(names):
        await put(http, name)
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await http.get("/v1/schedules", params={"limit": 3, **cursor})).json()
        found += [one["name"] for one in page["items"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert found == names


@pytest.mark.parametrize(
    ("fields", "type_", "words"),
    [
        ({"cron": "61 * * * *"}, "invalid-schedule", "minute"),
        ({"cron": "0 0 30 2 *"}, "invalid-schedule", "day-of-month"),
        ({"cron": "* * * *"}, "invalid-schedule", "4 fields"),
        ({"zone": "Mars/Olympus"}, "invalid-schedule", "no zone"),
        ({"zone": "\x00"}, "invalid-submission", "zone"),
        ({"task": "t.none"}, "unknown-task", "t.none"),
        ({"args": [1, 2, 3]}, "invalid-arguments", "positional"),
        ({"interval": 60}, "invalid-submission", "either cron or interval"),
        ({"cron": None}, "invalid-submission", "either cron or interval"),
        ({"cron": None, "interval": 0.1}, "invalid-submission", "interval is seconds"),
        ({"misfire": "twice"}, "invalid-submission", "misfire"),
        ({"overlap": "maybe"}, "invalid-submission", "overlap"),
        ({"expires": -1}, "invalid-submission", "expires"),
        ({"queue": "a b"}, "invalid-submission", "queue"),
        ({"priority": 11}, "invalid-submission", "priority"),
        ({"every": 5}, "invalid-submission", "every"),
        ({"anchor": "2026-01-01T00:00:00", "cron": None, "interval": 5}, "invalid-submission", ""),
    ],
)
async def test_what_is_refused(
    http: httpx.AsyncClient, fields: dict[str, Any], type_: str, words: str
) -> None:
    """SCH-10: what cannot fire is refused where somebody is there to read why."""
    reply = await http.put("/v1/schedules/nightly", json={**NIGHTLY, **fields})
    assert reply.status_code == 422, reply.text
    assert reply.json()["type"] == type_
    assert words in reply.json()["detail"]
    assert (await http.get("/v1/schedules/nightly")).status_code == 404


async def test_names(http: httpx.AsyncClient) -> None:
    """PAY-07: narrow, and what cannot be a name is the name of none."""
    for name in ("send reports (daily)", "a.b:c@d", "x" * 128):
        await put(http, name)
        assert (await http.get(f"/v1/schedules/{name}")).json()["name"] == name
    for name in ("x" * 129, "%20a", "a%20", "%00", "ü", "a%22"):
        reply = await http.put(f"/v1/schedules/{name}", json=NIGHTLY)
        assert reply.status_code == 422, name
        for path in ("", "/ticks", "/next"):
            assert (await http.get(f"/v1/schedules/{name}{path}")).status_code == 404
        for path in ("/run", "/pause", "/resume"):
            assert (await http.post(f"/v1/schedules/{name}{path}")).status_code == 404
        assert (await http.delete(f"/v1/schedules/{name}")).status_code == 404


async def test_another_tenants_schedule(http: httpx.AsyncClient) -> None:
    """I9: foreign and unknown are the same answer, and nothing changes."""
    before = await put(http)
    other = {"X-Tenant-ID": "other"}
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/ticks"),
        ("GET", "/next"),
        ("POST", "/run"),
        ("POST", "/pause"),
        ("POST", "/resume"),
    ):
        foreign = await http.request(method, f"/v1/schedules/nightly{path}", headers=other)
        unknown = await http.request(method, f"/v1/schedules/nothing{path}", headers=other)
        assert (foreign.status_code, foreign.content) == (404, unknown.content), path
    assert (await http.get("/v1/schedules", headers=other)).json()["items"] == []
    # The same name is another schedule there.
    reply = await http.put(
        "/v1/schedules/nightly", headers=other, json={"task": "t.echo", "interval": 5}
    )
    assert reply.status_code == 201
    assert (await http.get("/v1/schedules/nightly")).json() == before


async def test_run_now(http: httpx.AsyncClient) -> None:
    """A job and a row, paused or not; once for each key; not while one is live that must not be
    overlapped."""
    await put(http, overlap="skip", args=["hello"], queue="other")
    await http.post("/v1/schedules/nightly/pause")
    reply = await http.post("/v1/schedules/nightly/run", headers={"Idempotency-Key": "k"})
    assert reply.status_code == 202
    job = reply.json()
    assert (job["task"], job["queue"], job["meta"]) == ("t.echo", "other", {"schedule": "nightly"})
    assert reply.headers["location"] == f"/v1/jobs/{job['job_id']}"
    again = await http.post("/v1/schedules/nightly/run", json={"idempotency_key": "k"})
    assert (again.status_code, again.json()["job_id"]) == (200, job["job_id"])
    assert again.headers["idempotency-replayed"] == "true"
    busy = await http.post("/v1/schedules/nightly/run")
    assert (busy.status_code, busy.json()["type"]) == (409, "schedule-overlap")
    (tick,) = (await http.get("/v1/schedules/nightly/ticks")).json()["items"]
    assert (tick["outcome"], tick["job_id"], tick["job_status"]) == (
        "manual",
        job["job_id"],
        "pending",
    )
    await http.post(f"/v1/jobs/{job['job_id']}/cancel")
    assert (await http.post("/v1/schedules/nightly/run")).status_code == 202
    # A key that stands for something else.
    await put(http, "another")
    taken = await http.post("/v1/schedules/another/run", headers={"Idempotency-Key": "k"})
    assert (taken.status_code, taken.json()["type"]) == (409, "key-conflict")
    bad = await http.post("/v1/schedules/another/run", headers={"Idempotency-Key": "x" * 300})
    assert bad.status_code == 422


@pytest.mark.parametrize("overlap", ["allow", "skip"])
async def test_one_key_at_the_same_moment(http: httpx.AsyncClient, overlap: str) -> None:
    """I4: twenty runs with one key are one job."""
    await put(http, overlap=overlap, expires=60)
    replies = await asyncio.gather(
        *(
            http.post("/v1/schedules/nightly/run", headers={"Idempotency-Key": "k"})
            for _ in range(20)
        )
    )
    assert {reply.status_code for reply in replies} <= {200, 202}
    assert len({reply.json()["job_id"] for reply in replies}) == 1
    assert len((await http.get("/v1/schedules/nightly/ticks")).json()["items"]) == 1


async def test_next_marks_changes_of_the_clocks(http: httpx.AsyncClient) -> None:
    """SCH-06: whoever looks ahead sees what the change does."""
    await put(http, cron="30 2 * 3,10 *")
    fires = (await http.get("/v1/schedules/nightly/next", params={"n": 62})).json()["items"]
    assert len(fires) == 62
    marks = [fire["clock_change"] for fire in fires if fire["clock_change"]]
    assert any("left out" in mark for mark in marks)
    assert any("comes twice" in mark for mark in marks)
    for query in ({"n": 0}, {"n": 101}, {"m": 1}):
        reply = await http.get("/v1/schedules/nightly/next", params=query)
        assert reply.status_code == 422


async def test_ticks_as_they_come(http: httpx.AsyncClient, settings: Settings) -> None:
    """A schedule made over HTTP fires without anything being restarted; its ticks are pages."""
    ground = await open_ground(settings, process="scheduler")
    ground.start()
    start(ground)
    try:
        await put(http, cron=None, interval=1)

        async def fired() -> list[dict[str, Any]]:
            found = await http.get("/v1/schedules/nightly/ticks", params={"outcome": "fired"})
            items: list[dict[str, Any]] = found.json()["items"]
            return items if len(items) >= 3 else []

        items = await eventually(fired)
        due = [datetime.fromisoformat(item["due_at"]) for item in items]
        assert due == sorted(due, reverse=True)
        assert len({item["job_id"] for item in items}) == len(items)
        assert (await http.get(f"/v1/jobs/{items[0]['job_id']}")).status_code == 200
        # To be read while new ones come.
        page = (await http.get("/v1/schedules/nightly/ticks", params={"limit": 2})).json()
        rest = (
            await http.get(
                "/v1/schedules/nightly/ticks", params={"limit": 2, "cursor": page["next"]}
            )
        ).json()
        assert rest["items"][0]["due_at"] < page["items"][-1]["due_at"]
        await http.post("/v1/schedules/nightly/pause")

        async def skipped() -> bool:
            last = (await http.get("/v1/schedules/nightly")).json()["last"]
            return bool((last["outcome"], last["reason"]) == ("skipped", "paused"))

        await eventually(skipped)
    finally:
        await ground.close()


async def test_declared_schedules(settings: Settings, ledger_url: str) -> None:
    """What the code declares is there when the service is; it cannot be deleted, only paused."""
    from tests.service.conftest import app

    app.beat_schedule = {
        "beat": {"task": "t.echo", "schedule": crontab(minute=0)},
        "bad": {"task": "t.echo", "schedule": "0 0 31 2 *"},
    }
    try:
        async with served(settings) as url, client(url) as http:

            async def there() -> bool:
                return (await http.get("/v1/schedules/beat")).status_code == 200

            await eventually(there)
            found = (await http.get("/v1/schedules/beat")).json()
            assert (found["origin"], found["app"], found["days"]) == ("code", "tests", "both")
            bad = (await http.get("/v1/schedules/bad")).json()
            assert (bad["next_due"], "day-of-month" in bad["problem"]) == (None, True)
            assert (await http.get("/v1/schedules/bad/next")).json()["type"] == "no-next-tick"
            refused = await http.delete("/v1/schedules/beat")
            assert (refused.status_code, refused.json()["type"]) == (409, "schedule-declared")
            edited = await put(http, "beat", cron="5 * * * *", zone="UTC")
            assert (edited["origin"], edited["edited"]) == ("code", True)
            connection = await asyncpg.connect(ledger_url)
            await connection.execute(
                "UPDATE lateack.schedules SET retired_at = lateack.now(), next_due = NULL "
                "WHERE name = 'beat'"
            )
            await connection.close()
            for path in ("run", "next"):
                method = "POST" if path == "run" else "GET"
                reply = await http.request(method, f"/v1/schedules/beat/{path}")
                assert (reply.status_code, reply.json()["type"]) == (409, "schedule-retired")
            assert (await http.delete("/v1/schedules/beat")).status_code == 204
    finally:
        app.beat_schedule = {}


async def test_the_client(url: str) -> None:
    async with Client(url) as jobs:
        made = await jobs.schedules.put(
            "hourly (mine)", "t.echo", crontab(minute=5), kwargs={"value": 1}, expires=timedelta(1)
        )
        assert (made.cron, made.days, made.expires) == ("5 * * * *", "both", 86400.0)
        assert await jobs.schedules.get("hourly (mine)") == made
        assert [one async for one in jobs.schedules.list()] == [made]
        fires = await jobs.schedules.next("hourly (mine)", 3)
        assert [fire.due_at.minute for fire in fires] == [5, 5, 5]
        job = await jobs.schedules.run("hourly (mine)")
        (tick,) = await jobs.schedules.ticks("hourly (mine)", outcome="manual")
        assert tick.job_id == job.job_id
        assert (await jobs.schedules.pause("hourly (mine)")).paused
        assert not (await jobs.schedules.resume("hourly (mine)")).paused
        await jobs.schedules.put("it", "t.echo", 60.0, overlap="skip")
        await jobs.schedules.run("it")
        with pytest.raises(Conflict):
            await jobs.schedules.run("it")
        with pytest.raises(InvalidRequest):
            await jobs.schedules.put("it", "t.none", 60.0)
        await jobs.schedules.delete("it")
        with pytest.raises(NotFound):
            await jobs.schedules.get("it")


async def test_the_sync_client(url: str) -> None:
    def body() -> None:
        with SyncClient(url, tenant="acme") as jobs:
            made = jobs.schedules.put("s", "t.echo", timedelta(minutes=1), misfire="all(2)")
            assert jobs.schedules.get("s") == made
            assert list(jobs.schedules.list()) == [made]
            assert len(jobs.schedules.next("s")) == 10
            job = jobs.schedules.run("s")
            assert jobs.schedules.ticks("s")[0].job_id == job.job_id
            assert jobs.schedules.pause("s").paused
            assert not jobs.schedules.resume("s").paused
            jobs.schedules.delete("s")
            assert list(jobs.schedules.list()) == []

    await asyncio.to_thread(body)


async def test_the_openapi_document_tells_of_schedules(http: httpx.AsyncClient) -> None:
    paths = (await http.get("/schema/openapi.json")).json()["paths"]
    assert {path for path in paths if "schedules" in path} == {
        "/v1/schedules",
        "/v1/schedules/{name}",
        *(f"/v1/schedules/{{name}}/{verb}" for verb in ("run", "pause", "resume", "ticks", "next")),
    }
    ticks = paths["/v1/schedules/{name}/ticks"]["get"]["parameters"]
    assert {"name", "outcome", "limit", "cursor"} == {parameter["name"] for parameter in ticks}
    body = paths["/v1/schedules/{name}"]["put"]["requestBody"]["content"]["application/json"]
    assert {"cron", "interval", "zone", "misfire"} <= body["schema"]["properties"].keys()
