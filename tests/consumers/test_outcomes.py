"""What becomes of a job in a healthy worker: results, errors, retries, limits, cancellation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lateack.models import Step
from lateack_core.settings import Settings
from tests.consumers.conftest import Caller, lines, result_of, until

pytestmark = pytest.mark.usefixtures("worker")


async def test_a_job_runs_and_its_entry_is_cleared(caller: Caller) -> None:
    """The main path: submit, run, commit, acknowledge, delete."""
    job = await caller.submit("add", 2, 3)
    ended = await caller.until(job.job_id)
    assert (ended.status, result_of(ended), ended.attempt) == ("succeeded", 5, 1)

    async def cleared() -> bool:
        return await caller.ground.broker.depth("q") == (0, 0)

    for _ in range(100):
        if await cleared():
            return
    raise AssertionError(await caller.ground.broker.depth("q"))


async def test_big_integers_and_floats_pass_unchanged(caller: Caller) -> None:
    """PAY-05: the result is what the arguments were, beyond the exact range of doubles too."""
    job = await caller.submit("add", 2**70, 1)
    assert result_of(await caller.until(job.job_id)) == 2**70 + 1


async def test_an_unknown_error_fails_at_once_with_clean_words(caller: Caller) -> None:
    """PAY-01: a NUL in an error's message does not keep the job from its end."""
    job = await caller.until((await caller.submit("fails")).job_id)
    assert (job.status, job.error_code, job.attempt) == ("failed", "ValueError", 1)
    assert job.error_message == "no\ufffd good"


@pytest.mark.parametrize("task", ["unstorable", "not_finite"])
async def test_what_cannot_be_stored_fails_the_job(caller: Caller, task: str) -> None:
    """PAY-02, PAY-03: the job ends with a readable reason and the worker goes on."""
    job = await caller.until((await caller.submit(task)).job_id)
    assert (job.status, job.error_code) == ("failed", "InvalidResult")
    assert (await caller.until((await caller.submit("add", 1, 1)).job_id)).status == "succeeded"


async def test_named_errors_are_retried_with_back_off(caller: Caller, tmp_path: Path) -> None:
    job = await caller.submit("flaky", str(tmp_path / "effects"))
    ended = await caller.until(job.job_id)
    assert (ended.status, ended.attempt, result_of(ended)) == ("succeeded", 3, 3)
    assert lines(tmp_path / "effects") == ["attempt 1", "attempt 2", "attempt 3"]
    outcomes = [a["outcome"] for a in await caller.ground.ledger.attempts("default", job.job_id)]
    assert outcomes == ["retried", "retried", "succeeded"]


async def test_retries_end_at_the_jobs_own_limit(caller: Caller, tmp_path: Path) -> None:
    job = await caller.submit("flaky", str(tmp_path / "effects"), max_retries=1)
    ended = await caller.until(job.job_id)
    assert (ended.status, ended.error_code, ended.attempt) == ("failed", "TransientError", 2)


async def test_a_task_may_ask_for_its_retry(caller: Caller) -> None:
    ended = await caller.until((await caller.submit("asks_again")).job_id)
    assert (ended.status, result_of(ended)) == ("succeeded", 2)


@pytest.mark.parametrize("task", ["soft", "thread_soft", "process_soft"])
async def test_the_soft_limit_is_met_inside_the_body(
    caller: Caller, tmp_path: Path, task: str
) -> None:
    """I1: SoftTimeLimitExceeded itself is raised, where the body can clean up."""
    ended = await caller.until((await caller.submit(task, str(tmp_path / "effects"))).job_id)
    assert (ended.status, result_of(ended)) == ("succeeded", "in time")
    assert lines(tmp_path / "effects") == ["cleaned up"]


@pytest.mark.parametrize("task", ["hard", "thread_hard", "process_hard"])
async def test_the_hard_limit_ends_any_body(caller: Caller, task: str) -> None:
    """I1: a body that ignores everything ends by its hard limit, and its slot is free again."""
    job = await caller.until((await caller.submit(task)).job_id)
    assert (job.status, job.error_code) == ("failed", "TimeLimitExceeded")
    assert (await caller.until((await caller.submit("add", 1, 1)).job_id)).status == "succeeded"


async def test_processes_run_bodies_apart(caller: Caller) -> None:
    ended = await caller.until((await caller.submit("in_process", 7)).job_id)
    number, pid = result_of(ended)
    assert number == 7
    assert pid != os.getpid()


async def test_a_job_that_waits_for_a_process_can_be_cancelled(
    caller: Caller, tmp_path: Path
) -> None:
    """CAN-01: also before its body has begun, while every process is busy."""
    busy = [await caller.submit("sleeps_in_process", 3.0) for _ in range(os.cpu_count() or 1)]
    busy += [await caller.submit("sleeps_in_process", 3.0)]
    for job in busy:
        await caller.until(job.job_id, "running")
    last = await caller.submit("crash", str(tmp_path / "effects"))
    await caller.until(last.job_id, "running")
    await caller.ground.ledger.cancel("default", [last.job_id])
    assert (await caller.until(last.job_id, within=2.5)).status == "cancelled"
    assert lines(tmp_path / "effects") == []


@pytest.mark.parametrize("task", ["forks_and_exits", "forks_and_returns"])
async def test_a_forked_copy_says_nothing(caller: Caller, task: str) -> None:
    """I2, I9: what a body forks cannot answer for this job, nor for the next one."""
    for number in range(4):
        forked = await caller.until((await caller.submit(task)).job_id)
        assert (forked.status, result_of(forked)) == ("succeeded", "parent")
        assert forked.attempt == 1
        after = await caller.until((await caller.submit("in_process", number)).job_id)
        # A first attempt: it did not even meet an answer that was not its own.
        assert (after.status, after.attempt) == ("succeeded", 1)
        assert result_of(after)[0] == number


@pytest.mark.parametrize("in_c", [False, True])
async def test_a_dead_process_is_noticed_though_its_child_lives(
    caller: Caller, tmp_path: Path, in_c: bool
) -> None:
    """RTY-01: long before its time limit; and what it left behind is ended with it."""
    job = await caller.submit(
        "leaves_a_grandchild", str(tmp_path / "effects"), kwargs={"in_c": in_c}
    )
    ended = await caller.until(job.job_id, within=20)
    assert (ended.status, ended.error_code) == ("failed", "WorkerLost")
    left = [int(line) for line in lines(tmp_path / "effects")]
    assert len(left) == 3
    await until(lambda: not any(is_running(pid) for pid in left))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_a_retry_too_far_ahead_is_cut(caller: Caller) -> None:
    """I1: a mistake in a unit makes no job that can be neither read nor cancelled."""
    job = await caller.submit("far_off")
    waiting = await caller.until(job.job_id, "retrying")
    assert waiting.run_at.year < 2100
    await caller.ground.ledger.cancel("default", [job.job_id])
    assert (await caller.until(job.job_id)).status == "cancelled"


async def test_an_errors_name_is_cut(caller: Caller) -> None:
    """PAY-04: a class may be called anything."""
    ended = await caller.until((await caller.submit("badly_named")).job_id)
    assert (ended.status, ended.error_message, ended.attempt) == ("failed", "said so", 1)
    assert ended.error_code is not None
    assert ended.error_code.startswith("Noxxx")
    assert len(ended.error_code) == 100


async def test_a_body_that_kills_its_process_ends_worker_lost(
    caller: Caller, tmp_path: Path
) -> None:
    """RTY-01: three losses, then `failed` with WorkerLost; everybody else's jobs go on."""
    job = await caller.submit("crash", str(tmp_path / "effects"))
    other = await caller.submit("in_process", 1)
    ended = await caller.until(job.job_id)
    assert (ended.status, ended.error_code, ended.attempt) == ("failed", "WorkerLost", 3)
    assert lines(tmp_path / "effects") == ["start 1", "start 2", "start 3"]
    assert (await caller.until(other.job_id)).status == "succeeded"


async def test_a_running_job_is_cancelled(caller: Caller, tmp_path: Path) -> None:
    """CAN-01: the answer says that it still runs; then it ends cancelled, once."""
    job = await caller.submit("slow", str(tmp_path / "effects"), 15.0)
    await caller.until(job.job_id, "running")
    moved = await caller.ground.ledger.cancel("default", [job.job_id])
    assert [m.status for m in moved] == ["running"]
    assert (await caller.until(job.job_id)).status == "cancelled"
    assert len(lines(tmp_path / "effects")) == 1


async def test_a_pending_job_that_was_cancelled_never_starts(
    caller: Caller, tmp_path: Path
) -> None:
    """CAN-02: cancelled while it waits for its next attempt, it stays so."""
    job = await caller.submit("slow", str(tmp_path / "effects"), 0.1, countdown=0.4)
    await caller.ground.ledger.cancel("default", [job.job_id])
    marker = await caller.submit("add", 1, 1, countdown=0.8)
    await caller.until(marker.job_id)
    assert (await caller.job(job.job_id)).status == "cancelled"
    assert lines(tmp_path / "effects") == []


async def test_a_chain_passes_results_on(caller: Caller) -> None:
    """I5: each step runs once, on the result of the step before; the workflow has the last one."""
    step = Step(task="tests.consumers.tasks_under_test.twice")
    workflow = await caller.submit("add", 1, 2, then=[step, step])
    ended = await caller.until(workflow.job_id)
    assert (ended.status, result_of(ended)) == ("succeeded", 12)


async def test_a_chain_fails_by_the_name_of_its_step(caller: Caller) -> None:
    """I5: what waits for a failed step ends as UpstreamFailed and says which step it was."""
    step = Step(task="tests.consumers.tasks_under_test.twice")
    workflow = await caller.submit("asks_again", then=[step, step])
    ended = await caller.until(workflow.job_id)
    assert (ended.status, result_of(ended)) == ("succeeded", 8)
    broken = await caller.submit(
        "twice", "x", then=[Step(task="tests.consumers.tasks_under_test.fails_on")]
    )
    ended = await caller.until(broken.job_id)
    assert (ended.status, ended.error_code) == ("failed", "UpstreamFailed")
    assert (
        ended.error_message == "step tests.consumers.tasks_under_test.fails_on failed: ValueError"
    )


async def test_a_task_enqueues_another(caller: Caller) -> None:
    """Inside a worker, enqueue goes straight to the ledger."""
    from uuid import UUID

    ended = await caller.until((await caller.submit("parent")).job_id)
    child = await caller.until(UUID(result_of(ended)))
    assert result_of(child) == 3


async def test_a_delayed_job_is_never_early(caller: Caller) -> None:
    """DEL-10: it waits in the ledger and starts at its time or after."""
    job = await caller.submit("add", 1, 1, countdown=0.7)
    assert job.status == "scheduled"
    ended = await caller.until(job.job_id)
    assert ended.started_at is not None
    assert ended.started_at >= ended.run_at


async def test_strays_are_set_aside_once(caller: Caller, settings: Settings) -> None:
    """REC-05: malformed messages are recorded, cleared, and stop nobody."""
    broker = caller.ground.broker
    stream = broker.stream("q", 2)
    await broker._redis.xadd(stream, {"nonsense": "1"})
    await broker._redis.xadd(stream, {"job": "not-an-id"})
    await broker._redis.xadd(stream, {"job": b"\xff\xfe"})
    job = await caller.submit("add", 1, 1)
    assert (await caller.until(job.job_id)).status == "succeeded"

    found: list[int] = []

    async def look() -> None:
        async with caller.ground.postgres.transaction() as transaction:
            rows = await transaction._connection.fetch("SELECT reason FROM lateack.strays")
            found[:] = [len(rows)]

    for _ in range(200):
        await look()
        if found == [3]:
            break
    assert found == [3]


async def test_expired_jobs_do_not_start(caller: Caller, tmp_path: Path) -> None:
    """RTY-09: a job that has not started by its latest start time ends as Expired."""
    job = await caller.submit("slow", str(tmp_path / "e"), 0.1, countdown=0.5, expires=0.2)
    ended = await caller.until(job.job_id)
    assert (ended.status, ended.error_code) == ("failed", "Expired")
    assert lines(tmp_path / "e") == []
