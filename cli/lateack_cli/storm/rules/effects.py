"""Transactions, steps and chains take effect once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from lateack_cli.storm.evidence import TOLERANCE, WORKFLOW, Evidence, Rule, Violation
from lateack_cli.storm.history import Line
from lateack_cli.storm.snapshot import JobRow, StepRow

BOOKING = "storm.book"


def transactions_commit_with_success(evidence: Evidence) -> Iterator[Violation]:
    """`ctx.transaction()`: one business row for a job that succeeded, none for any other."""
    for job in evidence.jobs.values():
        if job.task == BOOKING and job.completed_at is not None:
            rows = evidence.effects[job.id]
            wanted = int(job.status == "succeeded")
            if len(rows) != wanted:
                text = f"it is {job.status}, and {len(rows)} rows were written in its transactions"
                yield Violation("transaction", text, job.id)
            elif rows and rows[0].attempt != job.attempt:
                text = f"attempt {job.attempt} succeeded, attempt {rows[0].attempt} wrote the row"
                yield Violation("transaction", text, job.id)
    for job_id in evidence.effects.keys() - evidence.jobs.keys():
        yield Violation("transaction", "a row was written for a job that does not exist", job_id)


def steps_take_effect_once(evidence: Evidence) -> Iterator[Violation]:
    """`ctx.step()`: one token a step, one receipt, the one that the ledger keeps."""
    receipts = evidence.snapshot.receipts
    for job in evidence.jobs.values():
        steps = {step.name: step for step in evidence.steps[job.id]}
        calls = _calls(evidence, job)
        for name in calls.keys() | steps.keys():
            tokens = {line.key for line in calls.get(name, ())}
            step = steps.get(name)
            if len(tokens) > 1:
                text = f"step {name} used {len(tokens)} tokens: {', '.join(sorted(tokens))}"
                yield Violation("step", text, job.id)
            elif step is None:
                yield Violation("step", f"step {name} ran and is not in the ledger", job.id)
            elif step.ended_at is not None and receipts.get(f"{job.id}:{name}") != step.result:
                text = f"step {name} is kept with {step.result!r}, the outside has "
                text += repr(receipts.get(f"{job.id}:{name}"))
                yield Violation("step", text, job.id)


def steps_are_not_repeated(evidence: Evidence) -> Iterator[Violation]:
    """A step is called again only where its first call was in doubt."""
    for job in evidence.jobs.values():
        steps = {step.name: step for step in evidence.steps[job.id]}
        for name, calls in _calls(evidence, job).items():
            problem = _repeated(evidence, job, steps.get(name), calls)
            if problem is not None:
                yield Violation("step repeated", f"step {name}: {problem}", job.id)


def _repeated(
    evidence: Evidence, job: JobRow, step: StepRow | None, calls: list[Line]
) -> str | None:
    doubts = sum(row.outcome != "succeeded" for row in evidence.attempts[job.id])
    if len(calls) > 1 + doubts:
        return f"it was called {len(calls)} times, and {doubts} attempts ended in doubt"
    if evidence.taken_over(job):
        # Who was frozen just before a call makes it when he wakes; the token makes it harmless.
        return None
    asks = bool(job.args[1:2] and job.args[1])
    if asks and any(line.status == "again" for line in calls):
        return "it was done again though `reconcile` could have told"
    if step is not None and step.ended_at is not None:
        late = [c for c in calls if c.at > step.ended_at.timestamp() + TOLERANCE]
        if late:
            return f"it was called at attempt {late[0].attempt}, after its result was kept"
    return None


def _calls(evidence: Evidence, job: JobRow) -> dict[str, list[Line]]:
    calls: dict[str, list[Line]] = defaultdict(list)
    for line in evidence.of(job.id, "called"):
        calls[line.key.rpartition(":")[2]].append(line)
    return calls


def succeeded_steps_have_ended(evidence: Evidence) -> Iterator[Violation]:
    """A job that returned what its steps gave has them all in the ledger."""
    for job in evidence.jobs.values():
        result = evidence.results.get(job.id)
        if job.status != "succeeded" or "pay" not in job.task or not isinstance(result, dict):
            continue
        kept = {step.name: step.result for step in evidence.steps[job.id] if step.ended_at}
        if kept != result:
            yield Violation("step", f"it returned {result}, its steps are kept as {kept}", job.id)


# -- chains -----------------------------------------------------------------------------------


def chains_run_in_order(evidence: Evidence) -> Iterator[Violation]:
    """I5: a step's body begins only after the step before it has succeeded."""
    for root in _workflows(evidence):
        before: JobRow | None = None
        for step in evidence.steps_of_workflow(root.id):
            began = evidence.of(step.id, "began")
            if before is not None and began and step.waits_for is not None:
                end = before.completed_at
                if before.status != "succeeded":
                    text = f"its step {step.task} ran though the one before is {before.status}"
                    yield Violation("chain", text, root.id)
                elif end is not None and began[0].at < end.timestamp() - TOLERANCE:
                    early = end.timestamp() - began[0].at
                    text = f"its step {step.task} began {early:.2f} s before the one before ended"
                    yield Violation("chain", text, root.id)
            before = step


def chains_end_with_their_steps(evidence: Evidence) -> Iterator[Violation]:
    """A workflow succeeds with its last step's result, and ends as the step that broke it."""
    for root in _workflows(evidence):
        steps = evidence.steps_of_workflow(root.id)
        # A cancel ends the workflow at once, and a step that was running may still succeed.
        if root.completed_at is None or root.status == "cancelled" or not steps:
            continue
        broken = next((step for step in steps if step.status != "succeeded"), None)
        if broken is None:
            wanted = _links(steps)
            found = evidence.results.get(root.id)
            if root.status != "succeeded":
                yield Violation("chain", f"all its steps succeeded, it is {root.status}", root.id)
            elif found != wanted:
                yield Violation("chain", f"its result is {found!r}, not {wanted!r}", root.id)
        elif root.status == "succeeded":
            text = f"it succeeded though its step {broken.task} is {broken.status}"
            yield Violation("chain", text, root.id)
        elif root.status != broken.status:
            text = f"it is {root.status}, its step {broken.task} is {broken.status}"
            yield Violation("chain", text, root.id)


def _links(steps: list[JobRow]) -> list[str]:
    return [step.args[-1] for step in steps]


def _workflows(evidence: Evidence) -> Iterator[JobRow]:
    return (job for job in evidence.jobs.values() if job.engine == WORKFLOW)


RULES: tuple[Rule, ...] = (
    transactions_commit_with_success,
    steps_take_effect_once,
    steps_are_not_repeated,
    succeeded_steps_have_ended,
    chains_run_in_order,
    chains_end_with_their_steps,
)
