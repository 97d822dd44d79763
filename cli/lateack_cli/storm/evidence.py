"""History and snapshot, brought together by job for the rules to look at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .history import Line
from .snapshot import AttemptRow, EffectRow, JobRow, Snapshot, StepRow

# Seconds by which the moments of two witnesses may differ, though it is one machine's clock: a line
# is written a moment after what it tells, a statement's time is that of its beginning.
TOLERANCE = 0.05
WORKFLOW = "workflow"


@dataclass(frozen=True)
class Violation:
    """A promise that was broken. `job` is whose story explains it, "" when it is nobody's."""

    rule: str
    text: str
    job: str = ""


class Evidence:
    """What the rules look at."""

    def __init__(self, lines: Iterable[Line], snapshot: Snapshot) -> None:
        self.lines = list(lines)
        self.snapshot = snapshot
        self.jobs: dict[str, JobRow] = {job.id: job for job in snapshot.jobs}
        self.results: dict[str, Any] = {row.job_id: row.result for row in snapshot.results}
        self.attempts: dict[str, list[AttemptRow]] = defaultdict(list)
        for row in sorted(snapshot.attempts, key=lambda row: row.fence):
            self.attempts[row.job_id].append(row)
        self.steps: dict[str, list[StepRow]] = defaultdict(list)
        for step in snapshot.steps:
            self.steps[step.job_id].append(step)
        self.effects: dict[str, list[EffectRow]] = defaultdict(list)
        for effect in snapshot.effects:
            self.effects[effect.job_id].append(effect)
        self._told: dict[str, list[Line]] = defaultdict(list)
        self._of_job: dict[str, list[Line]] = defaultdict(list)
        for line in self.lines:
            self._told[line.what].append(line)
            if line.job:
                self._of_job[line.job].append(line)

    def told(self, *whats: str) -> Iterator[Line]:
        """The lines that tell one of these."""
        for what in whats:
            yield from self._told[what]

    def of(self, job: str, *whats: str) -> list[Line]:
        """A job's lines, in the order in which they were written; those that tell one of these."""
        return [line for line in self._of_job[job] if not whats or line.what in whats]

    def steps_of_workflow(self, root: str) -> list[JobRow]:
        """The jobs of a chain, in order."""
        steps = [job for job in self.jobs.values() if job.root_id == root and job.id != root]
        by_wait = {job.waits_for: job for job in steps}
        ordered: list[JobRow] = []
        following = by_wait.get(None)
        while following is not None and len(ordered) < len(steps):
            ordered.append(following)
            following = by_wait.get(following.feeds)
        return ordered

    def counted(self, job: JobRow) -> list[AttemptRow]:
        """The attempts that used one up."""
        return [row for row in self.attempts[job.id] if row.outcome != "handed_back"]

    def unrecorded(self, job: JobRow) -> int:
        """1 when the last attempt left no row, as a first one that succeeds does; else 0."""
        rows = self.attempts[job.id]
        succeeded = job.status == "succeeded" and job.engine != WORKFLOW
        return int(succeeded and not any(row.outcome == "succeeded" for row in rows))

    def taken_over(self, job: JobRow) -> bool:
        """Whether another's word ended one of its attempts, while its body may have run on."""
        return job.error_code == "TimeLimitExceeded" or any(
            row.outcome in ("lost", "handed_back") for row in self.attempts[job.id]
        )


Rule = Callable[[Evidence], Iterator[Violation]]
