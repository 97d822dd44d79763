"""What is repeated, what is not, and which error each answer becomes (CLI-04)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from lateack import (
    Busy,
    Conflict,
    InvalidRequest,
    NotAllowed,
    NotFound,
    Problem,
    Unreachable,
)
from lateack._exchange import Reply, retry_after
from tests.client.callers import Caller
from tests.client.networks import Say, ScriptedServer, gaps

Callers = Callable[..., Caller]

JOB: dict[str, Any] = {
    "job_id": str(uuid.uuid4()),
    "task": "t.echo",
    "queue": "default",
    "status": "pending",
    "priority": 5,
    "progress": None,
    "step": None,
    "attempt": 0,
    "max_retries": 3,
    "result": None,
    "result_location": None,
    "error_code": None,
    "error_message": None,
    "error_info": None,
    "tags": [],
    "meta": {},
    "owner": None,
    "external_ref": None,
    "parent_id": None,
    "retry_of": None,
    "cancel_requested": False,
    "created_at": "2030-01-01T00:00:00Z",
    "run_at": "2030-01-01T00:00:00Z",
    "started_at": None,
    "completed_at": None,
    "expires_at": None,
}
ACCEPTED = Say(202, JOB)


def problem(status: int, **more: Any) -> Say:
    """A problem document of that status."""
    document = {"type": f"t-{status}", "title": "T", "status": status, "detail": "why", **more}
    return Say(status, document)


async def test_a_full_queue_is_tried_again_when_it_said(caller: Callers) -> None:
    """CLI-04: a 503 is repeated, not before its Retry-After, under the same key."""
    busy = Say(503, {"detail": "full"}, {"retry-after": "1"})
    async with ScriptedServer(busy, ACCEPTED) as server:
        job = await caller(server.url).call("submit", "t.echo", args=[1])
    assert str(job.job_id) == JOB["job_id"]
    assert not job.replayed
    first, second = (request.document["idempotency_key"] for request in server.requests)
    assert first == second
    assert gaps(server.requests)[0] >= 1.0


@pytest.mark.parametrize("say", [Say(0), Say(502), Say(504), Say(408), Say(429)], ids=str)
async def test_what_is_safe_is_repeated_under_one_key(caller: Callers, say: Say) -> None:
    """CLI-01, CLI-04: lost replies and gateways' errors are repeated with the key of the call."""
    async with ScriptedServer(say, say, ACCEPTED) as server:
        await caller(server.url).call("submit", "t.echo")
    keys = {request.document["idempotency_key"] for request in server.requests}
    assert len(server.requests) == 3
    assert len(keys) == 1


async def test_each_call_has_a_key_of_its_own(caller: Callers) -> None:
    """Two submissions are two jobs, unless the caller says otherwise."""
    async with ScriptedServer(ACCEPTED) as server:
        client = caller(server.url)
        await client.call("submit", "t.echo")
        await client.call("submit", "t.echo")
        await client.call("submit", "t.echo", idempotency_key="mine")
    keys = [request.document["idempotency_key"] for request in server.requests]
    assert len(set(keys)) == 3
    assert keys[2] == "mine"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, InvalidRequest),
        (413, InvalidRequest),
        (415, InvalidRequest),
        (422, InvalidRequest),
        (401, NotAllowed),
        (403, NotAllowed),
        (404, NotFound),
        (409, Conflict),
        (410, Problem),
        (308, Problem),
        (500, Problem),
    ],
)
async def test_what_cannot_help_is_not_repeated(
    caller: Callers, status: int, error: type[Problem]
) -> None:
    """CLI-04: one request, and a distinct error for each class."""
    async with ScriptedServer(problem(status, errors=["e"])) as server:
        with pytest.raises(Problem) as caught:
            await caller(server.url).call("submit", "t.echo")
    assert type(caught.value) is error
    assert caught.value.status == status
    assert caught.value.type == f"t-{status}"
    assert caught.value.document["errors"] == ["e"]
    assert len(server.requests) == 1


async def test_a_read_that_failed_inside_is_repeated_a_little(caller: Callers) -> None:
    """CLI-04: reads may be repeated after a 500; not for ever."""
    async with ScriptedServer(problem(500), Say(200, JOB)) as server:
        await caller(server.url).call("get", JOB["job_id"])
    async with ScriptedServer(problem(500)) as server:
        with pytest.raises(Problem):
            await caller(server.url).call("get", JOB["job_id"])
    assert len(server.requests) == 3


async def test_a_hint_beyond_the_budget_ends_the_call_at_once(caller: Callers) -> None:
    """CLI-04: nobody is kept waiting for what cannot come in time."""
    async with ScriptedServer(problem(429, retry_after=60.0)) as server:
        with pytest.raises(Busy) as caught:
            await caller(server.url, timeout=30).call("submit", "t.echo")
    assert caught.value.retry_after == 60.0
    assert len(server.requests) == 1


async def test_a_service_that_stays_full_is_given_up_within_the_budget(caller: Callers) -> None:
    """CLI-04: the last answer is what the caller gets."""
    async with ScriptedServer(Say(503, {"detail": "full"}, {"retry-after": "0"})) as server:
        with pytest.raises(Busy, match="full"):
            await caller(server.url, timeout=1.0).call("submit", "t.echo")
    assert len(server.requests) > 1


async def test_a_service_that_never_answers_takes_no_more_than_the_budget(caller: Callers) -> None:
    """CLI-04: silence ends with Unreachable; the factor leaves room for a busy machine."""
    async with ScriptedServer(Say(None)) as server:
        began = time.monotonic()
        with pytest.raises(Unreachable):
            await caller(server.url, timeout=1.0).call("submit", "t.echo")
    assert time.monotonic() - began < 10.0


async def test_nobody_listens(caller: Callers) -> None:
    """CLI-04: a refused connection is tried again within the budget, then Unreachable."""
    async with ScriptedServer(ACCEPTED) as server:
        url = server.url
    with pytest.raises(Unreachable):
        await caller(url, timeout=0.5).call("get", JOB["job_id"])


async def test_somebody_else_answers(caller: Callers) -> None:
    """The page of a proxy is not taken for a job."""
    async with ScriptedServer(Say(200, raw=b"<html>log in</html>")) as server:
        with pytest.raises(Problem, match="no answer of a lateack service"):
            await caller(server.url).call("get", JOB["job_id"])


async def test_credentials_and_path_of_the_url(caller: Callers) -> None:
    """Credentials go out as a header, never in an address, a text or an error."""
    async with ScriptedServer(problem(404)) as server:
        url = server.url.replace("http://", "http://me:s%40crät@") + "/jobs/"
        one = caller(url, tenant="acme", headers={"X-Trace": "7"})
        with pytest.raises(NotFound) as caught:
            await one.call("get", "a/b?c")
    request = server.requests[0]
    assert request.line == "GET /jobs/v1/jobs/a%2Fb%3Fc HTTP/1.1"
    assert request.headers["authorization"] == "Basic bWU6c0BjcsOkdA=="
    assert request.headers["x-tenant-id"] == "acme"
    assert request.headers["x-trace"] == "7"
    assert "s@cr" not in repr(one.client) + str(caught.value)
    assert "s%40cr" not in repr(one.client) + str(caught.value)


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:8000", "http://", "http://x?a=b", ""])
def test_a_url_that_is_none(caller: Callers, url: str) -> None:
    """Said at once, not at the first call."""
    with pytest.raises(ValueError, match="URL"):
        caller(url)


async def test_pages(caller: Callers) -> None:
    """All pages are read, and no more of them than asked for."""
    pages = [Say(200, {"items": [JOB] * 2, "next": "c1"}), Say(200, {"items": [JOB], "next": None})]
    async with ScriptedServer(*pages) as server:
        client = caller(server.url)
        at = datetime(2030, 1, 1, tzinfo=UTC)
        found = [job async for job in client.each("list", status=["failed", "running"], since=at)]
    assert len(found) == 3
    first, second = (request.line for request in server.requests)
    assert "status=failed&status=running&since=2030-01-01T00%3A00%3A00%2B00%3A00" in first
    assert "cursor=c1" in second
    async with ScriptedServer(*pages) as server:
        assert len([job async for job in caller(server.url).each("list", limit=1)]) == 1
    assert len(server.requests) == 1


def test_retry_after_as_a_date() -> None:
    """RFC 9110 knows both forms."""
    at = datetime.now(UTC) + timedelta(seconds=100)
    seconds = retry_after(Reply(503, {"retry-after": format_datetime(at, usegmt=True)}, b""))
    assert seconds is not None
    assert 90 < seconds <= 100
    assert retry_after(Reply(503, {"retry-after": "soon"}, b"")) is None
