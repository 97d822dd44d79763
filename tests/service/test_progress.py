"""I8: a reader sees every event in order from where it left off, or is told of a gap with a fresh
snapshot; it always sees the terminal state."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import httpx
import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from lateack.models import Event
from lateack_core.jobs import Claimed
from lateack_core.progress import Trail, announce, order
from lateack_core.settings import Settings

from .conftest import Worker, client, eventually, served, submit

decode = msgspec.json.Decoder(Event).decode


@contextlib.asynccontextmanager
async def watching(
    url: str, job_id: str, after: str | None = None
) -> AsyncIterator[ClientConnection]:
    query = "" if after is None else f"?after={after}"
    address = f"{url.replace('http', 'ws', 1)}/v1/jobs/{job_id}/progress{query}"
    async with connect(address, proxy=None) as socket:
        yield socket


async def until_closed(socket: ClientConnection) -> tuple[list[Event], int]:
    """Every event until the service closes, and its code."""
    events = []
    while True:
        try:
            async with asyncio.timeout(20):
                events.append(decode(await socket.recv()))
        except ConnectionClosed:
            return events, socket.close_code or 0


async def receive(socket: ClientConnection) -> Event:
    async with asyncio.timeout(20):
        return decode(await socket.recv())


async def story(worker: Worker, claimed: Claimed, count: int, pause: float = 0.0) -> list[str]:
    """A job's whole life of so many events, ended on the ledger too; their ids."""
    trail = worker.trail(claimed)
    # Without a watcher there is no stream that would take it.
    opened = await worker.tell(trail, "status", "running")
    for n in range(1, count - 1):
        assert await worker.tell(
            trail, "log" if n % 3 == 0 else "progress", "running", progress=float(n), message=str(n)
        )
        await asyncio.sleep(pause)
    await worker.complete(claimed)
    assert await worker.tell(trail, "status", "succeeded", progress=100.0)
    return [f"{claimed.fence}-{n}" for n in range(1, count + opened)]


async def test_a_watcher_sees_everything_once_in_order(
    url: str, http: httpx.AsyncClient, worker: Worker
) -> None:
    """PRG-01: before, during and after; the socket closes normally after the last event."""
    job = await submit(http)
    async with watching(url, job["job_id"]) as socket:
        first = await receive(socket)
        assert (first.type, first.status, first.id) == ("snapshot", "pending", "0-1")
        claimed = await worker.claim(job["job_id"])
        ids = await story(worker, claimed, 20)
        events, code = await until_closed(socket)
    assert code == 1000
    assert [event.id for event in events] == ids
    assert (events[0].type, events[-1].status) == ("snapshot", "succeeded")
    assert events[-1].ended
    async with watching(url, job["job_id"]) as socket:
        events, code = await until_closed(socket)
    assert [(e.type, e.status, e.id) for e in events] == [("snapshot", "succeeded", ids[-1])]
    assert code == 1000


async def test_watchers_that_join_at_any_moment(
    url: str, http: httpx.AsyncClient, worker: Worker
) -> None:
    """PRG-01: a snapshot, then exactly what follows it, to the end."""
    job = await submit(http)
    claimed = await worker.claim(job["job_id"])
    running = asyncio.create_task(story(worker, claimed, 60, 0.02))

    async def join(delay: float) -> list[Event]:
        await asyncio.sleep(delay)
        async with watching(url, job["job_id"]) as socket:
            return (await until_closed(socket))[0]

    seen = await asyncio.gather(*(join(n * 0.07) for n in range(20)))
    ids = await running
    for events in seen:
        assert events[0].type == "snapshot"
        assert events[-1].ended
        assert not [event for event in events if event.type == "gap"]
        if events[0].id in ids:
            assert [event.id for event in events] == ids[ids.index(events[0].id) :]
        else:
            assert [event.id for event in events[1:]] == ids


async def test_reconnecting_after_every_event(
    url: str, http: httpx.AsyncClient, worker: Worker
) -> None:
    """PRG-02: exactly the missing events, each once, while the job goes on."""
    job = await submit(http)
    claimed = await worker.claim(job["job_id"])
    async with watching(url, job["job_id"]) as socket:
        seen = [await receive(socket)]
    running = asyncio.create_task(story(worker, claimed, 60, 0.01))
    while not seen[-1].ended:
        async with watching(url, job["job_id"], seen[-1].id) as socket:
            seen.append(await receive(socket))
    assert [event.id for event in seen] == ["0-1", *await running]
    assert "gap" not in {event.type for event in seen}
    # Behind the last event there is nothing, and no silence either.
    async with watching(url, job["job_id"], seen[-1].id) as socket:
        assert await until_closed(socket) == ([], 1000)


@pytest.mark.parametrize("after", ["9-9", "1-77"])
async def test_a_cursor_the_stream_does_not_know_is_a_gap(
    url: str, http: httpx.AsyncClient, worker: Worker, after: str
) -> None:
    """PRG-02: newer than the stream, or of another one."""
    job = await submit(http)
    claimed = await worker.claim(job["job_id"])
    trail = worker.trail(claimed)
    await worker.tell(trail, "progress", "running", progress=5.0)
    async with watching(url, job["job_id"], after) as socket:
        gap, snapshot = await receive(socket), await receive(socket)
        assert (gap.type, snapshot.type) == ("gap", "snapshot")
        assert (snapshot.id, snapshot.progress) == ("1-1", 5.0)
        await worker.tell(trail, "progress", "running", progress=6.0)
        assert (await receive(socket)).id == "1-2"


async def test_a_hole_is_a_gap(url: str, http: httpx.AsyncClient, worker: Worker) -> None:
    """A number that is missing was lost on the way."""
    job = await submit(http)
    claimed = await worker.claim(job["job_id"])
    trail = worker.trail(claimed)
    await worker.tell(trail, "progress", "running", progress=1.0)
    async with watching(url, job["job_id"]) as socket:
        assert (await receive(socket)).id == "1-1"
        trail.next("progress", "running")
        await worker.tell(trail, "progress", "running", progress=3.0)
        gap, snapshot = await receive(socket), await receive(socket)
        assert (gap.type, snapshot.type, snapshot.id) == ("gap", "snapshot", "1-3")
        assert snapshot.progress == 3.0


async def test_a_stream_that_was_trimmed_is_a_gap(
    url: str, http: httpx.AsyncClient, worker: Worker
) -> None:
    job = await submit(http)
    claimed = await worker.claim(job["job_id"])
    trail = worker.trail(claimed)
    entries = [trail.next("progress", "running", progress=1.0) for _ in range(3000)]
    await worker.ground.broker.append_progress(entries)
    async with watching(url, job["job_id"], "1-5") as socket:
        assert [(await receive(socket)).type for _ in range(2)] == ["gap", "snapshot"]


async def test_a_second_attempt_opens_with_a_snapshot(
    url: str, http: httpx.AsyncClient, worker: Worker
) -> None:
    """The stale owner cannot add a word, and the new fence begins at 1."""
    job = await submit(http)
    first = await worker.claim(job["job_id"])
    stale = worker.trail(first)
    async with watching(url, job["job_id"]) as socket:
        await receive(socket)
        await worker.tell(stale, "progress", "running", progress=50.0)
        moves = await worker.ground.ledger.release([first.owned])
        await announce(worker.ground.broker, moves)
        second = await worker.claim(job["job_id"])
        await worker.tell(worker.trail(second), "progress", "running", progress=1.0)
        assert not await worker.tell(stale, "progress", "running", progress=60.0)
        seen = [await receive(socket) for _ in range(3)]
    assert [(e.id, e.type, e.status) for e in seen] == [
        ("1-1", "snapshot", "running"),
        ("2-1", "snapshot", "pending"),
        ("3-1", "snapshot", "running"),
    ]


async def test_an_end_that_no_event_told_is_found(
    url: str, http: httpx.AsyncClient, worker: Worker
) -> None:
    """PRG-04, I8: the worker died between its commit and its last event."""
    job = await submit(http)
    claimed = await worker.claim(job["job_id"])
    trail = worker.trail(claimed)
    async with watching(url, job["job_id"]) as socket:
        await receive(socket)
        await worker.tell(trail, "progress", "running", progress=50.0)
        await worker.fail(claimed, "ValueError", "broken")
        events, code = await until_closed(socket)
    assert code == 1000
    assert [event.id for event in events] == ["1-1", "1-1"]
    assert (events[-1].status, events[-1].message) == ("failed", "broken")


async def test_a_cancelled_job_ends_its_watchers(url: str, http: httpx.AsyncClient) -> None:
    """A move by another than the owner is announced under a higher fence."""
    job = await submit(http)
    async with watching(url, job["job_id"]) as socket:
        await receive(socket)
        await http.post(f"/v1/jobs/{job['job_id']}/cancel")
        events, code = await until_closed(socket)
    assert (events[-1].status, code) == ("cancelled", 1000)


async def test_a_wiped_broker_while_watching(
    url: str, http: httpx.AsyncClient, worker: Worker
) -> None:
    """I7, I8: streams that are watched are made anew; what goes on is told."""
    job, quiet = await submit(http), await submit(http)
    claimed = await worker.claim(job["job_id"])
    trail = worker.trail(claimed)
    async with watching(url, job["job_id"]) as socket, watching(url, quiet["job_id"]) as other:
        await receive(socket)
        await receive(other)
        await worker.tell(trail, "progress", "running", progress=1.0)
        assert (await receive(socket)).id == "1-1"
        await forget(worker, job["job_id"])
        await forget(worker, quiet["job_id"])

        async def made_anew() -> bool:
            edges = [
                await worker.ground.broker.progress_edges(UUID(one["job_id"]))
                for one in (job, quiet)
            ]
            return None not in edges

        await eventually(made_anew)
        # An event that only tells a state needs a stream to be told in.
        await worker.complete(claimed)
        assert await worker.tell(trail, "status", "succeeded")
        events, code = await until_closed(socket)
        assert ([event.id for event in events], code) == (["1-2"], 1000)
        claimed = await worker.claim(quiet["job_id"])
        await story(worker, claimed, 5)
        events, code = await until_closed(other)
        assert ([event.id for event in events], code) == ([f"1-{n}" for n in range(1, 6)], 1000)


async def forget(worker: Worker, job_id: str) -> None:
    """What a flush does to a progress stream, without touching the other tests' keys."""
    key = worker.ground.broker.progress_key(UUID(job_id))
    await worker.ground.broker._redis.delete(key)


async def test_a_reconnect_after_a_wipe_is_a_gap(
    url: str, http: httpx.AsyncClient, worker: Worker
) -> None:
    """PRG-02: never silence."""
    job = await submit(http)
    trail = worker.trail(await worker.claim(job["job_id"]))
    for n in range(3):
        await worker.tell(trail, "progress", "running", progress=float(n))
    await forget(worker, job["job_id"])
    async with watching(url, job["job_id"], "1-3") as socket:
        gap, snapshot = await receive(socket), await receive(socket)
        assert (gap.type, snapshot.type, snapshot.status) == ("gap", "snapshot", "running")
        # And the stream goes on from wherever it is.
        await worker.tell(trail, "progress", "running", progress=9.0)
        following = [await receive(socket), await receive(socket)]
        assert following[-1].progress == 9.0


async def test_unknown_and_foreign_jobs_close_alike(url: str, http: httpx.AsyncClient) -> None:
    """I9: 4404 for both, with the same reason."""
    job = await submit(http)
    stranger = {"X-Tenant-ID": "stranger"}
    closes = set()
    for job_id in (job["job_id"], str(uuid4()), "nope"):
        address = f"{url.replace('http', 'ws', 1)}/v1/jobs/{job_id}/progress"
        async with connect(address, proxy=None, additional_headers=stranger) as socket:
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
        assert closed.value.rcvd is not None
        closes.add((closed.value.rcvd.code, closed.value.rcvd.reason))
    assert len(closes) == 1
    assert closes.pop()[0] == 4404


async def test_a_cursor_that_is_none_is_refused(url: str, http: httpx.AsyncClient) -> None:
    job = await submit(http)
    for after in ("x", "1", "-", "1-", "1-2-3", "1" * 50 + "-1", "%00"):
        async with watching(url, job["job_id"], after) as socket:
            assert await until_closed(socket) == ([], 4422), after
        reply = await http.get(f"/v1/jobs/{job['job_id']}/events?after={after}")
        assert reply.status_code == 422


async def test_large_numbers_are_cursors(url: str, http: httpx.AsyncClient) -> None:
    """The broker's ids have 64 bits; what a client sends may have more."""
    job = await submit(http)
    most = 2**63 - 1
    async with watching(url, job["job_id"], f"{most}-{most}") as socket:
        assert [(await receive(socket)).type for _ in range(2)] == ["gap", "snapshot"]
    for after in (f"{2**64}-1", f"1-{2**63}"):
        async with watching(url, job["job_id"], after) as socket:
            assert await until_closed(socket) == ([], 4422), after


async def test_from_the_beginning(url: str, http: httpx.AsyncClient, worker: Worker) -> None:
    """0-0 is the place before everything."""
    job = await submit(http)
    trail = worker.trail(await worker.claim(job["job_id"]))
    await worker.tell(trail, "progress", "running", progress=1.0)
    async with watching(url, job["job_id"], "0-0") as socket:
        assert (await receive(socket)).id == "1-1"


# -- server-sent events -------------------------------------------------------------------


async def read_sse(
    http: httpx.AsyncClient, job_id: str, *, after: str | None = None, **headers: str
) -> tuple[list[dict[str, str]], str]:
    """Every event of a stream, and its raw text."""
    params = {} if after is None else {"after": after}
    async with http.stream(
        "GET", f"/v1/jobs/{job_id}/events", params=params, headers=headers
    ) as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        text = "".join([part async for part in reply.aiter_text()])
    blocks = [block for block in text.split("\n\n") if "event:" in block]
    return [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks], text


async def test_sse_tells_the_same_events(http: httpx.AsyncClient, worker: Worker) -> None:
    job = await submit(http)
    reading = asyncio.create_task(read_sse(http, job["job_id"]))
    await eventually(lambda: worker.ground.broker.progress_edges(UUID(job["job_id"])))
    ids = await story(worker, await worker.claim(job["job_id"]), 10)
    events, text = await asyncio.wait_for(reading, 20)
    assert text.startswith("retry: ")
    assert [event["id"] for event in events if event["id"] in ids] == ids
    assert decode(events[-1]["data"]).ended
    assert events[-1]["event"] == "status"
    # From the middle, by the address and by the header, which is the newer word.
    rest, _ = await read_sse(http, job["job_id"], after=ids[4])
    assert [event["id"] for event in rest] == ids[5:]
    rest, _ = await read_sse(http, job["job_id"], after=ids[1], **{"Last-Event-ID": ids[6]})
    assert [event["id"] for event in rest] == ids[7:]
    # An EventSource that comes back after the end is told to stop.
    reply = await http.get(f"/v1/jobs/{job['job_id']}/events", headers={"Last-Event-ID": ids[-1]})
    assert reply.status_code == 204


async def test_a_gap_carries_no_id(http: httpx.AsyncClient, worker: Worker) -> None:
    job = await submit(http)
    claimed = await worker.claim(job["job_id"])
    await story(worker, claimed, 3)
    events, _ = await read_sse(http, job["job_id"], after="7-7")
    assert [event["event"] for event in events] == ["gap", "snapshot"]
    assert "id" not in events[0]
    assert events[1]["id"] == "1-2"


# -- many jobs on one socket --------------------------------------------------------------


async def test_one_socket_watches_many_jobs(
    url: str, http: httpx.AsyncClient, worker: Worker
) -> None:
    mine = [await submit(http) for _ in range(5)]
    foreign = await http.post("/v1/jobs", json={"task": "t.echo"}, headers={"X-Tenant-ID": "b"})
    address = f"{url.replace('http', 'ws', 1)}/v1/progress"
    ids = [job["job_id"] for job in mine]
    async with connect(address, proxy=None) as socket:

        async def hear() -> dict[str, Any]:
            async with asyncio.timeout(20):
                heard: dict[str, Any] = msgspec.json.decode(await socket.recv())
                return heard

        unwatchable = [foreign.json()["job_id"], str(uuid4()), "nope"]
        await socket.send(msgspec.json.encode({"watch": ids + unwatchable}).decode())
        first = [await hear() for _ in range(8)]
        assert {event["job_id"] for event in first if event["type"] == "snapshot"} == set(ids)
        troubles = [event for event in first if event["type"] == "error"]
        assert {event["job_id"] for event in troubles} == set(unwatchable)
        assert len({msgspec.json.encode(event["problem"]) for event in troubles}) == 1
        assert troubles[0]["problem"]["status"] == 404

        await socket.send(msgspec.json.encode({"unwatch": [ids[0]]}).decode())
        await socket.send("what?")
        assert (await hear())["problem"]["type"] == "malformed-json"
        for job_id in ids:
            await story(worker, await worker.claim(job_id), 10)
        seen: dict[str, list[str]] = {job_id: [] for job_id in ids}
        for _ in range(40):
            event = await hear()
            seen[event["job_id"]].append(event["id"])
        assert seen.pop(ids[0]) == []
        assert list(seen.values()) == [[f"1-{n}" for n in range(1, 11)]] * 4
        # The socket outlives the jobs, and goes on from a cursor.
        again = {"watch": [ids[0]], "after": {ids[0]: "1-8"}}
        await socket.send(msgspec.json.encode(again).decode())
        assert [(await hear())["id"] for _ in range(2)] == ["1-9", "1-10"]


# -- clients that do not read, and a stop -------------------------------------------------


async def test_a_slow_client_does_not_hold_up_others(
    url: str, http: httpx.AsyncClient, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRG-03: it is let go with a reason, its queue stays bounded, the others see everything."""
    monkeypatch.setattr("lateack_service.events.SEND_TIMEOUT", 1.0)
    job = await submit(http)
    claimed = await worker.claim(job["job_id"])
    address = f"{url.replace('http', 'ws', 1)}/v1/jobs/{job['job_id']}/progress"
    async with (
        connect(address, proxy=None, max_queue=1) as slow,
        watching(url, job["job_id"]) as quick,
    ):
        await receive(quick)
        trail = worker.trail(claimed)
        text = "x" * 20_000
        reading = asyncio.create_task(until_closed(quick))
        for start in range(10):
            entries = [trail.next("log", "running", message=f"{start} {text}") for _ in range(100)]
            await worker.ground.broker.append_progress(entries)
            await asyncio.sleep(0.2)
        await worker.complete(claimed)
        await worker.tell(trail, "status", "succeeded")
        events, code = await reading
        assert ([order(e.id)[1] for e in events], code) == (list(range(1, 1002)), 1000)
        # It wakes up: what reached it is in order, and it was told why there is no more.
        await asyncio.sleep(1.5)
        events, code = await until_closed(slow)
        assert code == 1013
        numbers = [order(event.id)[1] for event in events[1:]]
        assert numbers == list(range(1, len(numbers) + 1))


async def test_a_stop_sends_watchers_elsewhere(settings: Settings, worker: Worker) -> None:
    """Sockets close with 1012, streams and long polls end, nothing hangs."""
    async with contextlib.AsyncExitStack() as stack:
        running = contextlib.AsyncExitStack()
        url = await running.enter_async_context(served(settings))
        http = await stack.enter_async_context(client(url))
        job = await submit(http)
        socket = await stack.enter_async_context(watching(url, job["job_id"]))
        await receive(socket)
        board = await stack.enter_async_context(
            connect(f"{url.replace('http', 'ws', 1)}/v1/progress", proxy=None)
        )
        polling = asyncio.create_task(http.get(f"/v1/jobs/{job['job_id']}?wait=60"))
        reading = asyncio.create_task(read_sse(http, job["job_id"]))
        await asyncio.sleep(0.3)
        began = time.monotonic()
        await running.aclose()
        assert time.monotonic() - began < 10
        assert (await until_closed(socket))[1] == 1012
        assert (await until_closed(board))[1] == 1012
        assert (await polling).json()["status"] == "pending"
        assert [event["event"] for event in (await reading)[0]] == ["snapshot"]


async def test_events_of_one_trail_are_numbered(worker: Worker) -> None:
    """What the rest of this file relies on."""
    trail = Trail(uuid4(), 3, 1)
    assert [trail.next("progress", "running").event_id for _ in range(2)] == ["3-1", "3-2"]
