"""The checker is quiet about a clean run, and finds each violation that is planted in it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import msgspec
import pytest

from lateack_cli.storm.checker import check
from lateack_cli.storm.evidence import Evidence
from lateack_cli.storm.history import Line
from lateack_cli.storm.report import story
from lateack_cli.storm.snapshot import EffectRow, JobRow, Queue
from tests.chaos.clean_run import (
    BOOKED,
    BROKEN,
    BROKEN_SECOND,
    CANCELLED,
    CHAIN,
    CHILD,
    DELAYED,
    EXPIRED,
    FIRST,
    KEYED,
    LOST,
    OTHER,
    PAID,
    PAUSED,
    PLAIN,
    RETRIED,
    SECOND,
    TICKED,
    UNBOOKED,
    WORKER,
    Run,
    clean_run,
    moment,
)

Doctor = Callable[[Run], object]


def test_a_clean_run_passes() -> None:
    run = clean_run()
    assert check(run.lines, run.snapshot) == []


def _edit(run: Run, what: str, of: str, /, **fields: object) -> None:
    """Change the first line of a job that tells this."""
    for place, line in enumerate(run.lines):
        if line.what == what and line.job == of:
            run.lines[place] = msgspec.structs.replace(line, **fields)
            return
    raise AssertionError(f"no line tells {what} of {of}")


def _set(run: Run, job: str, **fields: object) -> None:
    row = run.job(job)
    for name, value in fields.items():
        setattr(row, name, value)


def _again(run: Run, job: str) -> JobRow:
    """The same request made another job."""
    row = copy.copy(run.job(job))
    row.id = f"{job}-again"
    run.snapshot.jobs.append(row)
    return row


def _remove(run: Run, job: str) -> None:
    run.snapshot.jobs.remove(run.job(job))


def _tried_again_at_once(run: Run) -> None:
    for row in run.snapshot.attempts:
        if (row.job_id, row.attempt) == (PAUSED, 2):
            row.started_at = moment(1.4)


def _not_lost(run: Run) -> None:
    _outcome(run, LOST, "retried")
    _set(run, LOST, worker_losses=0)


def _called_twice_more(run: Run) -> None:
    _call(run, 2.61)
    _call(run, 2.62)


def _outcome(run: Run, job: str, outcome: str, attempt: int = 1) -> None:
    for row in run.snapshot.attempts:
        if row.job_id == job and row.attempt == attempt:
            row.outcome = outcome


def _result(run: Run, job: str, result: object) -> None:
    for row in run.snapshot.results:
        if row.job_id == job:
            row.result = result


def _call(run: Run, seconds: float, **fields: object) -> None:
    facts: dict[str, object] = {"pid": WORKER, "attempt": 2, "status": "first", "text": "c1"}
    run.tell(seconds, "called", job=PAID, **(facts | {"key": f"{PAID}:charge"} | fields))


# What is planted, the rule that finds it, whom it names.
PLANTED: dict[str, tuple[Doctor, str, str]] = {
    "an accepted job is not in the ledger": (lambda r: _remove(r, PLAIN), "lost", PLAIN),
    "a job never ends": (
        lambda r: _set(r, CANCELLED, status="pending", completed_at=None),
        "unfinished",
        CANCELLED,
    ),
    "a caller saw another status": (
        lambda r: _edit(r, "seen", PLAIN, status="failed"),
        "two outcomes",
        PLAIN,
    ),
    "a caller saw another result": (
        lambda r: _edit(r, "seen", PLAIN, facts={"result": 8, "attempt": 1, "error_code": None}),
        "two outcomes",
        PLAIN,
    ),
    "a caller saw another end": (
        lambda r: _edit(r, "seen", PLAIN, text=moment(2.5).isoformat()),
        "two outcomes",
        PLAIN,
    ),
    "a caller cannot find its own job": (
        lambda r: _edit(r, "seen", PLAIN, code=404),
        "hidden",
        PLAIN,
    ),
    "a watcher was told another end": (
        lambda r: _edit(r, "watched", PLAIN, status="cancelled"),
        "two outcomes",
        PLAIN,
    ),
    "a result that the body never returns": (
        lambda r: _result(r, PLAIN, 6),
        "wrong outcome",
        PLAIN,
    ),
    "a failure that nothing explains": (
        lambda r: _set(r, PLAIN, status="failed", error_code="ValueError"),
        "wrong outcome",
        PLAIN,
    ),
    "cancelled, and nobody asked": (
        lambda r: r.forget("cancel", job=CANCELLED),
        "wrong outcome",
        CANCELLED,
    ),
    "WorkerLost after one loss": (
        lambda r: _set(r, UNBOOKED, worker_losses=1),
        "wrong outcome",
        UNBOOKED,
    ),
    "timed out while workers were there": (
        lambda r: _set(r, EXPIRED, error_code="PendingTimeout"),
        "wrong outcome",
        EXPIRED,
    ),
    "a success without the attempts it needs": (
        lambda r: _set(r, RETRIED, args=[2]),
        "wrong outcome",
        RETRIED,
    ),
    "it ran though it was cancelled before": (
        lambda r: r.tell(3.0, "began", job=CANCELLED, attempt=1, pid=WORKER),
        "ran though cancelled",
        CANCELLED,
    ),
    "it ran before its time": (
        lambda r: _set(r, DELAYED, run_at=moment(4.5), completed_at=moment(5.0)),
        "too early",
        DELAYED,
    ),
    "it was tried again before its time": (
        _tried_again_at_once,
        "too early",
        PAUSED,
    ),
    "a stale owner's result": (
        lambda r: _result(r, LOST, 1),
        "wrong outcome",
        LOST,
    ),
    "it started after its expiry": (
        lambda r: _set(r, EXPIRED, started_at=moment(2.5)),
        "too late",
        EXPIRED,
    ),
    "a key was answered with two jobs": (
        lambda r: _edit(r, "replayed", KEYED, job=PLAIN),
        "two jobs for a key",
        KEYED,
    ),
    "a key stands for another job in the ledger": (
        lambda r: setattr(r.snapshot.keys[0], "job_id", PLAIN),
        "two jobs for a key",
        KEYED,
    ),
    "a key was taken with other content": (
        lambda r: _edit(r, "replayed", KEYED, text="something else"),
        "other content for a key",
        KEYED,
    ),
    "a request made two jobs": (lambda r: _again(r, KEYED), "two jobs for a request", KEYED),
    "an attempt too many": (
        lambda r: _set(r, RETRIED, attempt=3),
        "attempts unexplained",
        RETRIED,
    ),
    "an attempt was spent by handing back": (
        lambda r: _outcome(r, RETRIED, "handed_back"),
        "attempts unexplained",
        RETRIED,
    ),
    "attempts are numbered wrong": (
        lambda r: setattr(r.snapshot.attempts[0], "attempt", 2),
        "attempts unexplained",
        RETRIED,
    ),
    "a loss that is not counted": (
        lambda r: _set(r, LOST, worker_losses=0),
        "losses unexplained",
        LOST,
    ),
    "a body without a claim": (
        lambda r: r.tell(1.4, "began", job=PLAIN, attempt=1, pid=OTHER),
        "bodies unexplained",
        PLAIN,
    ),
    "a body after the end": (
        lambda r: _edit(r, "began", PLAIN, at=moment(8.0).timestamp()),
        "ran after its end",
        PLAIN,
    ),
    "two bodies at once, and no lease was lost": (
        _not_lost,
        "two at once",
        LOST,
    ),
    "a success without its row": (
        lambda r: r.snapshot.effects.clear(),
        "transaction",
        BOOKED,
    ),
    "a row written twice": (
        lambda r: r.snapshot.effects.append(EffectRow(BOOKED, 1, moment(2.35))),
        "transaction",
        BOOKED,
    ),
    "a row of a job that did not succeed": (
        lambda r: r.snapshot.effects.append(EffectRow(UNBOOKED, 2, moment(2.3))),
        "transaction",
        UNBOOKED,
    ),
    "a row of an attempt that did not succeed": (
        lambda r: setattr(r.snapshot.effects[0], "attempt", 2),
        "transaction",
        BOOKED,
    ),
    "a step with two tokens": (
        lambda r: _call(r, 2.6, key=f"{PAID}-2:charge"),
        "step",
        PAID,
    ),
    "a step whose result is not the outside's": (
        lambda r: setattr(r.step(PAID, "charge"), "result", "c2"),
        "step",
        PAID,
    ),
    "a step that ran unrecorded": (
        lambda r: r.snapshot.steps.remove(r.step(PAID, "reserve")),
        "step",
        PAID,
    ),
    "a step taken again after it was kept": (
        lambda r: _call(r, 2.9),
        "step repeated",
        PAID,
    ),
    "a step done again though one could ask": (
        lambda r: _call(r, 2.66, status="again"),
        "step repeated",
        PAID,
    ),
    "a step called more often than it was in doubt": (
        _called_twice_more,
        "step repeated",
        PAID,
    ),
    "a step that is open though the job succeeded": (
        lambda r: setattr(r.step(PAID, "charge"), "ended_at", None),
        "step",
        PAID,
    ),
    "a chain's step began before the one before it had ended": (
        lambda r: _edit(r, "began", SECOND, at=moment(5.5).timestamp()),
        "chain",
        CHAIN,
    ),
    "a chain's step ran though the one before it failed": (
        lambda r: r.tell(6.5, "began", job=BROKEN_SECOND, attempt=1, pid=WORKER),
        "chain",
        BROKEN,
    ),
    "a chain that succeeded with another result": (
        lambda r: _result(r, CHAIN, ["a"]),
        "chain",
        CHAIN,
    ),
    "a chain that failed though its steps succeeded": (
        lambda r: _set(r, CHAIN, status="failed", error_code="UpstreamFailed"),
        "chain",
        CHAIN,
    ),
    "a chain that succeeded though a step failed": (
        lambda r: _set(r, BROKEN, status="succeeded", error_code=None),
        "chain",
        BROKEN,
    ),
    "a tick made two jobs": (
        lambda r: _again(r, f"{TICKED}-2"),
        "tick",
        f"{TICKED}-2-again",
    ),
    "two ticks made one job": (
        lambda r: setattr(r.snapshot.ticks[1], "job_id", f"{TICKED}-1"),
        "tick",
        f"{TICKED}-1",
    ),
    "a tick made no job": (
        lambda r: setattr(r.snapshot.ticks[1], "job_id", None),
        "tick",
        "",
    ),
    "a tick was left out": (
        lambda r: r.snapshot.ticks.pop(1),
        "tick",
        f"{TICKED}-2",
    ),
    "another tenant reads": (
        lambda r: _edit(r, "pried", KEYED, code=200),
        "foreign read",
        KEYED,
    ),
    "another tenant finds it in a list": (
        lambda r: r.tell(9.9, "listed", tenant="acme", facts={"jobs": [KEYED]}),
        "foreign read",
        KEYED,
    ),
    "a caller is never told the end": (
        lambda r: r.tell(9.0, "looking", job=RETRIED),
        "never told",
        RETRIED,
    ),
    "a watcher is never told the end": (
        lambda r: r.tell(9.0, "watching", job=RETRIED),
        "never told",
        RETRIED,
    ),
    "events come in another order": (
        lambda r: _edit(r, "watched", PLAIN, facts={"ids": ["1-2", "1-1"], "gaps": 0}),
        "events out of order",
        PLAIN,
    ),
    "a sound order is refused": (
        lambda r: r.tell(9.0, "refused", kind="instant", code=422, text="no"),
        "refused",
        "",
    ),
    "an error of the server": (
        lambda r: r.tell(9.0, "answer", code=500, text="oops"),
        "server error",
        "",
    ),
    "a process ends by itself": (
        lambda r: r.tell(9.0, "exited", who="worker-1", pid=999, code=1),
        "exit",
        "",
    ),
    "a worker is killed by nobody": (
        lambda r: r.tell(9.0, "exited", who="worker-1", pid=999, code=-9),
        "exit",
        "",
    ),
    "a worker gives up without a stuck body": (
        lambda r: r.tell(9.0, "exited", who="worker-1", pid=999, code=70),
        "exit",
        "",
    ),
    "a process does not stop": (
        lambda r: r.tell(9.0, "overdue", who="worker-1", pid=WORKER),
        "overdue",
        "",
    ),
    "a lease is left": (
        lambda r: r.snapshot.leases.append({"job_id": PLAIN, "fence": 1}),
        "left over",
        PLAIN,
    ),
    "something is left in the outbox": (
        lambda r: r.snapshot.outbox.append({"job_id": PLAIN}),
        "left over",
        PLAIN,
    ),
    "a join is left undecided": (
        lambda r: r.snapshot.joins.append({"root_id": CHAIN}),
        "left over",
        CHAIN,
    ),
    "an entry is left in a stream": (
        lambda r: r.snapshot.queues.append(Queue("heavy", 0, 1)),
        "left over",
        "",
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_it_finds_what_is_planted(planted: str) -> None:
    """The violation is found, under its rule, and names whom it befell."""
    doctor, rule, job = PLANTED[planted]
    run = clean_run()
    doctor(run)
    found = check(run.lines, run.snapshot)
    assert (rule, job) in {(violation.rule, violation.job) for violation in found}
    assert all(violation.text for violation in found)


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        (-9, [Line(1.0, "signal", pid=5, code=9)]),
        (-9, [Line(1.0, "dying", pid=5, text="kill")]),
        (9, [Line(1.0, "dying", pid=5, text="exit")]),
        (0, [Line(1.0, "signal", pid=5, code=15)]),
        (70, [Line(1.0, "began", pid=5, kind="storm.stuck", job=PLAIN)]),
    ],
)
def test_exits_that_something_explains(code: int, lines: list[Line]) -> None:
    """What was done to a process, or what its body does, explains how it ended."""
    run = clean_run()
    ending = Line(2.0, "exited", who="worker-3", pid=5, code=code)
    found = check([*run.lines, *lines, ending], run.snapshot)
    assert not any(violation.rule == "exit" for violation in found)


def test_who_was_taken_over_is_forgiven_what_only_he_can_do() -> None:
    """A frozen body that wakes may run on and call its step late: two bodies, one outcome."""
    run = clean_run()
    row = run.job(PAID)
    row.worker_losses = 1
    _outcome(run, PAID, "lost")
    _call(run, 3.5, attempt=1, status="again", pid=CHILD)
    run.tell(3.6, "finished", job=PAID, attempt=1, pid=CHILD)
    assert check(run.lines, run.snapshot) == []


def test_a_story_is_told_in_order() -> None:
    """The history and the ledger of one job, by time, with what befell it."""
    run = clean_run()
    run.tell(3.4, "fault", kind="kill", who="worker-1", status="begins")
    texts = story(Evidence(run.lines, run.snapshot), LOST)
    moments = [float(text.split()[0]) for text in texts]
    assert moments == sorted(moments)
    told = "\n".join(texts)
    for part in ("accepted", "began", "is lost", "worker-1: kill", "it is succeeded"):
        assert part in told


def test_a_chain_is_told_with_its_steps() -> None:
    run = clean_run()
    told = "\n".join(story(Evidence(run.lines, run.snapshot), CHAIN))
    assert told.count("began") == 2
    assert FIRST in told
