"""Chains: steps that run one after the other, each on the result of the one before.

On the ledger a chain is one row for the workflow, whose id the caller holds, and one row for
each step. A step after the first waits in state `blocked` for a *join*; the transaction that
completes the step before feeds the join and makes the next step runnable, exactly once (I5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from .models import Job, Step, Submission

if TYPE_CHECKING:
    from .app import App


class Signature:
    """A task with arguments, not yet submitted."""

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


class Chain:
    """Steps in order. `enqueue()` submits them as one workflow."""

    def __init__(self, *steps: Signature) -> None:
        if not steps:
            raise ValueError("a chain needs at least one step")
        self.steps = steps

    def submission(self, **options: Any) -> Submission:
        """The request that submits this chain; `options` are fields of Submission."""
        first, *rest = (signature.step for signature in self.steps)
        return Submission(
            task=first.task,
            args=first.args,
            kwargs=first.kwargs,
            queue=first.queue,
            priority=first.priority,
            max_retries=first.max_retries,
            then=rest,
            **options,
        )

    async def enqueue(self, **options: Any) -> Job:
        """Submit the chain; returns the document of the workflow, with its `steps`."""
        return await self.steps[0].app.submit(self.submission(**options))


def chain(*steps: Signature) -> Chain:
    """`chain(parse.s("a.pdf"), chunk.s(), index.s())`: each result is the next first argument."""
    return Chain(*steps)
