"""The outbox: whatever happens between commit and publish, every job gets to the broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from uuid import UUID

from lateack_cli.embedded import EmbeddedServers
from lateack_core.ground import open_ground
from lateack_core.outbox import RELAY_LEASE, Relay
from lateack_core.settings import Settings
from lateack_core.stream import Broker, Hint
from lateack_scheduler.scheduler import start
from tests.scheduler.replicas import replica
from tests.sql.desk import Desk, open_desk, until


async def in_stream(desk: Desk) -> Counter[UUID]:
    """How often each job is in the queue's streams."""
    broker = desk.ground.broker
    found: Counter[UUID] = Counter()
    for stream in broker.streams("work"):
        found.update(UUID(fields["job"]) for _, fields in await desk.entries(stream))
    return found


async def test_relays_that_die_between_publishing_and_recording(
    desk: Desk, settings: Settings
) -> None:
    """OUT-02: three at a time, three times over; every job is published, and takes effect once."""
    jobs = await desk.submit_many(2000)
    await desk.pass_time(settings.outbox_delay + 0.1)
    for _ in range(3):
        async with (
            replica(settings, "relay") as one,
            replica(settings, "relay") as two,
            replica(settings, "relay") as three,
        ):
            for each in (one, two, three):
                assert await asyncio.wait_for(each.process.wait(), 30) == -9
    assert await desk.count("outbox") == 2000
    assert sum((await in_stream(desk)).values()) == 450
    await desk.pass_time(RELAY_LEASE + 1)
    await desk.publish()
    assert await desk.count("outbox") == 0
    found = await in_stream(desk)
    assert sorted(found) == jobs
    assert found.total() == 2450
    # As often as it was delivered, but claimed once.
    assert sorted(await claimed(desk, list(found))) == jobs
    assert await claimed(desk, list(found)) == []


async def claimed(desk: Desk, jobs: Sequence[UUID]) -> list[UUID]:
    """Which of so many jobs can be claimed, as a busy worker does it."""
    return [
        one.job_id
        for start in range(0, len(jobs), 200)
        for one in await desk.claim(*jobs[start : start + 200])
    ]


class Slow(Broker):
    """The real broker, behind a line that holds every publish back until it is let go."""

    def __init__(self, url: str, *, namespace: str) -> None:
        super().__init__(url, namespace=namespace)
        self.reached, self.let_go = asyncio.Event(), asyncio.Event()

    async def publish(self, hints: Sequence[Hint]) -> list[bool]:
        self.reached.set()
        await self.let_go.wait()
        return await super().publish(hints)


async def test_no_transaction_is_open_while_the_broker_is_slow(
    desk: Desk, settings: Settings
) -> None:
    """OUT-04: the relay waits with nothing open, and nobody waits for it."""
    jobs = await desk.submit_many(20)
    await desk.pass_time(settings.outbox_delay + 0.1)
    assert settings.redis_url is not None
    broker = Slow(settings.redis_url, namespace=settings.namespace)
    turn = asyncio.create_task(Relay(desk.ground.postgres, broker, interval=0.1).turn())
    await broker.reached.wait()
    opened = await desk.connection.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"
    )
    assert opened == 0
    locks = await desk.connection.fetchval(
        "SELECT count(*) FROM pg_locks WHERE pid <> pg_backend_pid() "
        "AND relation IN ('lateack.jobs'::regclass, 'lateack.outbox'::regclass)"
    )
    assert locks == 0
    assert await desk.status(await desk.submit()) == "pending"
    assert len(await desk.claim(*jobs[:5])) == 5
    # Another relay finds nothing that is due: the rows are leased.
    assert await desk.ground.relay.turn() is False
    assert await in_stream(desk) == {}
    broker.let_go.set()
    await turn
    await broker.close()
    assert sorted(await in_stream(desk)) == jobs


async def test_a_broker_that_is_away_for_long(
    own_servers: EmbeddedServers, own_settings: Settings
) -> None:
    """OUT-03, I7: submissions are accepted, nothing is given up, nothing times out; the backlog
    can be seen, and all of it is published when the broker is back."""
    ground = await open_ground(own_settings, process="test")
    async with open_desk(ground) as desk:
        ground.start()
        start(ground)
        await asyncio.wait_for(ground.fit.wait(), 30)
        await own_servers.broker.stop()
        jobs = await desk.submit_many(60)
        for _ in range(4):
            await desk.pass_time(3600)
            await asyncio.sleep(0.6)
        assert await desk.count("outbox") == 60
        assert set(await desk.statuses(jobs)) == {"pending"}
        assert ground.troubles() == []
        await own_servers.broker.start()

        async def published() -> bool:
            return await desk.count("outbox") == 0

        await until(published)
        assert sorted(await in_stream(desk)) == jobs
        assert set(await desk.statuses(jobs)) == {"pending"}
        await ground.close()
