"""Workflows: chains, groups and chords, as Celery knows them.

    chain(parse.s("a.pdf"), group(ocr.s(), tables.s()), merge.s())

On the ledger a workflow is a row whose id the caller holds, a row for each step, and one for each
group. A step waits in state `blocked` for a *join*; the transaction that ends the step before feeds
the join, and makes what waits for it runnable, exactly once (I5).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from .models import Job, OnFailure, Step, Submission

if TYPE_CHECKING:
    from .app import App


class Part:
    """Something that a workflow can be made of: a signature, a chain, a group."""

    step: Step
    app: App | None

    def __or__(self, other: Part) -> Chain:
        return Chain(*_links(self), *_links(other))

    def submission(self, **options: Any) -> Submission:
        """The request that submits this on its own; `options` are fields of Submission."""
        first, *rest = (part.step for part in _links(self))
        if first.chain is not None:
            raise ValueError("a chain that begins with a chain is one chain: leave the inner one")
        return Submission(
            task=first.task,
            args=first.args,
            kwargs=first.kwargs,
            queue=first.queue,
            priority=first.priority,
            max_retries=first.max_retries,
            group=first.group,
            on_failure=first.on_failure,
            then=rest,
            **options,
        )

    async def enqueue(self, **options: Any) -> Job:
        """Submit it; returns its document. That of a workflow has the `steps`.

        Raises:
            ValueError: it has no task in it.
        """
        if self.app is None:
            raise ValueError("a workflow without a task has nothing to run")
        return await self.app.submit(self.submission(**options))


class Signature(Part):
    """A task with arguments, not yet submitted."""

    app: App

    def __init__(self, step: Step, app: App) -> None:
        self.step = step
        self.app = app

    def set(
        self,
        *,
        queue: str | None = None,
        priority: int | None = None,
        max_retries: int | None = None,
    ) -> Signature:
        """A copy with options of its own."""
        given = {"queue": queue, "priority": priority, "max_retries": max_retries}
        changes = {name: value for name, value in given.items() if value is not None}
        return Signature(msgspec.structs.replace(self.step, **changes), self.app)

    def __repr__(self) -> str:
        return f"<Signature {self.step.task}>"


class Chain(Part):
    """Parts in order; each gets the result of the one before as its first argument."""

    def __init__(self, *parts: Part) -> None:
        if not parts:
            raise ValueError("a chain needs at least one step")
        self.parts = [link for part in parts for link in _links(part)]
        self.step = Step(chain=[part.step for part in self.parts])
        self.app = _app_of(self.parts)


class Group(Part):
    """Parts side by side; what comes next gets the list of their results, in their order.

    `on_failure`: when a member fails, "fail_fast" cancels the others and fails what comes after;
    "collect" lets all of them end, and shows a failure in the list as `{job_id, status,
    error_code, error_message}`.
    """

    def __init__(self, members: Iterable[Part], on_failure: OnFailure = "fail_fast") -> None:
        self.members = list(members)
        self.step = Step(group=[member.step for member in self.members], on_failure=on_failure)
        self.app = _app_of(self.members)


def chain(*parts: Part) -> Chain:
    """`chain(parse.s("a.pdf"), chunk.s(), index.s())`: each result is the next first argument."""
    return Chain(*parts)


def group(*members: Part | Iterable[Part], on_failure: OnFailure = "fail_fast") -> Group:
    """`group(ocr.s(page) for page in pages)`, or `group(a.s(), b.s())`; see Group."""
    flat = [part for one in members for part in ([one] if isinstance(one, Part) else one)]
    return Group(flat, on_failure)


def chord(header: Group | Iterable[Part], body: Part) -> Chain:
    """`chord(group(…), merge.s())`: the body runs once, on the list of all results."""
    return Chain(header if isinstance(header, Group) else Group(header), body)


def _links(part: Part) -> list[Part]:
    return part.parts if isinstance(part, Chain) else [part]


def _app_of(parts: Iterable[Part]) -> App | None:
    return next((part.app for part in parts if part.app is not None), None)
