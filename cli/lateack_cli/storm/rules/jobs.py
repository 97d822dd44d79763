"""Accepted, ended, one outcome, one job a key and a tick."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise

from lateack_cli.storm.evidence import TOLERANCE, WORKFLOW, Evidence, Rule, Violation
from lateack_cli.storm.expected import JUDGES
from lateack_cli.storm.snapshot import JobRow
from lateack_cli.storm.tasks import RETRY_AFTER, TICK, TICKS

MAX_WORKER_LOSSES = 3
# How the service itself ends a job, other than for the body's sake.
NEVER = ("PendingTimeout", "UnknownTask")


def accepted_jobs_are_kept(evidence: Evidence) -> Iterator[Violation]:
    """I1: what was accepted is in the ledger."""
    for line in evidence.told("accepted", "replayed"):
        if line.job not in evidence.jobs:
            yield Violation("lost", f"it was {line.what} and is not in the ledger", line.job)


def jobs_end(evidence: Evidence) -> Iterator[Violation]:
    """I1: every job reaches a terminal state, also those that were accepted unheard."""
    for job in evidence.jobs.values():
        if job.completed_at is None:
            yield Violation("unfinished", f"it is {job.status} and nothing moves it", job.id)


def one_outcome(evidence: Evidence) -> Iterator[Violation]:
    """I2: whoever saw the end of a job saw the same one."""
    for line in evidence.told("seen"):
        job = evidence.jobs.get(line.job)
        if line.code != 200:
            yield Violation("hidden", f"its own caller got {line.code}", line.job)
        elif job is not None and job.completed_at is not None:
            seen = {
                "status": line.status,
                "completed_at": datetime.fromisoformat(line.text),
                "error_code": line.facts.get("error_code"),
                "attempt": line.facts.get("attempt"),
                "result": line.facts.get("result"),
            }
            kept = {
                "status": job.status,
                "completed_at": job.completed_at,
                "error_code": job.error_code,
                "attempt": job.attempt,
                "result": evidence.results.get(job.id),
            }
            for name, value in seen.items():
                if value != kept[name]:
                    text = f"its caller saw {name} {value!s}, the ledger holds {kept[name]!s}"
                    yield Violation("two outcomes", text, job.id)
                    break


def outcomes_are_expected(evidence: Evidence) -> Iterator[Violation]:
    """A job ends as its body leads to, or as the storm explains."""
    for job in evidence.jobs.values():
        if job.completed_at is None or job.engine == WORKFLOW:
            continue
        judge = JUDGES.get(job.task)
        if job.status == "cancelled":
            problem = _cancelled(evidence, job)
        elif job.error_code == "WorkerLost":
            problem = _worker_lost(job)
        elif job.error_code == "Expired":
            problem = None if job.expires_at else "it has no expiry"
        elif job.error_code == "UpstreamFailed":
            problem = None if job.waits_for else "it waits for no other"
        elif job.error_code in NEVER:
            problem = "workers were there all the time"
        else:
            problem = judge(job, evidence.results.get(job.id)) if judge else None
        if problem is not None:
            text = f"it is {job.status} {job.error_code or ''}".rstrip() + f", but {problem}"
            yield Violation("wrong outcome", text, job.id)


def _cancelled(evidence: Evidence, job: JobRow) -> str | None:
    asked = evidence.of(job.id, "cancel") or evidence.of(job.root_id or "", "cancel")
    return None if asked else "nobody cancelled it"


def _worker_lost(job: JobRow) -> str | None:
    if job.worker_losses >= MAX_WORKER_LOSSES or job.attempt > job.max_retries:
        return None
    return f"it lost {job.worker_losses} workers, on attempt {job.attempt}"


def cancelled_stay_cancelled(evidence: Evidence) -> Iterator[Violation]:
    """What was cancelled before a body began never runs."""
    for job in evidence.jobs.values():
        if job.status == "cancelled" and not evidence.attempts[job.id]:
            for line in evidence.of(job.id, "began"):
                text = f"a body began (process {line.pid}) though no attempt is recorded"
                yield Violation("ran though cancelled", text, job.id)
                break


def in_time(evidence: Evidence) -> Iterator[Violation]:
    """No body before its job's time, no start after its expiry."""
    for job in evidence.jobs.values():
        began = evidence.of(job.id, "began")
        waited = not any(row.outcome == "retried" for row in evidence.attempts[job.id])
        if began and waited and began[0].at < job.run_at.timestamp() - TOLERANCE:
            early = job.run_at.timestamp() - began[0].at
            yield Violation("too early", f"its body began {early:.2f} s before its time", job.id)
        for before, after in pairwise(evidence.attempts[job.id]):
            paused = before.outcome == "retried" and job.task == "storm.again"
            if paused and after.started_at is not None:
                pause = (after.started_at - before.ended_at).total_seconds()
                if pause < RETRY_AFTER - TOLERANCE:
                    text = f"it asked for {RETRY_AFTER} s before its next attempt, and got {pause}"
                    yield Violation("too early", text, job.id)
        if job.expires_at and job.started_at and job.started_at > job.expires_at:
            late = (job.started_at - job.expires_at).total_seconds()
            yield Violation("too late", f"it started {late:.2f} s after its expiry", job.id)


def one_job_a_key(evidence: Evidence) -> Iterator[Violation]:
    """I4: a key stands for one job and one content, whoever asks and however often."""
    ids: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for line in evidence.told("accepted", "replayed"):
        if line.key:
            ids[line.tenant, line.key][line.job] = line.text
    kept = {(row.tenant_id, row.key): row.job_id for row in evidence.snapshot.keys}
    for (tenant, key), jobs in ids.items():
        one = next(iter(jobs))
        if len(jobs) > 1:
            text = f"{tenant}'s key {key} was answered with {len(jobs)} jobs: {', '.join(jobs)}"
            yield Violation("two jobs for a key", text, one)
        elif kept.get((tenant, key)) != one:
            text = f"{tenant}'s key {key} stands for {kept.get((tenant, key))} in the ledger"
            yield Violation("two jobs for a key", text, one)


def one_job_a_request(evidence: Evidence) -> Iterator[Violation]:
    """I4, CLI-01: however often a request travelled, it made one job."""
    made: dict[tuple[str, str], list[str]] = defaultdict(list)
    for job in evidence.jobs.values():
        if job.external_ref and job.root_id in (None, job.id):
            made[job.tenant_id, job.external_ref].append(job.id)
    for (tenant, reference), jobs in made.items():
        if len(jobs) > 1:
            text = f"{tenant}'s request {reference} made {len(jobs)} jobs: {', '.join(jobs)}"
            yield Violation("two jobs for a request", text, jobs[0])


def contents_of_a_key(evidence: Evidence) -> Iterator[Violation]:
    """I4: a key that is used with other content is refused."""
    contents: dict[tuple[str, str], set[str]] = defaultdict(set)
    for line in evidence.told("accepted", "replayed"):
        if line.key:
            contents[line.tenant, line.key].add(line.text)
            if len(contents[line.tenant, line.key]) > 1:
                text = f"{line.tenant}'s key {line.key} was taken with other content"
                yield Violation("other content for a key", text, line.job)


def no_tick_twice(evidence: Evidence) -> Iterator[Violation]:
    """I6: each tick made one job, none was left out, and no such job came of anything else."""
    ticks = sorted(evidence.snapshot.ticks, key=lambda tick: tick.due_at)
    made = Counter(tick.job_id for tick in ticks)
    for job in evidence.jobs.values():
        if job.task == TICKS and made[job.id] != 1:
            yield Violation("tick", f"{made[job.id]} ticks made it", job.id)
    for tick in ticks:
        # At the end of the storm the clock is stopped, so that there is an end.
        if tick.reason != "paused" and tick.job_id not in evidence.jobs:
            text = f"the tick of {tick.due_at} is {tick.outcome}, and there is no job of it"
            yield Violation("tick", text)
    for before, after in pairwise(ticks):
        pause = (after.due_at - before.due_at).total_seconds()
        if pause != TICK:
            text = f"the tick of {before.due_at} is followed by that of {after.due_at}"
            yield Violation("tick", text)


RULES: tuple[Rule, ...] = (
    accepted_jobs_are_kept,
    jobs_end,
    one_outcome,
    outcomes_are_expected,
    cancelled_stay_cancelled,
    in_time,
    one_job_a_key,
    one_job_a_request,
    contents_of_a_key,
    no_tick_twice,
)
