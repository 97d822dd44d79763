"""The scheduler process: a list of loops, one a chore, of which only the leader's do anything.

It runs anywhere and any number of times: alone (`schedule`), or inside another process (`start`,
Celery's `-B` made safe). Losing the lead is a matter of liveness only: whatever a chore does
carries the leader's term or is a compare-and-set that a second one cannot repeat.

    scheduler   leading.py    campaigns, renews at a third of the lease, steps down at the end
    pending     pending.py    fails what nobody took
    rescue      rescue.py     runs again what lost its worker
    expiry      expiry.py     ends what has not started in time
    groups      groups.py     cancels what is left of groups that failed
    periodic    periodic.py   makes the jobs of schedules
    reconcile   reconcile.py  publishes again what the broker lost
    janitor     janitor.py    forgets dead workers and consumers
    prune       prune.py      forgets what ended long ago
    audit       audit.py      looks whether any rule is broken
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from lateack.errors import DeclarationError
from lateack_core.ground import Ground, open_ground
from lateack_core.health import health
from lateack_core.jobs import Term
from lateack_core.leader import Leadership
from lateack_core.settings import Settings

from .audit import Auditor
from .expiry import expire
from .groups import INTERVAL as GROUPS_INTERVAL
from .groups import cancel_abandoned
from .janitor import sweep
from .leading import Turn, campaign, chore
from .pending import fail_stale
from .periodic import LOOK, Periodic
from .prune import INTERVAL as PRUNE_INTERVAL
from .prune import prune
from .reconcile import LOOKS, Reconciler
from .rescue import reap

# A chore that works through millions of rows, in small steps, is well for so long.
LONGEST_TURN = 300.0  # seconds


async def schedule(
    settings: Settings,
    *,
    stop: asyncio.Event,
    ready: Callable[[], None],
    opened: Callable[[Ground], None] = lambda ground: None,
) -> None:
    """Run a scheduler until `stop` is set; `ready` is called once ledger and broker answer.

    `opened` is told the ground that it stands on, whose troubles somebody may want to know.

    Raises:
        DeclarationError: a URL is missing, or a server cannot be used as it is; the message says
            what to change.
    """
    ground = await open_ground(settings, process="scheduler")
    opened(ground)
    async with health(settings.health, ground.troubles):
        try:
            ground.start()
            start(ground)
            if await _first(stop, ground.fit, unfit=ground.unfit) is ground.fit:
                ready()
                await _first(stop, unfit=ground.unfit)
        finally:
            await ground.close()


def start(ground: Ground) -> Leadership:
    """Add the scheduler's loops to a process that stands on `ground`; returns its candidate."""
    settings = ground.settings
    leadership = Leadership(ground.postgres, ttl=settings.leader_ttl)
    reconciler, periodic = Reconciler(ground), Periodic(ground)

    async def clean(term: Term) -> None:
        await fail_stale(ground, term)

    async def rescue(term: Term) -> None:
        await reap(ground)

    async def end_late(term: Term) -> None:
        await expire(ground)

    async def let_go(term: Term) -> None:
        await cancel_abandoned(ground)

    async def tick(term: Term) -> None:
        await periodic.turn(term)

    async def forget(term: Term) -> None:
        await sweep(ground)

    auditor = Auditor(ground)

    async def look(term: Term) -> None:
        await auditor.turn()

    async def age_out(term: Term) -> None:
        await prune(ground, term)

    chores: list[tuple[str, float, Turn]] = [
        ("pending", settings.cleanup_interval, clean),
        ("rescue", settings.reap_interval, rescue),
        ("expiry", settings.reap_interval, end_late),
        ("groups", GROUPS_INTERVAL, let_go),
        ("periodic", LOOK, tick),
        ("reconcile", settings.reconcile_interval / LOOKS, reconciler.turn),
        ("janitor", settings.cleanup_interval, forget),
        ("prune", PRUNE_INTERVAL, age_out),
        ("audit", settings.audit_interval, look),
    ]
    ground.loops.start("scheduler", campaign(ground, leadership))
    for name, interval, turn in chores:
        ground.loops.start(
            name, chore(ground, leadership, interval, turn), stalled_after=LONGEST_TURN
        )
    return leadership


async def _first(*events: asyncio.Event, unfit: asyncio.Future[str]) -> asyncio.Event | None:
    """The first of these events to be set.

    Raises:
        DeclarationError: a server turned out to be unfit before that.
    """
    waits = {asyncio.create_task(event.wait()): event for event in events}
    try:
        anything: set[asyncio.Future[Any]] = {*waits, unfit}
        await asyncio.wait(anything, return_when=asyncio.FIRST_COMPLETED)
        if unfit.done():
            raise DeclarationError(unfit.result())
        return next(event for wait, event in waits.items() if wait.done())
    finally:
        for wait in waits:
            wait.cancel()
