"""Whether a submission can be accepted, and what to change when it cannot.

Order, as in design §6: is the task known, do the arguments fit it, are they small enough. What
comes after (idempotency, then capacity) needs the ledger's write and is not decided here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from lateack.arguments import misfit, unfit_value
from lateack.models import MAX_ARGUMENT_BYTES, MAX_STEPS, Refusal, Step, Submission
from lateack.names import key_problem, queue_problem, task_problem

from .registry import RegisteredTask, Registry

MAX_META_BYTES = 4096
MAX_TAGS = 20
MAX_LABEL = 200
# A delay beyond this is a mistake in a unit, not a plan.
LONGEST_DELAY = 10 * 366 * 86_400.0
MAX_RETRIES = 100_000
MAX_NESTING = 16

_sorted = msgspec.json.Encoder(order="sorted").encode
_plain = msgspec.json.Encoder().encode


class Refused(Exception):
    """A submission was refused; `refusal` is the problem document that says what to change."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal


class CheckedStep(NamedTuple):
    """A step whose task is known and whose arguments fit, as JSON text."""

    task: RegisteredTask
    queue: str
    priority: int
    args: str
    kwargs: str
    max_retries: int
    immutable: bool


class CheckedGroup(NamedTuple):
    """Parts side by side. `rule` is that of their join."""

    members: list[CheckedPart]
    rule: str


class CheckedChain(NamedTuple):
    """Parts one after the other."""

    parts: list[CheckedPart]


CheckedPart = CheckedStep | CheckedGroup | CheckedChain


class Checked(NamedTuple):
    """A submission that may be written. `rare` is JSON text of what few jobs have, or None."""

    parts: list[CheckedPart]
    # The first step of all: whose queue, priority and expiry the whole goes by.
    first: CheckedStep
    delay: float | None
    eta: datetime | None
    rare: str | None
    key: str | None
    fingerprint: bytes | None


def refusal(status: int, type_: str, title: str, detail: str, **more: Any) -> Refused:
    """A refusal as an error to raise."""
    return Refused(Refusal(type=type_, title=title, status=status, detail=detail, **more))


def invalid(detail: str, errors: list[str] | None = None) -> Refused:
    """A 422: the request can be read and must change."""
    return refusal(422, "invalid-submission", "The submission must change", detail, errors=errors)


async def check(submission: Submission, registry: Registry) -> Checked:
    """Hold a submission against the rules and the registered tasks.

    Raises:
        Refused: it must change. LedgerUnavailable.
    """
    _check_times(submission)
    _check_labels(submission)
    first = Step(
        task=submission.task,
        args=submission.args,
        kwargs=submission.kwargs,
        queue=submission.queue,
        priority=submission.priority,
        max_retries=submission.max_retries,
        group=submission.group,
        on_failure=submission.on_failure,
    )
    tree = _Tree(registry)
    parts = await tree.parts([first, *submission.then], ["", *_numbered("then", submission.then)])
    if not tree.steps:
        raise invalid("a group without members, and nothing after it: there is nothing to run")
    if submission.idempotency_key is not None and (
        reason := key_problem(submission.idempotency_key)
    ):
        raise invalid(reason)
    return Checked(
        parts=parts,
        first=tree.steps[0],
        delay=submission.countdown,
        eta=submission.eta,
        rare=_rare(submission, tree.steps[0].task),
        key=submission.idempotency_key,
        fingerprint=None if submission.idempotency_key is None else fingerprint(submission),
    )


def fingerprint(submission: Submission) -> bytes:
    """What makes two submissions the same, whatever the order of their keys and their zones."""
    eta, expires = submission.eta, submission.expires
    same = msgspec.structs.replace(
        submission,
        idempotency_key=None,
        eta=eta.astimezone(UTC) if eta else None,
        expires=expires.astimezone(UTC) if isinstance(expires, datetime) else expires,
    )
    return hashlib.sha256(_sorted(same)).digest()


class _Tree:
    """A walk over the parts of a submission."""

    def __init__(self, registry: Registry) -> None:
        self.steps: list[CheckedStep] = []
        self._registry = registry
        self._size = 0

    async def parts(
        self, parts: Sequence[Step], places: Sequence[str], *, fed: bool = False, depth: int = 0
    ) -> list[CheckedPart]:
        """Check the parts of a chain; `fed`: the first of them is given a result."""
        checked: list[CheckedPart] = []
        for part, where in zip(parts, places, strict=True):
            checked.append(await self._part(part, where, fed, depth))
            fed = True
        return checked

    async def _part(self, part: Step, where: str, fed: bool, depth: int) -> CheckedPart:
        kinds = [
            name for name in ("task", "group", "chain") if getattr(part, name) not in ("", None)
        ]
        if len(kinds) != 1:
            given = " and ".join(kinds) or "none of them"
            raise invalid(f"{where}give a task, or a group, or a chain; this has {given}")
        if depth > MAX_NESTING:
            raise invalid(f"{where}groups and chains are nested {MAX_NESTING} levels deep at most")
        if part.task:
            return self._counted(await _check_step(part, where, fed, self._registry))
        if part.args or part.kwargs or part.immutable:
            raise invalid(f"{where}arguments belong to the tasks of a {kinds[0]}, not to itself")
        if part.chain is not None:
            places = _numbered(f"{where}chain", part.chain)
            before = len(self.steps)
            chain = CheckedChain(await self.parts(part.chain, places, fed=fed, depth=depth + 1))
            if len(self.steps) == before:
                raise invalid(f"{where}a chain needs at least one task")
            return chain
        members: list[CheckedPart] = []
        group = part.group or []
        for member, place in zip(group, _numbered(f"{where}group", group), strict=True):
            before = len(self.steps)
            members.append(await self._part(member, place, fed, depth + 1))
            if len(self.steps) == before:
                raise invalid(f"{place}a member of a group needs at least one task")
        return CheckedGroup(members, "collect" if part.on_failure == "collect" else "all")

    def _counted(self, step: CheckedStep) -> CheckedStep:
        self.steps.append(step)
        self._size += len(step.args) + len(step.kwargs)
        if len(self.steps) > MAX_STEPS:
            raise invalid(f"a workflow has {MAX_STEPS} tasks at most")
        if self._size > 16 * MAX_ARGUMENT_BYTES:
            raise _too_large("the arguments of all steps together", 16 * MAX_ARGUMENT_BYTES)
        return step


def _numbered(name: str, parts: Sequence[Step]) -> list[str]:
    name = name.removesuffix(": ")
    return [f"{name}[{number}]: " for number in range(len(parts))]


async def _check_step(step: Step, where: str, fed: bool, registry: Registry) -> CheckedStep:
    if reason := task_problem(step.task):
        raise invalid(f"{where}task {step.task[:100]!r}: {reason}")
    task = await registry.find(step.task)
    if task is None:
        raise refusal(
            422,
            "unknown-task",
            "No such task",
            f"{where}no worker ever registered a task {step.task!r}; start a worker that has it "
            "(lateack worker -A module:app), or correct the name",
        )
    for name, value in (("args", step.args), ("kwargs", step.kwargs)):
        if reason := unfit_value(value):
            raise invalid(f"{where}{name} {reason}")
    # In a chain the result of the step before stands first.
    args = [None, *step.args] if fed and not step.immutable else step.args
    if reason := misfit(task.parameters, args, step.kwargs):
        raise refusal(
            422,
            "invalid-arguments",
            "The arguments do not fit the task",
            f"{where}{step.task} {reason}",
        )
    if step.queue is not None and (reason := queue_problem(step.queue)):
        raise invalid(f"{where}queue {step.queue[:100]!r}: {reason}")
    if step.priority is not None and not 0 <= step.priority <= 9:
        raise invalid(f"{where}priority is 0 to 9, got {step.priority}")
    if step.max_retries is not None and not 0 <= step.max_retries <= MAX_RETRIES:
        raise invalid(f"{where}max_retries is 0 to {MAX_RETRIES}, got {step.max_retries}")
    encoded_args, encoded_kwargs = _plain(step.args), _plain(step.kwargs)
    if len(encoded_args) + len(encoded_kwargs) > MAX_ARGUMENT_BYTES:
        raise _too_large(f"{where}args and kwargs", MAX_ARGUMENT_BYTES)
    return CheckedStep(
        task=task,
        queue=step.queue or task.queue,
        priority=task.priority if step.priority is None else step.priority,
        args=encoded_args.decode(),
        kwargs=encoded_kwargs.decode(),
        max_retries=task.max_retries if step.max_retries is None else step.max_retries,
        immutable=step.immutable or not fed,
    )


def _check_times(submission: Submission) -> None:
    countdown, eta, expires = submission.countdown, submission.eta, submission.expires
    if countdown is not None and eta is not None:
        raise invalid("give countdown or eta, not both")
    if countdown is not None and not 0 <= countdown <= LONGEST_DELAY:
        raise invalid(f"countdown is seconds, from 0 to {LONGEST_DELAY:.0f}")
    if isinstance(expires, (int, float)) and not 0 < expires <= LONGEST_DELAY:
        raise invalid(f"expires is seconds, more than 0 and {LONGEST_DELAY:.0f} at most")
    horizon = datetime.now(UTC) + timedelta(seconds=LONGEST_DELAY)
    for name, value in (("eta", eta), ("expires", expires)):
        if not isinstance(value, datetime):
            continue
        if value.tzinfo is None:
            raise invalid(f"{name} needs a zone, such as 2030-01-31T08:00:00Z or …+08:00")
        if not datetime(2000, 1, 1, tzinfo=UTC) <= value <= horizon:
            raise invalid(f"{name} is between the year 2000 and ten years from now")


def _check_labels(submission: Submission) -> None:
    if len(submission.tags) > MAX_TAGS:
        raise invalid(f"a job has {MAX_TAGS} tags at most")
    labels = [("owner", submission.owner), ("external_ref", submission.external_ref)]
    labels += [("tags", tag) for tag in submission.tags]
    for name, label in labels:
        if label is None:
            continue
        if not 1 <= len(label) <= MAX_LABEL:
            raise invalid(f"{name}: 1 to {MAX_LABEL} characters")
        if reason := unfit_value(label):
            raise invalid(f"{name} {reason}")
    if reason := unfit_value(submission.meta):
        raise invalid(f"meta {reason}")
    if len(_plain(submission.meta)) > MAX_META_BYTES:
        raise _too_large("meta", MAX_META_BYTES)


def _too_large(what: str, limit: int) -> Refused:
    return refusal(
        413,
        "too-large",
        "Too large",
        f"{what} may have {limit} bytes of JSON; store the data elsewhere and pass a reference",
    )


def _rare(submission: Submission, task: RegisteredTask) -> str | None:
    rare: dict[str, Any] = {}
    for name in ("tags", "meta", "owner", "external_ref"):
        if value := getattr(submission, name):
            rare[name] = value
    if submission.ignore_result or task.ignore_result:
        rare["ignore_result"] = True
    if isinstance(submission.expires, datetime):
        rare["expires_at"] = submission.expires
    elif submission.expires is not None or task.expires is not None:
        rare["expires_in"] = task.expires if submission.expires is None else submission.expires
    return _plain(rare).decode() if rare else None
