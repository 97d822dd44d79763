"""Leader election: a lease row with an epoch in PostgreSQL.

Losing the lead is a matter of liveness only: every action of a leader carries its term and does
nothing once the epoch has moved on, so a leader that was frozen and wakes acts on nothing.
"""

from __future__ import annotations

import contextlib
import logging
import time
from uuid import UUID

from .identifiers import uuid7
from .jobs import Term
from .postgres import Blocked, LedgerUnavailable, Postgres
from .process import Loop

log = logging.getLogger("lateack.leader")


class Leadership:
    """One candidate. `term` is its term while it leads, None while it does not."""

    def __init__(self, postgres: Postgres, *, ttl: float, name: str = "scheduler") -> None:
        self._postgres = postgres
        self._ttl = ttl
        self.name = name
        self.holder: UUID = uuid7()
        self._term: Term | None = None
        self._until = 0.0

    @property
    def term(self) -> Term | None:
        """Its term, as far as this process can know; only the ledger's fence is proof."""
        return self._term if time.monotonic() < self._until else None

    async def run(self, loop: Loop) -> None:
        """The loop: campaign, renew at a third of the lease, step down at the end."""
        try:
            while not loop.stopping:
                await self.campaign()
                loop.beat(rest=self._ttl / 3)
                await loop.pause(self._ttl / 3, jitter=0.1)
        finally:
            if loop.stopping:
                await self.step_down()

    async def campaign(self) -> bool:
        """Take or renew the lead once; true when this candidate leads.

        Raises:
            LedgerUnavailable
        """
        asked = time.monotonic()
        try:
            rows = await self._postgres.fetch_with_lock_timeout(
                "lead", int(self._ttl * 300), self.name, self.holder, self._ttl
            )
        except Blocked:
            rows = []
        before = self._term
        # The lease counts from before the question was sent: never longer than the ledger's.
        self._until = asked + self._ttl if rows else 0.0
        self._term = Term(self.name, self.holder, rows[0]["epoch"]) if rows else None
        if self._term and (before is None or before.epoch != self._term.epoch):
            log.info("leading as %s, epoch %d", self.name, self._term.epoch)
        elif before and not self._term:
            log.warning("lost the lead of epoch %d", before.epoch)
        return self._term is not None

    async def step_down(self) -> None:
        """Give up the lead, so that a successor need not wait for the lease to end."""
        if self._term is not None:
            with contextlib.suppress(LedgerUnavailable, Blocked):
                await self._postgres.fetch("step_down", *self._term)
            self._term = None
