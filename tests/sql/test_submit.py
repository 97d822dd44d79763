"""lateack.submit(): a job out of SQL, in the caller's own transaction (I1, I4)."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest

from lateack import App, Submission
from lateack.arguments import misfit, parameters_of
from lateack_core.registry import entries_of
from lateack_core.validation import Refused
from tests.sql.desk import Desk

app = App("billing")


@app.task(name="billing.send", queue="billing", priority=7, max_retries=9)
async def send(number: int, *, copy: bool = False) -> None: ...


@app.task(name="billing.remind", queue="billing", expires=60, ignore_result=True)
async def remind(number: int) -> None: ...


@pytest.fixture
async def sql(desk: Desk) -> asyncpg.Connection:
    """The connection of somebody who knows SQL only."""
    await desk.ledger.register_tasks(entries_of(app))
    return desk.connection


def call(**given: str) -> str:
    """The text of a call; what is not given is a good submission."""
    given = {"task": "'billing.send'", "args": "'[17]'"} | given
    return f"SELECT lateack.submit({', '.join(f'{k} => {v}' for k, v in given.items())})"


async def test_a_submitted_job_runs(desk: Desk, sql: asyncpg.Connection) -> None:
    """Queue, priority and retries are the task's; the relay publishes it; a worker gets it."""
    job = await sql.fetchval("SELECT lateack.submit('billing.send', kwargs => '{\"number\": 17}')")
    row = await desk.row(job)
    assert (row["status"], row["queue"], row["priority"]) == ("pending", "billing", 7)
    assert (row["tenant_id"], row["max_retries"]) == ("default", 9)
    await desk.ground.relay.turn()
    assert await desk.count("outbox") == 0
    assert (await desk.ground.broker.depth("billing"))[0] == 1
    (claimed,) = await desk.ledger.claim([job], desk.worker, lease=30, tasks=["billing.send"])
    assert claimed.kwargs == '{"number": 17}'
    document = (await desk.ledger.get("default", [job]))[job]
    assert (document.tags, document.meta, document.expires_at) == ([], {}, None)


async def test_everything_that_can_be_said(desk: Desk, sql: asyncpg.Connection) -> None:
    job = await sql.fetchval(
        call(
            tenant="'acme'",
            queue="'slow'",
            priority="9",
            countdown="'1 hour'",
            expires="now() + interval '2 hours'",
            max_retries="0",
            idempotency_key="'k'",
            tags="ARRAY['a', 'b']",
            meta="""'{"run": 1}'""",
            owner="'ann'",
            external_ref="'order-17'",
        )
    )
    document = (await desk.ledger.get("acme", [job]))[job]
    assert (document.status, document.queue, document.priority) == ("scheduled", "slow", 9)
    assert (document.tags, document.meta) == (["a", "b"], {"run": 1})
    assert (document.owner, document.external_ref) == ("ann", "order-17")
    assert (document.run_at - document.created_at).total_seconds() == 3600
    assert document.expires_at is not None
    due = await sql.fetchval("SELECT due FROM lateack.outbox WHERE job_id = $1", job)
    assert due == document.run_at


async def test_the_tasks_own_options_hold(desk: Desk, sql: asyncpg.Connection) -> None:
    job = await sql.fetchval(call(task="'billing.remind'"))
    row = await desk.row(job)
    assert row["ignore_result"]
    assert (row["expires_at"] - row["created_at"]).total_seconds() == 60


async def test_it_lives_and_dies_with_the_callers_transaction(
    desk: Desk, sql: asyncpg.Connection
) -> None:
    """I1: before the commit nobody can see or publish it, after a rollback it never was."""
    for end, made in (("ROLLBACK", 0), ("COMMIT", 1)):
        async with desk.open_transaction() as caller:
            await caller.fetchval(call(idempotency_key="'k'"))
            await desk.ground.relay.turn()
            assert await desk.count("jobs") == 0
            await caller.execute(end)
        assert await desk.count("jobs") == await desk.count("outbox") == made
        assert await desk.count("idempotency") == made


async def test_a_key_stands_for_one_job(desk: Desk, sql: asyncpg.Connection) -> None:
    """I4: the same content, however it is spelt, gives the first id; other content is refused."""
    first = await sql.fetchval(
        call(args="""'[{"b":1,"a":[2]}]'""", idempotency_key="'k'", eta="'2030-01-01 08:00+08'")
    )
    again = await sql.fetchval(
        call(args="""'[ {"a":[2], "b":1} ]'""", idempotency_key="'k'", eta="'2030-01-01 00:00Z'")
    )
    assert first == again
    with pytest.raises(asyncpg.UniqueViolationError) as conflict:
        await sql.fetchval(call(idempotency_key="'k'"))
    assert str(first) in str(conflict.value)
    assert "new key" in (conflict.value.hint or "")
    assert await sql.fetchval(call(idempotency_key="'k'", tenant="'other'")) != first
    assert await desk.count("jobs") == 2


async def test_two_transactions_with_one_key(desk: Desk, sql: asyncpg.Connection) -> None:
    """I4: the second waits for the first, and then returns its job."""
    async with desk.open_transaction() as one, desk.open_transaction() as two:
        first = await one.fetchval(call(idempotency_key="'k'"))
        second = asyncio.create_task(two.fetchval(call(idempotency_key="'k'")))
        await desk.blocked()
        await one.execute("COMMIT")
        assert await second == first
    assert await desk.count("jobs") == 1


async def test_repeatable_read_says_to_run_it_again(desk: Desk, sql: asyncpg.Connection) -> None:
    """Design §10.5: 40001 is the documented answer there."""
    async with desk.open_transaction() as one:
        await one.execute("ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ")
        await one.fetchval("SELECT count(*) FROM lateack.jobs")
        await sql.fetchval(call(idempotency_key="'k'"))
        with pytest.raises(asyncpg.SerializationError):
            await one.fetchval(call(idempotency_key="'k'"))


async def test_a_key_is_used_through_one_door(desk: Desk, sql: asyncpg.Connection) -> None:
    """Documented: the doors compare in forms of their own, so the other one answers a conflict."""
    await sql.fetchval(call(idempotency_key="'k'"))
    submission = Submission(task="billing.send", args=[17], idempotency_key="k")
    with pytest.raises(Refused) as refused:
        await desk.ground.submissions.accept("default", submission)
    assert refused.value.refusal.status == 409
    await desk.ground.submissions.accept(
        "default", msgspec.structs.replace(submission, idempotency_key="h")
    )
    with pytest.raises(asyncpg.UniqueViolationError):
        await sql.fetchval(call(idempotency_key="'h'"))
    assert await desk.count("jobs") == 2


REFUSED = [
    ({"task": "'billing.sent'"}, "ever registered a task 'billing.sent'"),
    ({"task": "NULL"}, "ever registered"),
    ({"args": "'[]'"}, "misses the argument number"),
    ({"args": "'[1, 2]'"}, "takes at most 1 positional arguments, got 2"),
    ({"kwargs": """'{"nmber": 1}'"""}, "has no parameter named nmber"),
    ({"kwargs": """'{"number": 1}'"""}, "got number both by position and by name"),
    ({"args": """'{"a": 1}'"""}, "args is a JSON array"),
    ({"kwargs": "'[]'"}, "kwargs a JSON object"),
    ({"args": r"""'["\u0000"]'"""}, "a NUL character"),
    ({"args": r"""'["\ud800"]'"""}, "half of a surrogate pair"),
    ({"args": "'[1e400]'"}, "not finite"),
    ({"args": f"'{'[' * 65 + ']' * 65}'"}, "nested more than 64 levels"),
    ({"args": "json_build_array(repeat('x', 65536))"}, "65536 bytes"),
    ({"tenant": "'no tenant'"}, "tenant"),
    ({"tenant": "NULL"}, "tenant"),
    ({"queue": "'a:b'"}, "queue"),
    ({"queue": r"E'work\n'"}, "queue"),
    ({"priority": "10"}, "priority is 0 to 9, got 10"),
    ({"max_retries": "-1"}, "max_retries"),
    ({"countdown": "'1 s'", "eta": "now()"}, "countdown or eta"),
    ({"countdown": "'-1 s'"}, "countdown"),
    ({"countdown": "'11 years'"}, "countdown"),
    ({"eta": "'infinity'"}, "ten years"),
    ({"expires": "'1999-12-31'"}, "year 2000"),
    ({"tags": "ARRAY['a', NULL]"}, "tags"),
    ({"tags": "array_fill('x'::text, ARRAY[21])"}, "20 tags"),
    ({"meta": "'[1]'"}, "meta"),
    ({"meta": "jsonb_build_object('a', repeat('x', 4096))"}, "meta"),
    ({"owner": "''"}, "owner"),
    ({"external_ref": "repeat('x', 201)"}, "external_ref"),
    ({"idempotency_key": "''"}, "idempotency key"),
    ({"idempotency_key": "'k '"}, "idempotency key"),
    ({"idempotency_key": r"E'a\tb'"}, "idempotency key"),
    ({"idempotency_key": "repeat('x', 256)"}, "idempotency key"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[m for _, m in REFUSED])
async def test_bad_input_says_what_to_change_and_leaves_nothing(
    desk: Desk, sql: asyncpg.Connection, given: dict[str, str], message: str
) -> None:
    """PAY-01, PAY-02, PAY-06, PAY-07: an error with a hint, and no row."""
    with pytest.raises(asyncpg.PostgresError) as refused:
        await sql.fetchval(call(**given))
    assert message in str(refused.value)
    assert refused.value.sqlstate in ("22023", "42704")
    assert refused.value.hint
    assert await desk.count("jobs") == await desk.count("idempotency") == 0


async def test_nobody_may_submit_unless_granted(desk: Desk, sql: asyncpg.Connection) -> None:
    """Design §10.19: the caller chooses the tenant, so no role has the right by default; the grants
    in the file's head are all that it takes."""
    await sql.execute("DROP ROLE IF EXISTS lateack_app; CREATE ROLE lateack_app")
    try:
        async with sql.transaction():
            await sql.execute("GRANT USAGE ON SCHEMA lateack TO lateack_app; SET ROLE lateack_app")
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with sql.transaction():
                    await sql.fetchval(call())
            await sql.execute("RESET ROLE")
            for grant in _grants():
                await sql.execute(grant)
            await sql.execute("SET ROLE lateack_app")
            assert isinstance(await sql.fetchval(call(idempotency_key="'k'")), UUID)
            assert isinstance(await sql.fetchval(call(idempotency_key="'k'")), UUID)
            await sql.execute("RESET ROLE")
    finally:
        await sql.execute("DROP OWNED BY lateack_app; DROP ROLE lateack_app")


def _grants() -> list[str]:
    """The grants that the migration's own comment tells."""
    from lateack_sql import migrations

    text = next(m.text for m in migrations() if m.name == "submit")
    grants = [line.strip("- \n") for line in text.splitlines() if line.startswith("--     GRANT")]
    return [grant.replace(" app;", " lateack_app") for grant in grants]


def none() -> None: ...
def either(a: Any, b: Any = 1) -> None: ...
def only(a: Any, /, b: Any, *, c: Any, d: Any = 1) -> None: ...
def star(a: Any, *args: Any) -> None: ...
def kwargs(a: Any, /, **kwargs: Any) -> None: ...
def both(*args: Any, k: Any, **kwargs: Any) -> None: ...


CALLS: list[tuple[list[Any], dict[str, Any]]] = [
    (args, dict.fromkeys(names, 0))
    for args in ([], [1], [1, 2], [1, 2, 3])
    for names in ("", "a", "b", "c", "k", "ab", "bc", "zy", "acz")
]


@pytest.mark.parametrize("function", [none, either, only, star, kwargs, both])
async def test_both_doors_say_the_same_of_arguments(desk: Desk, function: Any) -> None:
    """lateack.misfit is the twin of lateack.arguments.misfit, to the word."""
    parameters = parameters_of(function, hidden=None)
    text = msgspec.json.encode(parameters).decode()
    for args, named in CALLS:
        said = await desk.connection.fetchval(
            "SELECT lateack.misfit($1::jsonb, $2::jsonb, $3::jsonb)",
            text,
            msgspec.json.encode(args).decode(),
            msgspec.json.encode(named).decode(),
        )
        assert said == misfit(parameters, args, named)
