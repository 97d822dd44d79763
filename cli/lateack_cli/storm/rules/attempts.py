"""Attempts are counted right, and every body that began was claimed."""

from __future__ import annotations

from collections.abc import Iterator

from lateack_cli.storm.evidence import TOLERANCE, WORKFLOW, Evidence, Rule, Violation
from lateack_cli.storm.history import Line


def attempts_are_explained(evidence: Evidence) -> Iterator[Violation]:
    """I10: `attempt` is the number of attempts that ended other than by being handed back."""
    for job in evidence.jobs.values():
        if job.engine == WORKFLOW:
            continue
        counted = evidence.counted(job)
        wanted = len(counted) + evidence.unrecorded(job)
        if job.completed_at is not None and job.attempt != wanted:
            outcomes = ", ".join(row.outcome for row in evidence.attempts[job.id]) or "none"
            text = f"its attempt is {job.attempt}; the attempts recorded: {outcomes}"
            yield Violation("attempts unexplained", text, job.id)
        elif [row.attempt for row in counted] != list(range(1, len(counted) + 1)):
            text = f"its attempts are numbered {[row.attempt for row in counted]}"
            yield Violation("attempts unexplained", text, job.id)


def losses_are_counted(evidence: Evidence) -> Iterator[Violation]:
    """A job's lost workers are its lost attempts."""
    for job in evidence.jobs.values():
        lost = sum(row.outcome == "lost" for row in evidence.attempts[job.id])
        if job.worker_losses != lost:
            text = f"it counts {job.worker_losses} lost workers, and {lost} lost attempts"
            yield Violation("losses unexplained", text, job.id)


def bodies_were_claimed(evidence: Evidence) -> Iterator[Violation]:
    """Each body that began has a claim of its own, however often its entry was delivered."""
    for job in evidence.jobs.values():
        began = evidence.of(job.id, "began")
        claims = len(evidence.attempts[job.id]) + evidence.unrecorded(job)
        if job.completed_at is not None and len(began) > claims:
            text = f"{len(began)} bodies began on {claims} claims"
            yield Violation("bodies unexplained", text, job.id)


def none_after_the_end(evidence: Evidence) -> Iterator[Violation]:
    """BRK-02: no body begins after its job's end, unless its lease was lost on the way."""
    for job in evidence.jobs.values():
        if job.completed_at is None or evidence.taken_over(job):
            continue
        end = job.completed_at.timestamp()
        for line in evidence.of(job.id, "began"):
            if line.at > end + TOLERANCE:
                text = f"a body began {line.at - end:.2f} s after its end"
                yield Violation("ran after its end", text, job.id)
                break


def no_two_at_once(evidence: Evidence) -> Iterator[Violation]:
    """I3: two bodies of one job at the same time only where a lease was lost."""
    for job in evidence.jobs.values():
        if not evidence.taken_over(job) and (pair := overlap(evidence, job.id)):
            text = f"two bodies ran at once, in processes {pair[0].pid} and {pair[1].pid}"
            yield Violation("two at once", text, job.id)


def overlap(evidence: Evidence, job: str) -> tuple[Line, Line] | None:
    """Two bodies of a job of which one began before the other had ended."""
    running: dict[tuple[int, int], Line] = {}
    for line in sorted(evidence.of(job, "began", "finished"), key=lambda line: line.at):
        body = (line.pid, line.attempt)
        if line.what == "finished":
            running.pop(body, None)
            continue
        for other in running.values():
            # One that never told its end may have died long ago.
            if any(
                end.at > line.at and (end.pid, end.attempt) == (other.pid, other.attempt)
                for end in evidence.of(job, "finished")
            ):
                return other, line
        running[body] = line
    return None


RULES: tuple[Rule, ...] = (
    attempts_are_explained,
    losses_are_counted,
    bodies_were_claimed,
    none_after_the_end,
    no_two_at_once,
)
