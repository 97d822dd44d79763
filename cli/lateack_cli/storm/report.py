"""What a run has shown: its counts, and of each violation the story of the job."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.console import Console
from rich.table import Table

from .evidence import WORKFLOW, Evidence, Violation
from .history import Line
from .rules.attempts import overlap
from .tasks import TICKS

# Of a rule that is broken often, so many cases are told with their story, the rest is counted.
MOST_STORIES = 2
STORY_BEGIN, STORY_END = 14, 26  # lines kept of a long story
NEAR = 3.0  # seconds before a job's first line in which a fault still matters to it
STATUSES = ("succeeded", "failed", "cancelled")


def print_report(evidence: Evidence, violations: Sequence[Violation], torn: int) -> None:
    """Print the counts, then what was violated."""
    out = Console() if sys.stdout.isatty() else Console(width=100)
    out.print(_jobs_table(evidence))
    out.print()
    out.print(_faults_table(evidence))
    out.print()
    for name, count in _totals(evidence, torn):
        print(f"{count:>8}  {name}")
    print()
    if not violations:
        print("Nothing was violated.")
        return
    by_rule: dict[str, list[Violation]] = defaultdict(list)
    for violation in violations:
        by_rule[violation.rule].append(violation)
    for rule, cases in by_rule.items():
        print(f"VIOLATED: {rule} ({len(cases)} times)")
        for violation in cases[:MOST_STORIES]:
            print(f"  {violation.job or '-'}: {violation.text}")
            for text in story(evidence, violation.job) if violation.job else ():
                print(f"    {text}")
        for violation in cases[MOST_STORIES : MOST_STORIES + 8]:
            print(f"  {violation.job or '-'}: {violation.text}")
        print()


# -- counts -----------------------------------------------------------------------------------


def _jobs_table(evidence: Evidence) -> Table:
    kinds: dict[str, str] = {}
    for line in evidence.told("accepted", "replayed"):
        kinds.setdefault(line.job, line.kind)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for job in evidence.jobs.values():
        alone = job.root_id in (None, job.id)
        other = "ticks" if job.task == TICKS else "accepted unheard" if alone else "steps"
        kind = kinds.get(job.id, other)
        counts[kind][job.status if job.completed_at else "not ended"] += 1
    table = _table("jobs", *STATUSES, "not ended", "all")
    for kind in sorted(counts):
        _row(table, kind, [counts[kind][status] for status in (*STATUSES, "not ended")])
    total: Counter[str] = sum(counts.values(), Counter())
    _row(table, "all", [total[status] for status in (*STATUSES, "not ended")])
    return table


def _faults_table(evidence: Evidence) -> Table:
    counts: Counter[str] = Counter()
    met_nobody: Counter[str] = Counter()
    seconds: dict[str, float] = defaultdict(float)
    for line in evidence.told("fault"):
        if line.status == "begins":
            counts[line.kind] += 1
            seconds[line.kind] += line.facts.get("seconds", 0.0)
        elif "nobody there" in line.facts:
            met_nobody[line.kind] += 1
    table = _table("faults", "times", "seconds", "met nobody")
    for kind in sorted(counts):
        table.add_row(kind, str(counts[kind]), f"{seconds[kind]:.0f}", str(met_nobody[kind] or ""))
    table.add_row("all", str(counts.total()), f"{sum(seconds.values()):.0f}", "")
    return table


def _totals(evidence: Evidence, torn: int) -> list[tuple[str, int]]:
    def told(what: str) -> int:
        return sum(1 for _ in evidence.told(what))

    outcomes = Counter(row.outcome for row in evidence.snapshot.attempts)
    ended_early = {(job.id, job.error_code) for job in evidence.jobs.values() if job.error_code}
    lost = sum(code == "WorkerLost" for _, code in ended_early)
    both = sum(1 for job in evidence.jobs if overlap(evidence, job) is not None)
    return [
        ("submissions accepted", told("accepted")),
        ("repeats answered with the first job", told("replayed")),
        ("submissions refused", told("refused")),
        ("submissions whose answer was lost", told("unknown")),
        ("cancellations asked for", told("cancel")),
        ("bodies that began", told("began")),
        ("attempts tried again", outcomes["retried"]),
        ("attempts lost with their worker, and taken over", outcomes["lost"]),
        ("attempts handed back", outcomes["handed_back"]),
        ("jobs ended as WorkerLost", lost),
        ("jobs of which two bodies ran at once, one outcome all the same", both),
        ("rows written in transactions that committed", len(evidence.snapshot.effects)),
        ("transactions begun", told("effect")),
        ("steps that took effect", len(evidence.snapshot.receipts)),
        ("steps called", told("called")),
        ("steps in doubt about which the outside was asked", told("asked")),
        ("times an end was seen by its caller", told("seen")),
        ("jobs watched live to their end", told("watched")),
        ("questions about another tenant's job", told("pried")),
        ("processes started", told("started")),
        ("lines of history torn by a kill", torn),
    ]


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(names):
        table.add_column(name, justify="right" if place else "left", no_wrap=True)
    return table


def _row(table: Table, name: str, counts: Iterable[int]) -> None:
    counts = list(counts)
    table.add_row(name, *(str(count or "") for count in counts), str(sum(counts)))


# -- the story of a job -----------------------------------------------------------------------


def story(evidence: Evidence, job_id: str) -> list[str]:
    """What is known of a job, in the order of time; the middle of a long one is left out."""
    job = evidence.jobs.get(job_id)
    told = [(line.at, words(line)) for line in evidence.of(job_id)]
    steps = evidence.steps_of_workflow(job_id) if job and job.engine == WORKFLOW else []
    told += [(line.at, words(line)) for step in steps for line in evidence.of(step.id)]
    for row in (job, *steps):
        if row is not None:
            told += _ledger(evidence, row.id)
    told += _faults_nearby(evidence, told)
    told.sort(key=lambda moment: moment[0])
    begin = evidence.lines[0].at if evidence.lines else 0.0
    texts = [f"{at - begin:8.3f} s  {text}" for at, text in told]
    if len(texts) > STORY_BEGIN + STORY_END:
        left_out = f"… {len(texts) - STORY_BEGIN - STORY_END} lines …"
        texts = [*texts[:STORY_BEGIN], left_out, *texts[-STORY_END:]]
    return texts


def words(line: Line) -> str:
    """A line of history in words."""
    who = f"process {line.pid}" if line.pid else line.tenant
    parts = [line.what, line.kind, line.status, line.key, line.text, str(line.code or "")]
    if line.attempt:
        parts.append(f"attempt {line.attempt}")
    if line.facts:
        parts.append(str(line.facts)[:160])
    return f"{who}: {' '.join(part for part in parts if part)}"


def _ledger(evidence: Evidence, job_id: str) -> list[tuple[float, str]]:
    job = evidence.jobs[job_id]
    moments: list[tuple[datetime | None, str]] = [
        (job.created_at, f"{job.task} {job.args} of {job.tenant_id} was created, {job.id}"),
        (job.cancel_requested_at, "its cancellation was asked for"),
        (
            job.completed_at,
            f"it is {job.status} {job.error_code or ''} attempt {job.attempt} fence {job.fence} "
            f"losses {job.worker_losses} result {evidence.results.get(job_id)!r}"[:200],
        ),
    ]
    for row in evidence.attempts[job_id]:
        what = f"attempt {row.attempt}, fence {row.fence}"
        moments.append((row.started_at, f"{what} is claimed by worker {row.worker_id}"))
        moments.append((row.ended_at, f"{what} is {row.outcome} {row.error_code or ''}"))
    for step in evidence.steps[job_id]:
        what = f"step {step.name}, fence {step.fence}"
        moments.append((step.began_at, f"{what} began, {step.begun} times"))
        moments.append((step.ended_at, f"{what} is kept with {step.result!r}"))
    moments += [
        (effect.at, f"a row was written by attempt {effect.attempt}")
        for effect in evidence.effects[job_id]
    ]
    return [(at.timestamp(), f"ledger: {text}") for at, text in moments if at is not None]


def _faults_nearby(
    evidence: Evidence, told: Sequence[tuple[float, str]]
) -> list[tuple[float, str]]:
    """Faults of everybody's, or of a process that ran the job, while it lived."""
    if not told:
        return []
    first, last = min(told)[0] - NEAR, max(told)[0]
    names = {line.pid: line.who for line in evidence.told("started")}
    pids = {pid for pid in names if any(f"process {pid}:" in text for _, text in told)}
    whom = {"broker", "database", "all"} | {names[pid] for pid in pids}
    return [
        (line.at, f"{line.who}: {line.kind} {line.text} {line.status} {line.facts}")
        for line in evidence.told("fault")
        if first <= line.at <= last and line.who in whom
    ]
