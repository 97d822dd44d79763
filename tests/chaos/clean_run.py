"""A small run in which nothing went wrong, as history and snapshot; tests doctor copies of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lateack_cli.storm.history import Line
from lateack_cli.storm.snapshot import (
    AttemptRow,
    EffectRow,
    JobRow,
    KeyRow,
    Queue,
    ResultRow,
    Snapshot,
    StepRow,
    TickRow,
)

START = datetime(2030, 1, 1, tzinfo=UTC).timestamp()
WORKER, OTHER, CHILD = 101, 102, 201  # process ids

# One job of each kind that some rule looks at in particular.
PLAIN, RETRIED, PAUSED, LOST = "plain", "retried", "paused", "lost"
CANCELLED, DELAYED, EXPIRED = "cancelled", "delayed", "expired"
BOOKED, UNBOOKED, PAID, KEYED = "booked", "unbooked", "paid", "keyed"
CHAIN, FIRST, SECOND = "chain", "chain-1", "chain-2"
TICKED = "ticked"
BROKEN, BROKEN_FIRST, BROKEN_SECOND = "broken", "broken-1", "broken-2"

Fields = dict[str, Any]


def moment(seconds: float) -> datetime:
    """So many seconds after the start."""
    return datetime.fromtimestamp(START + seconds, UTC)


def at(seconds: float) -> float:
    return START + seconds


@dataclass
class Run:
    """History and snapshot, to be doctored in place."""

    lines: list[Line]
    snapshot: Snapshot

    def job(self, job_id: str) -> JobRow:
        return next(job for job in self.snapshot.jobs if job.id == job_id)

    def step(self, job_id: str, name: str) -> StepRow:
        rows = self.snapshot.steps
        return next(row for row in rows if (row.job_id, row.name) == (job_id, name))

    def tell(self, seconds: float, what: str, **fields: Any) -> None:
        """Add a line."""
        self.lines.append(Line(at(seconds), what, **fields))

    def forget(self, what: str, **fields: Any) -> None:
        """Take lines away that tell this and have these fields."""
        left = [
            line
            for line in self.lines
            if line.what != what or any(getattr(line, n) != v for n, v in fields.items())
        ]
        assert len(left) < len(self.lines)
        self.lines = left


def clean_run() -> Run:
    """A run that keeps every promise."""
    run = Run([], Snapshot(queues=[Queue("default", 0, 0), Queue("heavy", 0, 0)]))
    for pid, name in ((WORKER, "worker-1"), (OTHER, "worker-2"), (301, "service-1")):
        run.tell(0.0, "started", who=name, pid=pid)
    _plain_ones(run)
    _ones_with_effects(run)
    _chains(run)
    _callers(run)
    run.tell(20.0, "calm")
    for pid, name in ((WORKER, "worker-1"), (OTHER, "worker-2")):
        run.tell(21.0, "signal", who=name, pid=pid, code=15)
        run.tell(22.0, "exited", who=name, pid=pid, code=0)
    run.tell(3.0, "signal", who="service-1", pid=301, code=9)
    run.tell(3.1, "exited", who="service-1", pid=301, code=-9)
    for second in (1, 2, 3):
        job = f"{TICKED}-{second}"
        _add(run, job, "storm.tick", created=second + 0.1, result=1, external_ref=None)
        run.forget("accepted", job=job)
        _body(run, job, second + 0.2, second + 0.3)
        run.snapshot.ticks.append(TickRow("schedule", moment(second), "fired", job, 1))
    run.snapshot.ticks.append(TickRow("schedule", moment(4), "skipped", reason="paused"))
    return run


def _add(
    run: Run,
    job_id: str,
    task: str,
    *,
    created: float,
    result: Any = None,
    tenant: str = "acme",
    kind: str = "any",
    **fields: Any,
) -> JobRow:
    usual: dict[str, Any] = {"status": "succeeded", "attempt": 1, "external_ref": job_id}
    times = {"run_at": moment(created), "completed_at": moment(created + 1.0)}
    job = JobRow(
        id=job_id,
        tenant_id=tenant,
        task=task,
        created_at=moment(created),
        **(usual | times | fields),
    )
    run.snapshot.jobs.append(job)
    if job.status == "succeeded" and result is not None:
        run.snapshot.results.append(ResultRow(job_id, result))
    if job.root_id in (None, job_id):
        run.tell(created, "accepted", job=job_id, tenant=tenant, kind=kind, text=job_id)
    return job


def _body(
    run: Run, job_id: str, began: float, ended: float | None, attempt: int = 1, pid: int = WORKER
) -> None:
    run.tell(began, "began", job=job_id, attempt=attempt, pid=pid)
    if ended is not None:
        run.tell(ended, "finished", job=job_id, attempt=attempt, pid=pid, status="returned")


def _attempt(run: Run, job_id: str, fence: int, attempt: int, outcome: str, end: float) -> None:
    run.snapshot.attempts.append(AttemptRow(job_id, fence, attempt, outcome, moment(end)))


def _plain_ones(run: Run) -> None:
    _add(run, PLAIN, "storm.instant", created=1.0, args=[7], result=7)
    _body(run, PLAIN, 1.2, 1.3)
    _add(run, RETRIED, "storm.flaky", created=1.0, args=[1], result=2, attempt=2)
    _body(run, RETRIED, 1.2, 1.3)
    _body(run, RETRIED, 1.6, 1.7, attempt=2)
    _attempt(run, RETRIED, 1, 1, "retried", 1.3)
    _attempt(run, RETRIED, 2, 2, "succeeded", 2.0)
    lost = _add(run, LOST, "storm.slow", created=1.0, args=[1.0], result=2, attempt=2)
    lost.worker_losses, lost.completed_at = 1, moment(6.0)
    # The first one was frozen and woke again: two bodies, one outcome.
    _body(run, LOST, 1.2, 7.0)
    _body(run, LOST, 4.0, 5.9, attempt=2, pid=OTHER)
    _attempt(run, LOST, 1, 1, "lost", 3.5)
    _attempt(run, LOST, 3, 2, "succeeded", 6.0)
    _add(run, PAUSED, "storm.again", created=1.0, args=[1], result=2, attempt=2)
    _body(run, PAUSED, 1.2, 1.3)
    _body(run, PAUSED, 2.9, 3.0, attempt=2)
    _attempt(run, PAUSED, 1, 1, "retried", 1.3)
    _attempt(run, PAUSED, 2, 2, "succeeded", 3.0)
    run.snapshot.attempts[-1].started_at = moment(2.85)
    run.job(PAUSED).completed_at = moment(3.0)
    _add(run, CANCELLED, "storm.instant", created=1.0, args=[1], status="cancelled", attempt=0)
    run.tell(1.5, "cancel", job=CANCELLED, tenant="acme", code=202)
    _add(run, DELAYED, "storm.instant", created=1.0, args=[1], result=1, run_at=moment(4.0))
    _body(run, DELAYED, 4.1, 4.2)
    run.job(DELAYED).completed_at = moment(4.3)
    late: Fields = {"error_code": "Expired", "expires_at": moment(2.0)}
    _add(run, EXPIRED, "storm.instant", created=1.0, args=[1], status="failed", attempt=0, **late)


def _ones_with_effects(run: Run) -> None:
    _add(run, BOOKED, "storm.book", created=2.0, args=[5, ""], result={"booked": 5})
    _body(run, BOOKED, 2.2, 2.4)
    run.snapshot.effects.append(EffectRow(BOOKED, 1, moment(2.3)))
    failed: Fields = {
        "status": "failed",
        "error_code": "WorkerLost",
        "worker_losses": 3,
        "attempt": 3,
    }
    _add(run, UNBOOKED, "storm.book", created=2.0, args=[6, ""], **failed)
    for number in (1, 2, 3):
        _attempt(run, UNBOOKED, 2 * number, number, "lost", 2.0 + number / 10)
    paid = {"reserve": "r1", "charge": "c1"}
    _add(run, PAID, "storm.pay", created=2.0, args=["raise after", True], result=paid, attempt=2)
    _body(run, PAID, 2.1, 2.3)
    _body(run, PAID, 2.6, 2.8, attempt=2)
    _attempt(run, PAID, 1, 1, "retried", 2.3)
    _attempt(run, PAID, 2, 2, "succeeded", 3.0)
    for seconds, name, receipt in ((2.15, "reserve", "r1"), (2.25, "charge", "c1")):
        token = f"{PAID}:{name}"
        run.snapshot.receipts[token] = receipt
        first = {"pid": WORKER, "attempt": 1, "status": "first"}
        run.tell(seconds, "called", job=PAID, key=token, text=receipt, **first)
        ended = moment(2.7 if name == "charge" else 2.2)
        run.snapshot.steps.append(
            StepRow(PAID, name, 1, 1, 1, moment(seconds - 0.02), ended, receipt)
        )
    run.tell(2.65, "asked", job=PAID, key=f"{PAID}:charge", attempt=2, pid=WORKER, text="c1")


def _chains(run: Run) -> None:
    chain: Fields = {"waits_for": "join-2", "root_id": CHAIN, "engine": "workflow", "attempt": 0}
    _add(run, CHAIN, "storm.first", created=5.0, result=["a", "b"], **chain)
    run.job(CHAIN).completed_at = moment(7.0)
    first: Fields = {"root_id": CHAIN, "feeds": "join-1", "completed_at": moment(6.0)}
    _add(run, FIRST, "storm.first", created=5.0, args=["a"], result=["a"], **first)
    second: Fields = {"root_id": CHAIN, "waits_for": "join-1", "feeds": "join-2"}
    second["completed_at"] = moment(7.0)
    _add(run, SECOND, "storm.link", created=5.0, args=["b"], result=["a", "b"], **second)
    _body(run, FIRST, 5.2, 5.9)
    _body(run, SECOND, 6.2, 6.9)
    failed: Fields = {"status": "failed", "error_code": "UpstreamFailed", "attempt": 0}
    root: Fields = {"waits_for": "join-4", "root_id": BROKEN, "engine": "workflow"}
    _add(run, BROKEN, "storm.first", created=5.0, **root, **failed)
    first = {"root_id": BROKEN, "feeds": "join-3", "status": "failed", "error_code": "ValueError"}
    _add(run, BROKEN_FIRST, "storm.failing", created=5.0, **first)
    _attempt(run, BROKEN_FIRST, 1, 1, "failed", 6.0)
    _body(run, BROKEN_FIRST, 5.2, 5.9)
    second = {"root_id": BROKEN, "waits_for": "join-3", "feeds": "join-4"}
    _add(run, BROKEN_SECOND, "storm.link", created=5.0, args=["b"], **second, **failed)


def _callers(run: Run) -> None:
    _add(run, KEYED, "storm.instant", created=1.0, args=[3], result=3, tenant="globex")
    run.forget("accepted", job=KEYED)
    _body(run, KEYED, 1.2, 1.3)
    key = {"job": KEYED, "tenant": "globex", "kind": "shared key", "key": "shared", "text": KEYED}
    run.tell(1.0, "accepted", **key)
    run.tell(9.0, "replayed", **key)
    run.snapshot.keys.append(KeyRow("globex", "shared", KEYED))
    run.tell(9.5, "refused", kind="conflict", code=409, key="order-9")
    run.tell(9.5, "refused", kind="instant", code=503)
    run.tell(9.6, "pried", job=KEYED, tenant="acme", kind="get", code=404)
    run.tell(9.7, "listed", tenant="globex", facts={"jobs": [KEYED]})
    run.tell(9.8, "looking", job=PLAIN, tenant="acme")
    facts = {"result": 7, "attempt": 1, "error_code": None}
    seen = {"job": PLAIN, "tenant": "acme", "code": 200, "status": "succeeded", "facts": facts}
    run.tell(9.9, "seen", text=moment(2.0).isoformat(), **seen)
    run.tell(9.8, "watching", job=PLAIN, tenant="acme")
    ids = ["1-0", "1-1", "1-2"]
    run.tell(9.9, "watched", job=PLAIN, status="succeeded", facts={"ids": ids, "gaps": 0})
