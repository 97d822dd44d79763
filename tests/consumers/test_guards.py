"""What a worker must not lose, steal or say too early, each alone: the parts that do it, by
themselves on a real ledger and a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from uuid import UUID

import pytest

from lateack_consumers import reclaimer as reclaiming
from lateack_consumers.active import Active, Delivery, Reason
from lateack_consumers.dispatcher import Dispatcher
from lateack_consumers.reader import Reader
from lateack_consumers.reclaimer import Reclaimer
from lateack_consumers.renewer import Renewer
from lateack_consumers.slots import Slots
from lateack_core.ground import Ground
from lateack_core.identifiers import uuid7
from lateack_core.jobs import Claimed, Worker
from lateack_core.progress import Trail
from lateack_core.settings import Settings
from lateack_core.stream import Entry, Hint
from tests.consumers.conftest import Caller, running_worker, until
from tests.sql.desk import Desk, app, open_desk
from tests.sql.desk import until as eventually

QUEUE = "work"
ME = "me"
PUT_AND_READ = """
for i = 3, #ARGV do redis.call('XADD', KEYS[1], '*', 'job', ARGV[i]) end
return redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'STREAMS', KEYS[1], '>')
"""


class Hands(Dispatcher):
    """Takes whatever it is given, and does nothing with it."""

    def __init__(self) -> None:
        self.taken: list[Entry] = []

    def dispatch(self, entries: Sequence[Entry]) -> None:
        self.taken += entries

    def is_handling(self, entry: Entry) -> bool:
        return entry in self.taken

    async def hand_back(self, entries: Sequence[Entry]) -> None:
        raise AssertionError("there were slots enough")


@pytest.fixture
async def desk(ground: Ground) -> AsyncIterator[Desk]:
    async with open_desk(ground) as desk:
        yield desk


async def put_in(ground: Ground, count: int, jobs: Sequence[UUID] = ()) -> str:
    """So many entries in one stream; returns it. Every stream has its group."""
    for stream in ground.broker.streams(QUEUE):
        await ground.broker.ensure_group(stream)
    ids = [*jobs, *(uuid7() for _ in range(count - len(jobs)))]
    await ground.broker.publish([Hint(job, QUEUE, 5) for job in ids])
    return ground.broker.stream(QUEUE, 2)


# -- the reader ---------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["connect", "reconnect"])
async def test_a_reader_takes_up_what_never_reached_it(ground: Ground, when: str) -> None:
    """I1: entries whose delivery was lost on the wire are this consumer's; nobody else gets them,
    and it gets them only by asking what is pending with itself, at every connection."""
    hands = Hands()
    reader = Reader(QUEUE, ground.broker, Slots(50), hands, consumer=ME)
    if when == "reconnect":
        await put_in(ground, 1)
        ground.loops.start("reader", reader.run)
        await until(lambda: len(hands.taken) == 1)
        # It waits in the broker now, on the connection that is cut next.

        async def waits() -> bool:
            return bool(await _waiting(ground))

        await eventually(waits)
    stream = await put_in(ground, 0)
    # At one go, or it would have read them itself.
    lost = await ground.broker._redis.eval(
        PUT_AND_READ, 1, stream, "workers", ME, *(str(uuid7()) for _ in range(5))
    )
    assert lost
    if when == "reconnect":
        for number in await _waiting(ground):
            await ground.broker._redis.client_kill_filter(_id=number)
    else:
        ground.loops.start("reader", reader.run)
    await until(lambda: len(hands.taken) == (6 if when == "reconnect" else 5), within=8)
    await reader.wake()
    await ground.loops.stop()
    await reader.close()


async def _waiting(ground: Ground) -> list[str]:
    """Connections that wait in the broker."""
    clients = await ground.broker._redis.client_list()
    return [str(one["id"]) for one in clients if "b" in one["flags"]]


# -- the reclaimer ------------------------------------------------------------------------


def reclaimer_of(desk: Desk, hands: Hands, *, settle: float) -> Reclaimer:
    return Reclaimer(
        [QUEUE],
        desk.ledger,
        desk.ground.broker,
        Slots(50),
        hands,
        consumer=ME,
        min_idle=60,
        interval=0.02,
        settle=settle,
        max_losses=3,
    )


async def age(ground: Ground, stream: str, entries: Sequence[Entry]) -> None:
    """Make it ten minutes since these entries' consumer was last heard of."""
    for entry in entries:
        await ground.broker._redis.execute_command(
            "XCLAIM", stream, "workers", "dead", 0, entry.entry_id, "IDLE", 600_000, "JUSTID"
        )


async def test_a_sweep_goes_on_where_the_last_one_ended(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REC-03: one abandoned entry behind more healthy ones than a sweep looks at."""
    ground, hands = desk.ground, Hands()
    # The broker looks at ten times as many entries as a page may bring.
    monkeypatch.setattr(reclaiming, "PAGES", 1)
    stream = await put_in(ground, 2500)
    entries = await ground.broker.read([stream], "living", 2500)
    await age(ground, stream, entries[-1:])
    ground.loops.start("reclaimer", reclaimer_of(desk, hands, settle=0).run)
    await until(lambda: hands.taken, within=8)
    assert hands.taken == entries[-1:]
    await ground.loops.stop()


async def test_nothing_is_taken_over_right_after_trouble(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Design §10.7: after an outage every lease looks expired; the workers beat first."""
    ground, hands = desk.ground, Hands()
    job = await desk.submit()
    stream = await put_in(ground, 1, [job])
    await desk.run(job, lease=5)
    await age(ground, stream, await ground.broker.read([stream], "dead", 10))
    await desk.pass_time(600)
    sweeping = reclaimer_of(desk, hands, settle=3600)
    loop = ground.loops.start("reclaimer", sweeping.run)
    turns: list[None] = []
    monkeypatch.setattr(loop, "beat", lambda **_: turns.append(None))
    await until(lambda: len(turns) > 20)
    assert (hands.taken, await desk.status(job)) == ([], "running")
    sweeping._settle = 0.0
    await until(lambda: hands.taken)
    assert await desk.status(job) == "pending"
    await ground.loops.stop()


# -- the renewer --------------------------------------------------------------------------


def active_of(job: Claimed, entry: Entry) -> Active:
    return Active(
        job=job,
        task=app.tasks["t.work"],
        delivery=Delivery(entry.stream, entry.entry_id),
        trail=Trail(job.job_id, job.fence, job.attempt),
        soft_limit=None,
        hard_limit=None,
    )


async def test_only_what_the_ledger_confirms_is_kept_in_the_broker(
    desk: Desk, settings: Settings
) -> None:
    """REC-02: an entry whose job went to somebody else is not stolen back; a lease that somebody
    has locked right now is no loss."""
    ground = desk.ground
    kept, lost, locked = jobs = await desk.submit_many(3)
    claimed = {job.job_id: job for job in await desk.claim(*jobs, lease=5)}
    stream = await put_in(ground, 3, jobs)
    entries = {UUID(e.fields["job"]): e for e in await ground.broker.read([stream], ME, 10)}
    actives = {job: active_of(claimed[job], entries[job]) for job in jobs}
    await desk.pass_time(6)
    await desk.ledger.reap([lost], max_losses=3)
    assert len(await desk.claim(lost, worker=uuid7())) == 1
    await ground.broker.keep(stream, "other", [entries[lost].entry_id])
    worker = Worker(desk.worker, "w", "h", 1, [QUEUE], ["t.work"], 3)
    renewer = Renewer(settings, worker, actives, consumer=ME, abandoned=lambda: 0)
    async with desk.open_transaction() as holder:
        await holder.execute("SELECT FROM lateack.leases WHERE job_id = $1 FOR UPDATE", locked)
        await renewer._renew(desk.ledger, ground.broker)
    # Whom it disowns it disowns on the loop.
    await asyncio.sleep(0)
    assert [actives[job].ours for job in jobs] == [True, False, True]
    assert actives[lost].reason is Reason.LOST
    assert await _owners(ground, stream) == {
        entries[kept].entry_id: ME,
        entries[lost].entry_id: "other",
        entries[locked].entry_id: ME,
    }


async def _owners(ground: Ground, stream: str) -> dict[str, str]:
    rows = await ground.broker._redis.xpending_range(stream, "workers", "-", "+", 100)
    return {str(row["message_id"]): str(row["consumer"]) for row in rows}


# -- the settler and the dispatcher -------------------------------------------------------


async def rests_at(caller: Caller, waiting: int, pending: int) -> None:
    """Wait until the queue has so many entries."""

    async def so() -> bool:
        return await caller.ground.broker.depth("q") == (waiting, pending)

    await eventually(so)


async def test_nothing_is_acknowledged_before_its_outcome_is_kept(
    settings: Settings, caller: Caller, desk: Desk
) -> None:
    """DBS-02, I1: while the outcome cannot be written, its entry stays, though others come and
    go."""
    async with running_worker(settings), desk.open_transaction() as holder:
        job = await caller.submit("slow", "/dev/null", 0.5)
        await caller.until(job.job_id, "running")
        await holder.execute("SELECT FROM lateack.jobs WHERE id = $1 FOR UPDATE", job.job_id)
        await desk.blocked()
        # Acknowledged after it, and gone: by then an early word on the first would have been heard.
        other = await caller.submit("add", 1, 2)
        await caller.until(other.job_id)
        await rests_at(caller, 0, 1)
        await holder.execute("ROLLBACK")
        await caller.until(job.job_id, "succeeded")
        await rests_at(caller, 0, 0)


async def test_a_hint_of_a_job_that_runs_elsewhere_is_kept(
    settings: Settings, caller: Caller, desk: Desk
) -> None:
    """DEL-02: neither dropped nor acknowledged, since whoever runs it may be dead."""
    ground = caller.ground
    for stream in ground.broker.streams("q"):
        await ground.broker.ensure_group(stream)
    async with running_worker(settings):
        job = await desk.submit()
        assert len(await desk.claim(job)) == 1
        await ground.broker.publish([Hint(job, "q", 5)])
        for number in range(5):
            await caller.until((await caller.submit("add", 1, number)).job_id)
        await rests_at(caller, 0, 1)
        assert await desk.status(job) == "running"
