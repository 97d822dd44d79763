"""Tenants, callers, processes, and what is left at the end."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from lateack_cli.storm.evidence import Evidence, Rule, Violation
from lateack_cli.storm.history import Line
from lateack_cli.storm.tasks import OWN_EXIT

STUCK_EXIT = 70
COLD_EXIT = 75  # a cold stop that could not hand every job back
# What the service may answer to each kind of order, besides taking it.
EXPECTED_REFUSALS = {"unknown task": 422, "misfit": 422, "conflict": 409, "batch": 422}
UNAVAILABLE = 503


def tenants_are_apart(evidence: Evidence) -> Iterator[Violation]:
    """I9: another tenant's job is a 404, whatever is asked of it; lists show one's own."""
    for line in evidence.told("pried"):
        if line.code != 404:
            text = f"{line.tenant} asked for it ({line.kind}) and got {line.code}"
            yield Violation("foreign read", text, line.job)
    for line in evidence.told("listed"):
        for job_id in line.facts.get("jobs", ()):
            job = evidence.jobs.get(job_id)
            if job is not None and job.tenant_id != line.tenant:
                text = f"{line.tenant} found it in a list; it is {job.tenant_id}'s"
                yield Violation("foreign read", text, job_id)


def callers_are_told_the_end(evidence: Evidence) -> Iterator[Violation]:
    """I8: who looks or watches until the end learns of it."""
    seen = {line.job for line in evidence.told("seen")}
    for line in evidence.told("looking"):
        if line.job not in seen:
            yield Violation("never told", "its caller looked and was never told its end", line.job)
    ended = {line.job: line for line in evidence.told("watched") if line.status}
    for line in evidence.told("watching"):
        job, last = evidence.jobs.get(line.job), ended.get(line.job)
        if last is None:
            yield Violation("never told", "its watcher was never told its end", line.job)
        elif job is not None and job.status != last.status:
            text = f"its watcher was told {last.status}, the ledger holds {job.status}"
            yield Violation("two outcomes", text, line.job)


def events_come_in_order(evidence: Evidence) -> Iterator[Violation]:
    """I8: the events that a watcher gets go up in their ids; after a gap they may begin anew."""
    for line in evidence.told("watched"):
        ids = [_order(text) for text in line.facts.get("ids", ())]
        down = [(a, b) for a, b in pairwise(ids) if b < a]
        if len(down) > line.facts.get("gaps", 0):
            text = f"an event {down[0][1]} came after {down[0][0]}"
            yield Violation("events out of order", text, line.job)


def _order(event_id: str) -> tuple[int, int]:
    fence, _, seq = event_id.partition("-")
    return int(fence), int(seq)


def refusals_are_expected(evidence: Evidence) -> Iterator[Violation]:
    """What is sound is taken, unless the database is away; nothing is an error of the server."""
    for line in evidence.told("refused"):
        if line.code not in (UNAVAILABLE, EXPECTED_REFUSALS.get(line.kind)):
            text = f"an order of kind {line.kind} was refused with {line.code}: {line.text}"
            yield Violation("refused", text)
    for line in evidence.told("answer"):
        if line.code == 500:
            yield Violation("server error", f"the service answered 500: {line.text}")


def exits_are_explained(evidence: Evidence) -> Iterator[Violation]:
    """No process ends by itself, but for what was done to it, or what its bodies do."""
    signals: dict[int, list[int]] = defaultdict(list)
    dying: dict[int, str] = {}
    stuck = set()
    for line in evidence.lines:
        if line.what == "signal":
            signals[line.pid].append(line.code)
        elif line.what == "dying":
            dying[line.pid] = line.text
        elif line.what == "began" and line.kind == "storm.stuck":
            stuck.add(line.pid)
        elif line.what == "exited" and not _explained(
            line, signals[line.pid], dying.get(line.pid), line.pid in stuck
        ):
            how = f"status {line.code}"
            if line.code < 0:
                how = signal.Signals(-line.code).name
            text = f"{line.who} (process {line.pid}) ended with {how}, and nothing explains it"
            yield Violation("exit", text)
    for line in evidence.told("overdue"):
        text = f"{line.who} (process {line.pid}) did not end when it was asked to"
        yield Violation("overdue", text)


def _explained(line: Line, sent: list[int], dying: str | None, stuck: bool) -> bool:
    if line.code == -signal.SIGKILL:
        return signal.SIGKILL in sent or dying == "kill"
    # A signal that comes before its handler is there ends a process by itself.
    if line.code in (0, -signal.SIGTERM, -signal.SIGQUIT):
        return signal.SIGTERM in sent or signal.SIGQUIT in sent
    if line.code == OWN_EXIT:
        return dying == "exit"
    if line.code == COLD_EXIT:
        return signal.SIGQUIT in sent
    return line.code == STUCK_EXIT and stuck


def nothing_is_left(evidence: Evidence) -> Iterator[Violation]:
    """When all is done, nothing is on its way."""
    snapshot = evidence.snapshot
    for name in ("leases", "outbox", "joins"):
        for row in getattr(snapshot, name)[:3]:
            job = str(row.get("job_id") or row.get("root_id") or "")
            yield Violation("left over", f"{name}: {row}", job)
    for queue in snapshot.queues:
        if queue.waiting or queue.reserved:
            text = f"the streams of {queue.name} hold {queue.waiting} entries that wait and "
            yield Violation("left over", text + f"{queue.reserved} that were read")


RULES: tuple[Rule, ...] = (
    tenants_are_apart,
    callers_are_told_the_end,
    events_come_in_order,
    refusals_are_expected,
    exits_are_explained,
    nothing_is_left,
)
