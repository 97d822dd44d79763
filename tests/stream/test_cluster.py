"""A cluster of two nodes: keys that are elsewhere, and keys that move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pytest

from lateack_core.stream import (
    BlockingReader,
    Broker,
    BrokerUnavailable,
    Entry,
    Hint,
    ProgressEntry,
)
from tests.servers import SLOTS, Ask, broker_url, chosen_servers, cluster_ready, node


class Pair:
    """Two nodes that own half of the slots each."""

    def __init__(self, urls: list[str], asks: list[Ask]) -> None:
        self.urls = urls
        self.asks = asks

    async def owner_of(self, key: str) -> int:
        """Which of the two has the key's slot."""
        slot = int(await self.asks[0]("CLUSTER", "KEYSLOT", key))
        return 0 if slot in SLOTS[: len(SLOTS) // 2] else 1

    async def move(self, key: str) -> None:
        """Move the key's slot, with what is in it, from the first node to the second."""
        here, there = self.asks
        slot = await here("CLUSTER", "KEYSLOT", key)
        ids = [await ask("CLUSTER", "MYID") for ask in self.asks]
        target = urlsplit(self.urls[1])
        await there("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        await here("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        keys = await here("CLUSTER", "GETKEYSINSLOT", slot, 100)
        await here(
            *("MIGRATE", target.hostname, target.port, "", 0, 5000),
            *("AUTH", target.password, "KEYS", *keys),
        )
        for ask in (there, here):
            await ask("CLUSTER", "SETSLOT", slot, "NODE", ids[1])


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        urls, asks = [], []
        half = len(SLOTS) // 2
        for name, slots in (("a", SLOTS[:half]), ("b", SLOTS[half:])):
            servers = await stack.enter_async_context(
                chosen_servers(tmp_path / name, postgres=False, cluster=True, slots=slots)
            )
            urls.append(broker_url(servers, cluster=True))
            asks.append(await stack.enter_async_context(node(servers)))
        # A cluster has one password.
        one, other = map(urlsplit, urls)
        await asks[1]("CONFIG", "SET", "requirepass", one.password)
        urls[1] = urls[1].replace(str(other.password), str(one.password))
        await asks[0]("CLUSTER", "MEET", other.hostname, other.port)
        for ask in asks:
            await cluster_ready(ask)
        yield Pair(urls, asks)


async def next_entries(broker: Broker, reader: BlockingReader, queue: str) -> list[Entry]:
    """As a worker's reader does: from the start again after any trouble."""
    streams = broker.streams(queue)
    async with asyncio.timeout(30):
        while True:
            try:
                for stream in streams:
                    await broker.ensure_group(stream)
                if entries := await reader.wait_for_new(streams, "one"):
                    return entries
            except BrokerUnavailable:
                await asyncio.sleep(0.05)


async def test_queues_and_progress_on_both_nodes(pair: Pair) -> None:
    """One pipeline, and one reader a tag, wherever the keys are."""
    broker = Broker(pair.urls[0])
    await broker.check()
    queues = [f"q{number}" for number in range(12)]
    owners = {queue: await pair.owner_of(broker.stream(queue, 0)) for queue in queues}
    assert set(owners.values()) == {0, 1}
    for queue in queues:
        for stream in broker.streams(queue):
            await broker.ensure_group(stream)
    assert all(await broker.publish([Hint(uuid4(), queue, 5) for queue in queues for _ in "ab"]))
    for queue in queues:
        (entry,) = await broker.read(broker.streams(queue), "one", 1)
        reader = broker.reader()
        (other,) = await next_entries(broker, reader, queue)
        assert await broker.ack(entry.stream, [entry.entry_id, other.entry_id]) == 2
        assert await broker.depth(queue) == (0, 0)
        assert await broker.delivered_age(entry.stream) == 0
        await reader.close()
    jobs = [UUID(int=number) for number in range(16)]
    assert {await pair.owner_of(broker.progress_key(job)) for job in jobs} == {0, 1}
    events = [ProgressEntry(job, "1-5", b"{}", True, False) for job in jobs]
    assert await broker.append_progress(events) == [True] * 16
    for job in jobs:
        reader = broker.reader()
        key = broker.progress_key(job)
        assert await reader.wait_for_progress({key: "0-1"}) == {key: [("1-5", "{}")]}
        await reader.close()
    await broker.close()


async def test_a_wait_for_a_slot_that_moves_goes_on_where_it_is(pair: Pair) -> None:
    """DEL-08: the line of a reader leads to the old node; the reader finds the new one."""
    broker, publisher = Broker(pair.urls[0]), Broker(pair.urls[1])
    names = map(str, range(99))
    queue = await anext(q for q in names if await pair.owner_of(broker.stream(q, 0)) == 0)
    reader = broker.reader()
    await publisher.publish([Hint(uuid4(), queue, 5)])
    (first,) = await next_entries(broker, reader, queue)
    wait = asyncio.create_task(next_entries(broker, reader, queue))
    await asyncio.wait({wait}, timeout=0.1)
    await pair.move(first.stream)
    assert await publisher.publish([Hint(uuid4(), queue, 5)]) == [True]
    (second,) = await wait
    assert await broker.ack(first.stream, [first.entry_id, second.entry_id]) == 2
    assert await broker.depth(queue) == (0, 0)
    assert await pair.asks[1]("XLEN", first.stream) == 0
    await reader.close()
    for one in (broker, publisher):
        await one.close()
