"""When a chore takes its turn: at the start of every term, and again and again while it lasts."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from lateack_core.ground import Ground
from lateack_core.jobs import Term
from lateack_core.leader import Leadership
from lateack_core.process import Body, Loop

Turn = Callable[[Term], Awaitable[None]]

# How often a candidate looks whether it leads, so that the first turn of a term is prompt.
LOOK = 0.5


def campaign(ground: Ground, leadership: Leadership) -> Body:
    """The body of the loop that runs for the lead."""

    async def body(loop: Loop) -> None:
        await _until_fit(ground, loop)
        await leadership.run(loop)

    return body


def chore(ground: Ground, leadership: Leadership, interval: float, turn: Turn) -> Body:
    """The body of a loop that takes `turn` at the start of a term, then every `interval` seconds.

    A turn is given the term that it acts for, and must act on nothing once that is over.
    """

    async def body(loop: Loop) -> None:
        await _until_fit(ground, loop)
        epoch, due = -1, 0.0
        while not loop.stopping:
            term = leadership.term
            if term is not None and (term.epoch != epoch or time.monotonic() >= due):
                epoch, due = term.epoch, time.monotonic() + interval
                await turn(term)
            loop.beat()
            await loop.pause(min(interval, LOOK), jitter=0.1)

    return body


async def _until_fit(ground: Ground, loop: Loop) -> None:
    """Wait for a ledger that is there and migrated: before that, every statement would fail."""
    while not ground.fit.is_set() and not loop.stopping:
        loop.beat()
        await loop.pause(0.2)
