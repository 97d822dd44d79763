"""Effects that are taken once: steps, transactions, tokens; killed in the worst moments."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from lateack.models import Job, Submission
from lateack_cli.embedded import EmbeddedServers
from lateack_core.ground import Ground, open_ground
from lateack_core.registry import entries_of
from lateack_core.settings import Settings
from tests.consumers.conftest import Caller, lines, result_of, until
from tests.consumers.effect_tasks import app
from tests.consumers.processes import Process, lateack

APP_PATH = "tests.consumers.effect_tasks:app"
# Negative amounts are refused at the commit, not before.
BOOKINGS = """
CREATE TABLE bookings (job_id uuid NOT NULL, amount integer NOT NULL);
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN IF NEW.amount < 0 THEN RAISE EXCEPTION 'no debts'; END IF; RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER no_debts AFTER INSERT ON bookings DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION refuse();
"""


class Effects(Caller):
    """A caller of these tasks, who looks at what they left."""

    def __init__(self, ground: Ground, effects: Path) -> None:
        super().__init__(ground)
        self.path = effects

    async def send(self, task: str, *args: Any, **options: Any) -> Job:
        submission = Submission(
            task=f"tests.consumers.effect_tasks.{task}", args=list(args), **options
        )
        return (await self.ground.submissions.accept("default", submission)).job

    async def run(self, task: str, *args: Any, **options: Any) -> Job:
        return await self.until((await self.send(task, *args, **options)).job_id)

    async def rows(self, text: str, *args: Any) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.ground.settings.database_url)
        try:
            return list(await connection.fetch(text, *args))
        finally:
            await connection.close()

    async def bookings(self, job: Job) -> list[int]:
        text = "SELECT amount FROM bookings WHERE job_id = $1"
        return [row["amount"] for row in await self.rows(text, job.job_id)]

    async def step(self, job: Job) -> asyncpg.Record:
        (row,) = await self.rows("SELECT * FROM lateack.steps WHERE job_id = $1", job.job_id)
        return row

    async def outcomes(self, job_id: UUID) -> list[str]:
        attempts = await self.ground.ledger.attempts("default", job_id)
        return [attempt["outcome"] for attempt in attempts]

    @property
    def charges(self) -> list[str]:
        return lines(self.path)


@asynccontextmanager
async def calling(ground: Ground, path: Path) -> AsyncIterator[Effects]:
    connection = await asyncpg.connect(ground.settings.database_url)
    await connection.execute(BOOKINGS)
    await connection.close()
    await ground.ledger.register_tasks(entries_of(app))
    ground.start()
    yield Effects(ground, path)


@pytest.fixture
async def effects(ground: Ground, tmp_path: Path) -> AsyncIterator[Effects]:
    async with calling(ground, tmp_path / "effects") as effects:
        yield effects


@asynccontextmanager
async def working(settings: Settings, log: Path) -> AsyncIterator[Process]:
    """A worker for these tasks, from the moment it is ready."""
    async with lateack(settings, log, "worker", "-A", APP_PATH, "-c", "10") as process:
        await until(lambda: log.exists() and "ready: 10 slots" in log.read_text())
        yield process


@pytest.fixture
async def worker(settings: Settings, tmp_path: Path) -> AsyncIterator[Process]:
    async with working(settings, tmp_path / "worker.log") as process:
        yield process


# -- steps --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["", "thread_", "process_"])
async def test_an_ended_step_is_not_run_again(kind: str, effects: Effects, worker: Process) -> None:
    """DEL-09: the second attempt gets the result of the first, under the same token."""
    job = await effects.run(f"{kind}charges_then_retries", str(effects.path))
    assert (job.status, job.attempt) == ("succeeded", 2)
    assert effects.charges == [f"charged {job.job_id}:charge"]
    assert result_of(job) == {"receipt": f"{job.job_id}:charge"}


@pytest.mark.parametrize("reconciled", [True, False])
async def test_a_step_in_doubt_is_met_by_the_next_attempt(
    reconciled: bool, effects: Effects, worker: Process
) -> None:
    """DEL-09: it died after the effect and before the record. Asked, the outside knows; unasked,
    the step runs again under the very same token, by which the outside can tell."""
    job = await effects.run("dies_in_doubt", str(effects.path), reconciled)
    assert (job.status, job.attempt) == ("succeeded", 2)
    assert effects.charges == [f"charged {job.job_id}:charge"] * (1 if reconciled else 2)
    assert result_of(job)["receipt"] == f"{job.job_id}:charge"
    step = await effects.step(job)
    assert (step["attempt"], step["begun"]) == (2, 1 if reconciled else 2)


async def test_a_step_that_raised_stays_in_doubt(effects: Effects, worker: Process) -> None:
    """An error does not say whether it took effect; `reconcile` may refuse to guess."""
    job = await effects.run("raises_in_doubt", str(effects.path))
    assert (job.status, job.error_code, job.attempt) == ("failed", "PermanentError", 2)
    assert len(effects.charges) == 1
    step = await effects.step(job)
    assert (step["ended_at"], step["error"]) == (None, "TimeoutError: no answer")


async def test_a_name_is_used_once_in_an_attempt(effects: Effects, worker: Process) -> None:
    """A loop that forgot to number its steps would get the first one's result each time."""
    job = await effects.run("uses_a_name_twice", str(effects.path))
    assert (job.status, job.error_code) == ("failed", "ValueError")
    assert "a name of its own" in (job.error_message or "")
    assert len(effects.charges) == 1


async def test_results_of_steps_are_json(effects: Effects, worker: Process) -> None:
    """PAY-03: what cannot be kept fails the job at once; the first attempt sees what later ones
    would see."""
    job = await effects.run("keeps_what_is_no_json")
    assert (job.status, job.error_code, job.attempt) == ("failed", "InvalidResult", 1)
    assert (await effects.step(job))["ended_at"] is None
    assert result_of(await effects.run("sees_json_the_first_time")) == [[1, 2], None]


async def test_a_stale_owner_records_no_step(
    effects: Effects, settings: Settings, tmp_path: Path
) -> None:
    """REC-02, I2: frozen inside of a step for longer than its lease, it wakes and ends the step:
    refused. The successor's result stands."""
    async with (
        working(settings, tmp_path / "a.log") as first,
        AsyncStack(settings, tmp_path / "b.log") as second,
    ):
        job = await effects.send("slow_step", str(effects.path), 3.0)
        await until(lambda: effects.charges)
        first.signal(signal.SIGSTOP)
        await second.start()
        ended = await effects.until(job.job_id, within=30)
        first.signal(signal.SIGCONT)
        await until(lambda: "no longer ours" in first.log.read_text())
        assert result_of(ended) == "of attempt 2"
        assert (await effects.step(job))["attempt"] == 2
        assert await effects.job(job.job_id) == ended


class AsyncStack:
    """A worker that is started later, and ended with the block."""

    def __init__(self, settings: Settings, log: Path) -> None:
        self._working = working(settings, log)
        self._started = False

    async def start(self) -> None:
        await self._working.__aenter__()
        self._started = True

    async def __aenter__(self) -> AsyncStack:
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._started:
            await self._working.__aexit__(None, None, None)


async def test_a_limit_between_two_frames_of_a_step(effects: Effects, worker: Process) -> None:
    """The soft limit's signal comes while the child talks about its steps: the link stays whole."""
    jobs = [await effects.send("many_steps", 20) for _ in range(4)]
    for job in jobs:
        ended = await effects.until(job.job_id, within=40)
        assert (ended.status, ended.error_code) == ("failed", "SoftTimeLimitExceeded"), ended
    # The same child serves the next job.
    job = await effects.run("process_charges_then_retries", str(effects.path))
    assert job.status == "succeeded"


# -- transactions -------------------------------------------------------------------------


async def test_business_rows_and_outcome_commit_together(effects: Effects, worker: Process) -> None:
    """Design §3: what the body returns afterwards is not heard."""
    job = await effects.run("books", 7)
    assert (job.status, result_of(job)) == ("succeeded", {"booked": 7})
    assert await effects.bookings(job) == [7]
    assert (await effects.rows("SELECT count(*) FROM lateack.leases"))[0][0] == 0


async def test_what_raises_inside_is_rolled_back(effects: Effects, worker: Process) -> None:
    job = await effects.run("books_and_raises", kwargs={"inside": True})
    assert (job.status, job.error_message) == ("failed", "inside")
    assert await effects.bookings(job) == []


async def test_what_raises_afterwards_changes_nothing(effects: Effects, worker: Process) -> None:
    """I2: the outcome is committed; the log tells what the body did then."""
    job = await effects.run("books_and_raises", kwargs={"inside": False})
    assert job.status == "succeeded"
    assert await effects.bookings(job) == [1]
    await until(lambda: "its body then raised ValueError: outside" in worker.log.read_text())


@pytest.mark.parametrize("fault", ["kill", "freeze"])
async def test_a_lost_owner_commits_nothing(
    fault: str, effects: Effects, settings: Settings, tmp_path: Path
) -> None:
    """I2, REC-02: killed inside of its transaction, or frozen there until another has the job."""
    async with (
        working(settings, tmp_path / "a.log") as first,
        AsyncStack(settings, tmp_path / "b.log") as second,
    ):
        job = await effects.send("books_slowly", str(effects.path), 1.0)
        await until(lambda: effects.charges)
        first.signal(signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
        await second.start()
        ended = await effects.until(job.job_id, within=30)
        assert (ended.status, result_of(ended)) == ("succeeded", 2)
        assert await effects.bookings(job) == [2]
        if fault == "freeze":
            first.signal(signal.SIGCONT)
            # Its commit is refused, or the renewer learns first that the lease is lost.
            await until(lambda: "no longer ours" in first.log.read_text())
            await effects.run("books", 1)
            assert await effects.bookings(job) == [2]
            assert await effects.job(job.job_id) == ended


async def test_a_body_may_linger_after_its_commit(effects: Effects, worker: Process) -> None:
    """Two leases long, with no lease any more: nobody takes the job, nothing interrupts it."""
    job = await effects.run("books_then_lingers", str(effects.path))
    assert job.status == "succeeded"
    await until(lambda: len(effects.charges) == 2)
    assert await effects.bookings(job) == [1]
    assert "no longer ours" not in worker.log.read_text()


async def test_a_refused_commit_is_an_error_of_the_body(effects: Effects, worker: Process) -> None:
    job = await effects.run("books_what_is_refused_at_commit")
    assert (job.status, job.error_code) == ("failed", "RaiseError")
    assert "no debts" in (job.error_message or "")
    assert await effects.bookings(job) == []


async def test_a_result_that_cannot_be_kept_commits_nothing(
    effects: Effects, worker: Process
) -> None:
    """PAY-03"""
    job = await effects.run("books_no_json")
    assert (job.status, job.error_code) == ("failed", "InvalidResult")
    assert await effects.bookings(job) == []


async def test_sessions_are_clean(effects: Effects, worker: Process) -> None:
    """What one job's SET leaves behind must not reach another tenant's job."""
    assert result_of(await effects.run("leaves_its_session_odd")) == "nowhere"
    shown = [result_of(await effects.run("shows_its_session")) for _ in range(6)]
    assert set(shown) == {'"$user", public'}


async def test_threads_have_no_transaction(effects: Effects, worker: Process) -> None:
    job = await effects.run("thread_books")
    assert (job.status, job.error_code) == ("failed", "TypeError")
    assert "async def" in (job.error_message or "")


async def test_a_body_that_breaks_its_connection_does_not_go_on_for_ever(
    effects: Effects, settings: Settings, worker: Process
) -> None:
    """RTY-01: in a healthy database it counts like a crash."""
    job = await effects.run("breaks_its_connection", str(effects.path))
    assert (job.status, job.error_code) == ("failed", "WorkerLost")
    assert len(effects.charges) == settings.max_worker_losses


async def test_jobs_are_submitted_inside(effects: Effects, worker: Process) -> None:
    """`lateack.submit()` in the same transaction: the job exists if and only if this one did."""
    job = await effects.run("submits_inside")
    child = await effects.until(UUID(result_of(job)))
    assert (child.status, await effects.bookings(child)) == ("succeeded", [7])


async def test_an_outage_inside_costs_no_attempt(
    own_servers: EmbeddedServers, own_settings: Settings, tmp_path: Path
) -> None:
    """I10, DBS-02: the database is killed under an open transaction; afterwards it runs once more,
    as the same attempt."""
    ground = await open_ground(own_settings, process="test")
    async with (
        calling(ground, tmp_path / "effects") as effects,
        working(own_settings, tmp_path / "worker.log") as worker,
    ):
        job = await effects.send("books_slowly", str(effects.path), 1.0)
        await until(lambda: effects.charges)
        await own_servers.postgres.kill()
        await until(lambda: "the database failed in it" in worker.log.read_text())
        await own_servers.postgres.start()
        ended = await effects.until(job.job_id, within=40)
        assert (ended.status, ended.attempt) == ("succeeded", 1)
        assert await effects.bookings(job) == [1]
        assert await effects.outcomes(job.job_id) == ["handed_back"]
    await ground.close()


async def test_a_lock_on_its_job_fails_no_body(
    effects: Effects, settings: Settings, worker: Process
) -> None:
    """I10: somebody holds the job's row for longer than the commit waits. Nothing is
    committed, the body is not to blame, and it runs again as the same attempt."""
    assert settings.database_url
    operator = await asyncpg.connect(settings.database_url)
    async with operator.transaction():
        job = await effects.send("books_slowly", str(effects.path), 0.5)
        await until(lambda: effects.charges)
        await operator.execute("SELECT FROM lateack.jobs WHERE id = $1 FOR UPDATE", job.job_id)
        await until(lambda: "its job's row is locked" in worker.log.read_text())
    ended = await effects.until(job.job_id, within=40)
    assert (ended.status, ended.attempt) == ("succeeded", 1)
    assert await effects.bookings(job) == [1]
    assert await effects.outcomes(job.job_id) == ["handed_back"]
    await operator.close()


async def test_a_database_that_refuses_writes_fails_no_body(
    own_servers: EmbeddedServers, own_settings: Settings, tmp_path: Path
) -> None:
    """DBS-02: read-only for a while is no error of the body's: it is run again, and not failed."""
    ground = await open_ground(own_settings, process="test")
    async with (
        calling(ground, tmp_path / "effects") as effects,
        working(own_settings, tmp_path / "worker.log") as worker,
    ):
        operator = await asyncpg.connect(own_settings.database_url)
        await operator.execute("SET default_transaction_read_only = off")
        job = await effects.send("books_slowly", str(effects.path), 0.0, countdown=1.0)
        # Only what is asked for in a transaction: the claim itself could not be written either.
        await operator.execute(
            "CREATE FUNCTION away() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " RAISE EXCEPTION 'away' USING ERRCODE = 'read_only_sql_transaction'; END $$;"
            "CREATE TRIGGER away BEFORE INSERT ON bookings EXECUTE FUNCTION away()"
        )
        await until(lambda: "the database failed in it: away" in worker.log.read_text())
        await operator.execute("DROP TRIGGER away ON bookings")
        ended = await effects.until(job.job_id)
        assert ended.status == "succeeded"
        assert len(await effects.bookings(job)) == 1
        await operator.close()
    await ground.close()


async def test_a_process_that_dies_while_its_step_waits_for_the_database(
    own_servers: EmbeddedServers, own_settings: Settings, tmp_path: Path
) -> None:
    """RTY-01: the answer finds a link that has closed. That is a crash like any other, and no error
    of the job's: the next attempt takes the step."""
    ground = await open_ground(own_settings, process="test")
    release = tmp_path / "release"
    async with (
        calling(ground, tmp_path / "effects") as effects,
        working(own_settings, tmp_path / "worker.log"),
    ):
        job = await effects.send("waits_then_charges", str(effects.path), str(release))
        await until(lambda: effects.charges)
        child = int(effects.charges[0].split()[1])
        await own_servers.postgres.kill()
        release.touch()
        # It asks within 20 ms, and its end is noticed 200 ms after it; nobody tells of either.
        await asyncio.sleep(0.3)
        os.kill(child, signal.SIGKILL)
        await asyncio.sleep(0.7)
        await own_servers.postgres.start()
        ended = await effects.until(job.job_id, within=40)
        assert (ended.status, ended.attempt) == ("succeeded", 2), ended
        assert await effects.outcomes(job.job_id) == ["lost", "succeeded"]
        assert effects.charges.count(f"charged {job.job_id}:charge") == 1
    await ground.close()


async def test_a_hard_limit_holds_though_nobody_could_say_so(
    own_servers: EmbeddedServers, own_settings: Settings, tmp_path: Path
) -> None:
    """I1: the limit passes while the database is away, then the body returns. It was too late."""
    ground = await open_ground(own_settings, process="test")
    async with (
        calling(ground, tmp_path / "effects") as effects,
        working(own_settings, tmp_path / "worker.log"),
    ):
        job = await effects.send("outlasts_its_limit", str(effects.path), 2.0)
        await until(lambda: effects.charges)
        await own_servers.postgres.kill()
        await until(lambda: len(effects.charges) == 2)
        await own_servers.postgres.start()
        ended = await effects.until(job.job_id, within=40)
        assert (ended.status, ended.error_code) == ("failed", "TimeLimitExceeded")
    await ground.close()
