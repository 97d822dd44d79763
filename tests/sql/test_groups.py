"""Groups and chords: what comes next runs once, on all results; a failure leaves nothing behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
import pytest

from lateack.models import Step
from lateack_core.jobs import Claimed, Success
from lateack_core.validation import Refused
from tests.sql.desk import Desk

WORK = Step(task="t.work")


def group(*members: Step, collect: bool = False) -> Step:
    return Step(group=list(members), on_failure="collect" if collect else "fail_fast")


def chain(*parts: Step) -> Step:
    return Step(chain=list(parts))


def named(name: str) -> Step:
    """A step that its argument tells from others."""
    return Step(task="t.work", args=[name])


async def workflow(desk: Desk, *parts: Step) -> UUID:
    first, *rest = parts
    job = await desk.accept(
        task=first.task,
        args=first.args,
        group=first.group,
        on_failure=first.on_failure,
        then=rest,
    )
    return job.job_id


async def free(desk: Desk, own: UUID) -> list[Claimed]:
    """Claim every step of a workflow that is free, in the order in which they were written."""
    rows = await desk.connection.fetch(
        "SELECT id FROM lateack.jobs WHERE root_id = $1 AND engine <> 'workflow'", own
    )
    return sorted(await desk.claim(*[row["id"] for row in rows]), key=lambda job: job.job_id)


async def play(desk: Desk, own: UUID) -> list[tuple[str, str | None]]:
    """Run a workflow to its end; each step returns its own name. (args, result before) of each."""
    seen: list[tuple[str, str | None]] = []
    while claimed := await free(desk, own):
        random.shuffle(claimed)
        for job in claimed:
            seen.append((job.args, job.upstream))
            await desk.complete(job.owned, (job.args + "[0]")[2:3])
    return seen


async def test_a_group_ends_with_the_list_of_its_results(desk: Desk) -> None:
    """I5: in the order in which they were written, whatever the order of their ends."""
    own = await workflow(desk, group(*map(named, "abcd")))
    await play(desk, own)
    assert await desk.result(own) == ["a", "b", "c", "d"]
    assert await desk.status(own) == "succeeded"


async def test_a_chord_runs_its_body_once_on_all_results(desk: Desk) -> None:
    """I5"""
    own = await workflow(desk, named("z"), group(*map(named, "abc")), named("e"))
    seen = dict(await play(desk, own))
    assert seen['["a"]'] == seen['["b"]'] == seen['["c"]'] == '"z"'
    assert seen['["e"]'] == '["a", "b", "c"]'
    assert await desk.result(own) == "e"


async def test_groups_may_stand_wherever_steps_may(desk: Desk) -> None:
    """Nested lists stay nested, a chain in a group counts as one member, groups follow groups."""
    own = await workflow(
        desk,
        group(named("a"), chain(named("b"), named("c")), group(named("d"), named("e"))),
        group(named("f"), chain(named("g"), group(named("h"), named("i")))),
        named("k"),
    )
    seen = dict(await play(desk, own))
    assert seen['["f"]'] == seen['["g"]'] == '["a", "c", ["d", "e"]]'
    assert seen['["c"]'] == '"b"'
    assert seen['["h"]'] == '"g"'
    assert seen['["k"]'] == '["f", ["h", "i"]]'
    assert await desk.result(own) == "k"
    assert await desk.count("joins", "decided_at IS NULL") == 0


@pytest.mark.parametrize(
    ("parts", "arguments", "result"),
    [
        ([group(), named("a")], {'[[],"a"]': None}, None),
        ([named("b"), group(), named("a")], {'["b"]': None, '[[],"a"]': None}, None),
        ([named("b"), group()], {'["b"]': None}, []),
        ([named("b"), group(), group(named("a"), named("c"))], None, None),
    ],
)
async def test_an_empty_group_is_satisfied_at_once(
    parts: Sequence[Step], arguments: dict[str, Any] | None, result: Any, desk: Desk
) -> None:
    """Design §10.13: what comes next gets the empty list, and still waits for what came before."""
    own = await workflow(desk, *parts)
    seen = dict(await play(desk, own))
    assert await desk.status(own) == "succeeded"
    if arguments is not None:
        assert seen == arguments
    else:
        assert {'[[],"a"]', '[[],"c"]'} <= seen.keys()
    if result is not None:
        assert await desk.result(own) == result


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (group(), "nothing to run"),
        (group(WORK, chain()), "at least one task"),
        (group(WORK, group()), "at least one task"),
        (Step(task="t.work", group=[WORK]), "task and group"),
        (Step(), "none of them"),
        (Step(args=[1], group=[WORK]), "arguments belong to the tasks"),
        (group(WORK, Step(task="t.nobody")), "group[1]: no worker ever registered"),
        (group(*[WORK] * 5_001), "5000 tasks at most"),
    ],
)
async def test_what_cannot_run_is_refused(part: Step, reason: str, desk: Desk) -> None:
    """I1: nothing is accepted that could not end."""
    with pytest.raises(Refused, match=r".*") as refused:
        await desk.accept(task=part.task, args=part.args, group=part.group)
    assert reason in str(refused.value)
    assert await desk.count("jobs") == 0


async def test_the_first_failure_ends_a_group(desk: Desk) -> None:
    """I1: what comes after fails at once and names the step; what still waits is cancelled, what
    runs is asked to end."""
    inner = group(named("d"), chain(named("e"), named("f")))
    own = await workflow(desk, group(named("a"), named("b"), inner, named("c")), named("k"))
    claimed = {job.args: job for job in await free(desk, own)}
    await desk.ledger.release([claimed['["d"]'].owned])
    await desk.complete(claimed['["c"]'].owned, "c")
    assert await desk.fail(claimed['["a"]'].owned) == "failed"
    row = await desk.row(own)
    assert (row["status"], row["error_code"]) == ("failed", "UpstreamFailed")
    assert row["error_message"] == "step t.work failed: Boom"
    moved = {move.job_id: move.status for move in await desk.ledger.cancel_abandoned()}
    assert moved[claimed['["b"]'].job_id] == "running"
    assert moved[claimed['["d"]'].job_id] == "cancelled"
    # The inner group has failed with it, and its running member is asked once more.
    assert [move.status for move in await desk.ledger.cancel_abandoned()] == ["running"]
    owned = [claimed[name].owned for name in ('["b"]', '["e"]')]
    assert set(await desk.ledger.cancelled_leases(desk.worker)) == set(owned)
    for one in owned:
        assert await desk.fail(one) == "cancelled"
    live = "completed_at IS NULL"
    assert (await desk.count("jobs", live), await desk.count("abandoned")) == (0, 0)
    assert await desk.status(claimed['["c"]'].job_id) == "succeeded"


async def test_failures_are_collected(desk: Desk) -> None:
    """Design §10.13: with `collect`, satisfied when all are terminal; what comes next sees all."""
    own = await workflow(desk, group(*map(named, "abc"), collect=True), named("k"))
    a, b, c = await free(desk, own)
    assert await desk.fail(a.owned) == "failed"
    await desk.complete(b.owned, "b")
    await desk.ledger.cancel("default", [c.job_id])
    assert await desk.fail(c.owned) == "cancelled"
    (k,) = await free(desk, own)
    failed, result, cancelled = msgspec.json.decode(k.upstream or "")
    assert (failed["status"], failed["error_code"]) == ("failed", "Boom")
    assert failed["job_id"] == str(a.job_id)
    assert (result, cancelled["status"]) == ("b", "cancelled")
    await desk.complete(k.owned, "k")
    assert await desk.status(own) == "succeeded"
    assert await desk.count("abandoned") == 0


async def test_cancelling_a_workflow_cancels_its_groups(desk: Desk) -> None:
    own = await workflow(desk, named("z"), group(named("a"), group(named("b"))), named("k"))
    await desk.ledger.cancel("default", [own])
    assert await desk.count("jobs", "status <> 'cancelled'") == 0


async def test_the_last_two_members_end_at_the_same_instant(desk: Desk) -> None:
    """I5: two connections, one join: the body is published once, never not at all."""
    for _ in range(25):
        own = await workflow(desk, group(WORK, WORK), WORK)
        one, other = await free(desk, own)
        done = [desk.ledger.complete([Success(job.owned, "1")]) for job in (one, other)]
        await asyncio.gather(*done)
        (body,) = await free(desk, own)
        assert await desk.count("outbox", f"job_id = '{body.job_id}'") == 1
        await desk.complete(body.owned)
        assert await desk.status(own) == "succeeded"


async def test_batches_that_feed_joins_crosswise_do_not_deadlock(desk: Desk) -> None:
    """Lock order: one batch ends a member of the inner group, then one of the outer; another batch
    the other way round. A deadlock would be undone and tried again, but a second later each time.
    """
    own = await workflow(desk, group(WORK, group(WORK, WORK), WORK))
    a, d, e, c = await free(desk, own)
    async with desk.open_transaction() as holder:
        inner = (await desk.row(d.job_id))["feeds"]
        await holder.execute("SELECT FROM lateack.joins WHERE id = $1 FOR UPDATE", inner)
        first = asyncio.create_task(complete(desk, d, c))
        await desk.blocked(1)
        second = asyncio.create_task(complete(desk, a, e))
        await desk.blocked(2)
        await holder.execute("COMMIT")
        await asyncio.gather(first, second)
    assert await desk.status(own) == "succeeded"
    await desk.connection.execute("SELECT pg_stat_force_next_flush()")
    stats = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    assert await desk.connection.fetchval(stats) == 0


async def complete(desk: Desk, *jobs: Claimed) -> None:
    """End these jobs in one statement."""
    moved = await desk.ledger.complete([Success(job.owned, "1") for job in jobs])
    assert len(moved) == len(jobs)


async def test_a_wide_group(desk: Desk) -> None:
    """A thousand members, failing on the way and in the end complete: one body, one list."""
    own = await workflow(desk, named("z"), group(*[WORK] * 1000), named("k"))
    (first,) = await free(desk, own)
    await desk.complete(first.owned, "z")
    members = await free(desk, own)
    assert len(members) == 1000
    random.shuffle(members)
    parts = [members[start : start + 100] for start in range(0, 1000, 100)]
    await asyncio.gather(
        *(desk.ledger.complete([Success(job.owned, "7") for job in part]) for part in parts)
    )
    (body,) = await free(desk, own)
    assert body.upstream == "[" + ", ".join(["7"] * 1000) + "]"
