"""One key, one job; exact caps; what is known of other tenants: nothing."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
import msgspec
import pytest

from lateack.errors import DeclarationError
from lateack_core.settings import Settings

from .conftest import Worker, client, served, submit


@contextlib.asynccontextmanager
async def two_services(settings: Settings) -> AsyncIterator[list[httpx.AsyncClient]]:
    async with (
        served(settings) as one,
        served(settings) as other,
        client(one) as first,
        client(other) as second,
    ):
        yield [first, second]


async def test_equal_submissions_at_once_make_one_job(settings: Settings) -> None:
    """SUB-01, I4: 50 at once through two services."""
    async with two_services(settings) as services:
        turns = itertools.cycle(services)
        replies = await asyncio.gather(
            *(
                next(turns).post(
                    "/v1/jobs",
                    json={"task": "t.echo", "args": [1]},
                    headers={"Idempotency-Key": "once"},
                )
                for _ in range(50)
            )
        )
        assert sorted({reply.status_code for reply in replies}) == [200, 202]
        assert sum(reply.status_code == 202 for reply in replies) == 1
        assert len({reply.json()["job_id"] for reply in replies}) == 1
        for reply in replies:
            replayed = reply.headers.get("idempotency-replayed")
            assert replayed == (None if reply.status_code == 202 else "true")
        assert len((await services[0].get("/v1/jobs")).json()["items"]) == 1


async def test_the_cap_is_exact_among_services(settings: Settings) -> None:
    """SUB-03: five free places, 200 submissions through two services, exactly five accepted."""
    capped = msgspec.structs.replace(settings, max_pending="echo=5")
    async with two_services(capped) as services:
        turns = itertools.cycle(services)
        replies = await asyncio.gather(
            *(next(turns).post("/v1/jobs", json={"task": "t.echo"}) for _ in range(200))
        )
        accepted = [reply for reply in replies if reply.status_code == 202]
        refused = [reply for reply in replies if reply.status_code == 503]
        assert (len(accepted), len(refused)) == (5, 195)
        for reply in refused:
            assert reply.json()["type"] == "queue-full"
            assert int(reply.headers["retry-after"]) >= 1
        listed = (await services[0].get("/v1/jobs?limit=200")).json()["items"]
        assert {job["job_id"] for job in listed} == {r.json()["job_id"] for r in accepted}
        # Other queues are not touched, and a batch says which item found a place.
        await submit(services[0], "t.pair", args=[1, 2])
        batch = await services[1].post("/v1/jobs/batch", json={"items": [{"task": "t.echo"}] * 3})
        assert [item["problem"]["type"] for item in batch.json()["items"]] == ["queue-full"] * 3


async def test_a_full_queue_answers_known_keys(settings: Settings) -> None:
    """I4 comes before capacity."""
    capped = msgspec.structs.replace(settings, max_pending="1")
    async with served(capped) as url, client(url) as http:
        job = await submit(http, idempotency_key="k")
        full = await http.post("/v1/jobs", json={"task": "t.echo"})
        assert full.status_code == 503
        again = await http.post("/v1/jobs", json={"task": "t.echo", "idempotency_key": "k"})
        assert (again.status_code, again.json()["job_id"]) == (200, job["job_id"])


async def test_a_key_with_other_content_is_a_conflict(
    http: httpx.AsyncClient, worker: Worker
) -> None:
    """SUB-04: the first job is untouched; equivalent content gets it."""
    first = await submit(
        http, kwargs={"value": {"a": 1, "b": 2}}, idempotency_key="k", eta="2030-01-01T00:00:00Z"
    )
    other = await http.post(
        "/v1/jobs", json={"task": "t.echo", "args": [1], "idempotency_key": "k"}
    )
    assert (other.status_code, other.json()["type"]) == (409, "key-conflict")
    equal = {
        "eta": "2030-01-01T01:00:00+01:00",
        "idempotency_key": "k",
        "kwargs": {"value": {"b": 2, "a": 1}},
        "task": "t.echo",
        "tags": [],
    }
    again = await http.post("/v1/jobs", json=equal)
    assert (again.status_code, again.json()) == (200, first)
    assert len((await http.get("/v1/jobs")).json()["items"]) == 1


async def test_odd_keys_are_compared_exactly_or_refused(http: httpx.AsyncClient) -> None:
    """SUB-06"""
    made: dict[bytes, str] = {}
    for key in (b"a", b"A", b"a b", "ключ".encode(), "\u00e9".encode(), "e\u0301".encode(),
                b"k" * 255, b'with "quotes" inside', b"'; --", b"%00", "🙂".encode()):  # fmt: skip
        reply = await http.post("/v1/jobs", json={"task": "t.echo"}, headers=_key(key))
        assert reply.status_code == 202, (key, reply.text)
        made[key] = reply.json()["job_id"]
    assert len(set(made.values())) == len(made)
    for key, job_id in made.items():
        reply = await http.post("/v1/jobs", json={"task": "t.echo"}, headers=_key(key))
        assert (reply.status_code, reply.json()["job_id"]) == (200, job_id), key
    # The same key quoted, as RFC 8941 has it, and in the body.
    for same in (_post(http, _key(b'"a b"')), _post(http, {}, idempotency_key="a b")):
        assert (await same).json()["job_id"] == made[b"a b"]
    quoted = await _post(http, _key(b'"with \\"quotes\\" inside"'))
    assert quoted.json()["job_id"] == made[b'with "quotes" inside']


async def test_unusable_keys_are_refused(http: httpx.AsyncClient) -> None:
    """SUB-06"""
    for key in (b"", b'""', b"\xff\xfe", b"\xe9", b"k" * 256, b"k" * 5000, b"a\tb",
                "a\u200bb".encode()):  # fmt: skip
        reply = await _post(http, _key(key))
        assert reply.status_code == 422, (key, reply.text)
    for body_key in ("", " a", "a\n", "a\x00"):
        assert (await _post(http, {}, idempotency_key=body_key)).status_code == 422
    both = await _post(http, _key(b"a"), idempotency_key="b")
    assert both.status_code == 422
    twice = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    reply = await http.post("/v1/jobs", json={"task": "t.echo"}, headers=twice)
    assert reply.status_code == 422
    assert (await http.get("/v1/jobs")).json()["items"] == []


async def test_a_foreign_job_is_an_unknown_job(http: httpx.AsyncClient, worker: Worker) -> None:
    """SUB-05, I9: byte for byte, and nothing changes."""
    mine = await submit(http)
    stranger = {"X-Tenant-ID": "stranger"}
    answers: dict[str, set[tuple[int, bytes]]] = {}
    for job_id in (mine["job_id"], str(uuid4())):
        for method, path in (
            ("GET", ""),
            ("GET", "?wait=1"),
            ("POST", "/cancel"),
            ("GET", "/attempts"),
            ("GET", "/events"),
            ("GET", "/events?after=0-1"),
        ):
            reply = await http.request(method, f"/v1/jobs/{job_id}{path}", headers=stranger)
            answers.setdefault(method + path, set()).add((reply.status_code, reply.content))
    for asked, found in answers.items():
        assert len(found) == 1, asked
        assert next(iter(found))[0] == 404
    assert (await http.get("/v1/jobs", headers=stranger)).json()["items"] == []
    for queue in (await http.get("/v1/queues", headers=stranger)).json()["items"]:
        # Queues are no secret, as tasks are none; what is in them is.
        assert (queue["counts"], queue["oldest_age"]) == ({}, None)
    shown = await http.get(f"/v1/jobs/{mine['job_id']}")
    assert shown.json() == mine


async def test_keys_are_a_tenants_own(http: httpx.AsyncClient) -> None:
    """I4, I9"""
    first = await submit(http, idempotency_key="k")
    reply = await http.post(
        "/v1/jobs",
        json={"task": "t.echo", "args": [2], "idempotency_key": "k"},
        headers={"X-Tenant-ID": "other"},
    )
    assert reply.status_code == 202
    assert reply.json()["job_id"] != first["job_id"]


async def test_tenants_names_are_checked(http: httpx.AsyncClient) -> None:
    for name in ("", "a b", "a/b", "é", "x" * 129):
        reply = await http.get("/v1/jobs", headers=[(b"X-Tenant-ID", name.encode())])
        assert (reply.status_code, reply.json()["type"]) == (422, "invalid-tenant"), name


async def test_a_trusted_header_is_required(settings: Settings) -> None:
    trusting = msgspec.structs.replace(settings, trust_tenant_header=True)
    async with served(trusting, "0.0.0.0") as url, client(url) as http:
        reply = await http.get("/v1/jobs")
        assert (reply.status_code, reply.json()["type"]) == (401, "tenant-missing")
        assert (await http.get("/v1/jobs", headers={"X-Tenant-ID": "a"})).status_code == 200
        assert (await http.get("/livez")).status_code == 200


async def test_an_open_address_is_refused_without_a_guard(settings: Settings) -> None:
    with pytest.raises(DeclarationError, match="LATEACK_TRUST_TENANT_HEADER"):
        async with served(settings, "0.0.0.0"):
            pass


def _key(key: bytes) -> Any:
    return [(b"Idempotency-Key", key)]


async def _post(http: httpx.AsyncClient, headers: Any, **fields: Any) -> httpx.Response:
    return await http.post("/v1/jobs", json={"task": "t.echo", **fields}, headers=headers)
