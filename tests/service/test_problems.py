"""Bad input gets a problem document that says what to change, and leaves nothing behind."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from .conftest import Worker, submit


def problem(reply: httpx.Response, status: int, type_: str) -> dict[str, Any]:
    assert (reply.status_code, reply.headers["content-type"]) == (
        status,
        "application/problem+json",
    ), reply.text
    document: dict[str, Any] = reply.json()
    assert (document["status"], document["type"]) == (status, type_)
    assert document["title"]
    assert document["detail"]
    return document


async def post(http: httpx.AsyncClient, body: bytes | str, **headers: str) -> httpx.Response:
    named = {"content-type": "application/json"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    content = body.encode() if isinstance(body, str) else body
    return await http.post("/v1/jobs", content=content, headers=named)


async def count(http: httpx.AsyncClient) -> int:
    return len((await http.get("/v1/jobs?limit=200")).json()["items"])


UNSOUND = {
    "not json": (b"{", 400, "malformed-json"),
    "nothing": (b"", 400, "malformed-json"),
    "two texts": (b'{"task":"t.echo"} x', 400, "malformed-json"),
    "not utf-8": (b'{"task":"t.echo","args":["\xff"]}', 400, "malformed-json"),
    "a raw surrogate": (b'{"task":"t.echo","args":["\xed\xa0\x80"]}', 400, "malformed-json"),
    "a list": (b"[]", 422, "invalid-submission"),
    "null": (b"null", 422, "invalid-submission"),
    "no task": (b"{}", 422, "invalid-submission"),
    "unknown field": (b'{"task":"t.echo","ags":[]}', 422, "invalid-submission"),
    "wrong type": (b'{"task":"t.echo","priority":"5"}', 422, "invalid-submission"),
    "NUL": (b'{"task":"t.echo","args":["a\\u0000b"]}', 422, "invalid-submission"),
    "NUL in a name": (b'{"task":"t.echo","kwargs":{"a\\u0000":1}}', 422, "invalid-submission"),
    "NUL in a tag": (b'{"task":"t.echo","tags":["\\u0000"]}', 422, "invalid-submission"),
    "half a pair": (b'{"task":"t.echo","args":["x\\ud800y, and more"]}', 422, "invalid-submission"),
    "half at the end": (b'{"task":"t.echo","args":["\\ud800"]}', 422, "invalid-submission"),
    "NaN": (b'{"task":"t.echo","args":[NaN]}', 422, "invalid-submission"),
    "Infinity": (b'{"task":"t.echo","args":[-Infinity]}', 422, "invalid-submission"),
    "1e400": (b'{"task":"t.echo","args":[1e400]}', 422, "invalid-submission"),
    "too many digits": (
        b'{"task":"t.echo","args":[%s]}' % (b"9" * 5000),
        422,
        "invalid-submission",
    ),
    "65 levels": (
        b'{"task":"t.echo","args":%s}' % (b"[" * 66 + b"]" * 66),
        422,
        "invalid-submission",
    ),
    "deep": (
        b'{"task":"t.echo","args":%s}' % (b"[" * 10_000 + b"]" * 10_000),
        422,
        "invalid-submission",
    ),
    "deep objects": (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, 422, "invalid-submission"),
    "unknown task": (b'{"task":"t.other"}', 422, "unknown-task"),
    "a task's name": (b'{"task":"t.\xd0\xb5cho"}', 422, "invalid-submission"),
    "a queue's name": (b'{"task":"t.echo","queue":"a b"}', 422, "invalid-submission"),
    "a queue's key": (b'{"task":"t.echo","queue":"a}:3"}', 422, "invalid-submission"),
    "arguments": (b'{"task":"t.pair","args":[1]}', 422, "invalid-arguments"),
    "no zone": (b'{"task":"t.echo","eta":"2030-01-01T00:00:00"}', 422, "invalid-submission"),
    "no such time": (b'{"task":"t.echo","eta":"2030-02-30T00:00:00Z"}', 422, "invalid-submission"),
    "year 9999": (b'{"task":"t.echo","eta":"9999-12-31T23:59:59Z"}', 422, "invalid-submission"),
    "negative": (b'{"task":"t.echo","countdown":-1}', 422, "invalid-submission"),
    "both times": (
        b'{"task":"t.echo","countdown":1,"eta":"2030-01-01T00:00:00Z"}',
        422,
        "invalid-submission",
    ),
    "priority": (b'{"task":"t.echo","priority":10}', 422, "invalid-submission"),
    "too large": (b'{"task":"t.echo","args":["%s"]}' % (b"x" * 65_536), 413, "too-large"),
    "far too large": (b'{"task":"t.echo","args":["%s"]}' % (b"x" * 3_000_000), 413, "too-large"),
}


async def test_unsound_submissions_are_refused_with_a_reason(http: httpx.AsyncClient) -> None:
    """PAY-01, PAY-02, PAY-04, PAY-06, PAY-07, at the door; nothing is left behind."""
    for name, (body, status, type_) in UNSOUND.items():
        reply = await post(http, body)
        assert reply.status_code == status, (name, reply.text)
        problem(reply, status, type_)
    assert await count(http) == 0


async def test_a_body_without_length_is_cut_off_too(http: httpx.AsyncClient) -> None:
    """PAY-04: a body in chunks has no length to announce."""

    async def chunks() -> Any:
        for _ in range(50):
            yield b" " * 100_000

    reply = await http.post(
        "/v1/jobs", content=chunks(), headers={"content-type": "application/json"}
    )
    problem(reply, 413, "too-large")


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json; charset=latin-1"},
        {"content-type": "application/json", "content-encoding": "gzip"},
        {},
    ],
)
async def test_only_json_is_read(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    reply = await http.post("/v1/jobs", content=b'{"task":"t.echo"}', headers=headers)
    problem(reply, 415, "unsupported-media-type")


async def test_integers_pass_unchanged(http: httpx.AsyncClient, worker: Worker) -> None:
    """PAY-05: beyond the exact range of floating point, and beyond 64 bits."""
    for number in (2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 2**100):
        reply = await post(http, f'{{"task":"t.echo","args":[{number}]}}')
        assert reply.status_code == 202, reply.text
        claimed = await worker.claim(reply.json()["job_id"])
        assert claimed.args == f"[{number}]"


async def test_times_run_at_their_exact_instant(http: httpx.AsyncClient) -> None:
    """PAY-06: with unusual offsets too."""
    for eta, instant in (
        ("2030-01-01T00:00:00Z", "2030-01-01T00:00:00Z"),
        ("2030-01-01T05:45:00+05:45", "2030-01-01T00:00:00Z"),
        ("2029-12-31T12:00:00-12:00", "2030-01-01T00:00:00Z"),
    ):
        job = await submit(http, eta=eta)
        assert job["run_at"] == instant
        assert job["status"] == "scheduled"


async def test_names_are_told_apart_exactly(http: httpx.AsyncClient) -> None:
    """PAY-07: nothing is folded, what is not plain is refused."""
    for queue in ("a.b", "a-b", "a_b", "A.b"):
        assert (await submit(http, queue=queue))["queue"] == queue
    for queue in ("", "-a", "a/b", "a:b", "ａ", "\u00e9", "e\u0301", "🙂", "a\n", "a" * 65):
        reply = await http.post("/v1/jobs", json={"task": "t.echo", "queue": queue})
        problem(reply, 422, "invalid-submission")


async def test_addresses_and_methods_that_are_none(http: httpx.AsyncClient) -> None:
    problem(await http.get("/nowhere"), 404, "no-such-route")
    problem(await http.get("/v1/jobs/a/b/c"), 404, "no-such-route")
    reply = await http.delete("/v1/jobs")
    problem(reply, 405, "method-not-allowed")
    assert {"GET", "POST"} <= set(reply.headers["allow"].split(", "))


async def test_an_unexpected_error_tells_nothing_of_the_inside(
    http: httpx.AsyncClient, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """500 with an id, under which the log has the reason."""
    async with worker.ground.postgres.transaction() as transaction:
        await transaction.script("ALTER TABLE lateack.tasks RENAME TO hidden")
    document = problem(await http.get("/v1/tasks"), 500, "internal-error")
    assert "hidden" not in str(document)
    assert "relation" not in str(document)
    reference = document["instance"].rpartition(":")[2]
    (record,) = [r for r in caplog.records if reference in r.getMessage()]
    assert record.exc_info is not None


async def test_a_batch_says_what_became_of_each_item(http: httpx.AsyncClient) -> None:
    """SUB-07: an item that is wrong in any way does not touch its neighbours."""
    await http.post("/v1/jobs", json={"task": "t.echo", "idempotency_key": "taken"})
    items = [
        {"task": "t.echo", "idempotency_key": "a"},
        {"task": "t.echo", "priority": "high"},
        {"task": "t.other"},
        {"task": "t.echo", "idempotency_key": "a"},
        {"task": "t.echo", "idempotency_key": "taken", "args": [1]},
        17,
        {"task": "t.echo"},
    ]
    reply = await http.post("/v1/jobs/batch", json={"items": items})
    assert reply.status_code == 202, reply.text
    answer = reply.json()
    verdicts = [
        "replayed" if item.get("replayed") else item["accepted"] or item["problem"]["type"]
        for item in answer["items"]
    ]
    # Which of two equal items makes the job and which replays it is not promised.
    assert sorted([str(verdicts[0]), str(verdicts[3])]) == ["True", "replayed"]
    assert verdicts[1:3] == ["invalid-submission", "unknown-task"]
    assert verdicts[4:] == ["key-conflict", "invalid-submission", True]
    assert (answer["accepted"], answer["replayed"], answer["refused"]) == (2, 1, 4)
    assert answer["items"][0]["job"]["job_id"] == answer["items"][3]["job"]["job_id"]
    assert "item 1" in answer["items"][1]["problem"]["detail"]
    assert await count(http) == 3


async def test_batches_have_bounds(http: httpx.AsyncClient) -> None:
    too_many = await http.post("/v1/jobs/batch", json={"items": [1] * 10_001})
    problem(too_many, 422, "invalid-submission")
    keyed = await http.post("/v1/jobs/batch", json={"items": []}, headers={"Idempotency-Key": "k"})
    problem(keyed, 422, "invalid-request")
    problem(await http.post("/v1/jobs/batch", json=[]), 422, "invalid-submission")
    deep = b'{"items":[' + b"[" * 10_000 + b"]" * 10_000 + b"]}"
    reply = await http.post(
        "/v1/jobs/batch", content=deep, headers={"content-type": "application/json"}
    )
    assert reply.status_code in (200, 422)
    empty = await http.post("/v1/jobs/batch", json={"items": []})
    assert (empty.status_code, empty.json()["items"]) == (200, [])


async def test_thousands_in_one_batch(http: httpx.AsyncClient) -> None:
    items = [{"task": "t.echo", "args": [n]} for n in range(2000)]
    reply = await http.post("/v1/jobs/batch", json={"items": items})
    answer = reply.json()
    assert answer["accepted"] == 2000
    assert len({item["job"]["job_id"] for item in answer["items"]}) == 2000
