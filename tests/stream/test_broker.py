"""What the door to the broker promises, on one server and on a cluster."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest

from lateack_core.stream import (
    BlockingReader,
    Broker,
    BrokerUnfit,
    Entry,
    GroupMissing,
    Hint,
    ProgressEntry,
)


async def filled(broker: Broker, queue: str, count: int) -> list[str]:
    """Make a queue's groups and publish hints; returns the streams, highest level first."""
    streams = broker.streams(queue)
    for stream in streams:
        await broker.ensure_group(stream)
    assert await broker.publish([Hint(uuid4(), queue, 5) for _ in range(count)]) == [True] * count
    return streams


async def woken(reader: BlockingReader, wait: asyncio.Task[list[Entry]]) -> list[Entry]:
    """Wake a reader until its wait ends: a wake before it waits does nothing."""
    while not wait.done():
        await reader.wake()
        await asyncio.wait({wait}, timeout=0.02)
    return wait.result()


async def test_hints_of_many_queues_are_read_and_acknowledged(broker: Broker) -> None:
    """One pipeline publishes to queues that live in different slots of a cluster."""
    queues = [f"q{number}" for number in range(20)]
    for queue in queues:
        for stream in broker.streams(queue):
            assert await broker.ensure_group(stream)
            assert not await broker.ensure_group(stream)
    hints = [Hint(uuid4(), queue, priority) for queue in queues for priority in (0, 5, 9)]
    assert all(await broker.publish(hints))
    for queue in queues:
        assert await broker.depth(queue) == (3, 0)
        entries = await broker.read(broker.streams(queue), "one", 2)
        highest = [broker.stream(queue, 3), broker.stream(queue, 2)]
        assert [entry.stream for entry in entries] == highest
        assert await broker.depth(queue) == (1, 2)
        for entry in entries:
            assert await broker.ack(entry.stream, [entry.entry_id]) == 1
        assert await broker.depth(queue) == (1, 0)
        assert await broker.mark(queue, "a") is None
        assert await broker.mark(queue, "b") == "a"


async def test_a_missing_group_is_told(broker: Broker) -> None:
    streams = broker.streams("nowhere")
    reader = broker.reader()
    with pytest.raises(GroupMissing):
        await broker.read(streams, "one", 1)
    with pytest.raises(GroupMissing):
        await reader.wait_for_new(streams, "one")
    for stream in streams:
        await broker.ensure_group(stream)
    assert await reader.wait_for_new(streams, "one", 0.01) == []
    await reader.close()


async def test_trouble_leaves_no_connection_behind(broker: Broker) -> None:
    """A reader drops its line at any trouble and asks for another."""
    reader = broker.reader()
    before = len(await broker._redis.client_list())
    for _ in range(10):
        with pytest.raises(GroupMissing):
            await reader.wait_for_new(broker.streams("nowhere"), "one")
    async with asyncio.timeout(10):
        # The server hears of it when it hears of it.
        while len(await broker._redis.client_list()) > before:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_wait_ends_when_something_comes_or_when_woken(broker: Broker) -> None:
    streams = await filled(broker, "q", 0)
    reader = broker.reader()
    wait = asyncio.create_task(reader.wait_for_new(streams, "one", 5.0))
    assert await woken(reader, wait) == []
    wait = asyncio.create_task(reader.wait_for_new(streams, "one", 5.0))
    job_id = uuid4()
    await broker.publish([Hint(job_id, "q", 5)])
    (entry,) = await wait
    assert entry.fields == {"job": str(job_id)}
    assert await reader.pending(entry.stream, "one") == [entry]
    await reader.close()


async def test_deleted_entries_do_not_stay_pending(broker: Broker) -> None:
    """A takeover meets entries that were deleted while pending. Redis 6.2 names none and keeps
    them; here they lie behind more living ones than one page holds."""
    stream = (await filled(broker, "q", 250))[1]
    entries = await broker.read([stream], "dead", 250)
    assert len(entries) == 250
    deleted = [entries[10].entry_id, entries[240].entry_id, entries[249].entry_id]
    for entry_id in deleted:
        await broker._redis.xdel(stream, entry_id)
    cursor, taken = "0-0", []
    while True:
        cursor, page, ghosts = await broker.take_over(stream, "living", 0, cursor, most=300)
        taken += page
        if ghosts:
            gone = await broker.ghosts(stream, "living")
            assert gone == deleted
            await broker.ack(stream, gone)
        if cursor == "0-0":
            break
    assert {entry.entry_id for entry in taken} == {e.entry_id for e in entries} - set(deleted)
    assert await broker.ghosts(stream, "living") == []
    assert await broker.ack(stream, [entry.entry_id for entry in taken]) == 247
    assert await broker.depth("q") == (0, 0)


async def test_a_kept_entry_is_not_taken_over(broker: Broker) -> None:
    stream = (await filled(broker, "q", 2))[1]
    mine, other = await broker.read([stream], "one", 2)
    while True:
        await broker.keep(stream, "one", [mine.entry_id])
        _, taken, _ = await broker.take_over(stream, "two", 0.2, "0-0")
        if taken:
            break
    assert [entry.entry_id for entry in taken] == [other.entry_id]


async def test_idle_consumers_go_unless_they_own_something(broker: Broker) -> None:
    stream = (await filled(broker, "q", 2))[1]
    one, two = [(await broker.read([stream], name, 1))[0] for name in ("one", "two")]
    await broker.ack(stream, [one.entry_id])
    assert await broker.remove_idle_consumers(stream, 60) == 0
    assert await broker.remove_idle_consumers(stream, 0) == 1
    assert await broker.ack(stream, [two.entry_id]) == 1


async def test_how_far_a_stream_was_read(broker: Broker) -> None:
    """I1: what the reconciler compares with the ledger; None is a stream that is not there."""
    stream = broker.stream("q", 2)
    assert await broker.delivered_age(stream) is None
    await broker.publish([Hint(uuid4(), "q", 5)])
    assert await broker.delivered_age(stream) is None
    await broker.ensure_group(stream)
    # Nothing has been delivered since the beginning of time.
    assert (await broker.delivered_age(stream) or 0) > 1e9
    await broker.publish([Hint(uuid4(), "q", 5)])
    await broker.read([stream], "one", 1)
    assert 0 <= (await broker.delivered_age(stream) or -1) < 1e6
    await broker.read([stream], "one", 1)
    assert await broker.delivered_age(stream) == 0


async def test_progress_is_followed_by_tag(broker: Broker) -> None:
    """Jobs of one tag are followed by one blocking read; others are elsewhere in a cluster."""
    jobs = [UUID(int=number << 4 | 7) for number in range(1, 4)]
    tails = {broker.progress_key(job): await broker.open_progress(job) for job in jobs}
    reader = broker.reader()
    events = [ProgressEntry(job, "1-5", b"{}", False, False) for job in jobs]
    elsewhere = ProgressEntry(UUID(int=8), "1-5", b"{}", False, False)
    always = ProgressEntry(UUID(int=9), "1-5", b"{}", True, True)
    taken = await broker.append_progress([*events, elsewhere, always])
    assert taken == [True, True, True, False, True]
    # A stale owner's event is not above the newest.
    assert await broker.append_progress(events) == [False] * 3
    heard = await reader.wait_for_progress(tails)
    assert heard == {key: [("1-5", "{}")] for key in tails}
    assert await broker.progress_edges(jobs[0]) == ("0-1", "1-5")
    assert await broker.progress_edges(UUID(int=8)) is None
    assert await broker.progress_range(UUID(int=9), "0-1") == [("1-5", "{}")]
    await reader.close()


async def test_more_callers_than_connections_wait(url: str, namespace: str) -> None:
    """The client of a cluster refuses when it has no connection left; callers are not to know."""
    broker = Broker(url, namespace=namespace, size=2)
    done = await asyncio.gather(*(broker.open_progress(UUID(int=n)) for n in range(200)))
    assert done == ["0-1"] * 200
    await broker.close()


async def test_the_url_has_to_say_what_the_broker_is(url: str) -> None:
    """A client of one server would fail at the first key that is elsewhere, not at the start."""
    broker = Broker(url)
    await broker.check()
    await broker.ping()
    await broker.close()
    if url.startswith("unix:"):
        with pytest.raises(ValueError, match="REDIS_URL: Unix domain socket"):
            Broker(f"{url}?cluster=true")
        return
    broker = Broker(url.partition("?")[0])
    with pytest.raises(BrokerUnfit, match="add cluster=true"):
        await broker.check()
    await broker.close()
