"""The rules that the ledger's rows keep among themselves, looked at as one snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from .jobs import Moved
from .postgres import Postgres, Row

RULES = (
    "running-without-lease",
    "lease-without-running-job",
    "join-not-decided",
    "blocked-by-nothing",
)


class Broken(NamedTuple):
    """A row that breaks a rule, as it was found."""

    rule: str
    row_id: UUID
    fence: int


class Audit:
    """Looks, mends what is safe to mend, and writes down what it saw."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def look(self, most: int = 1000) -> set[Broken]:
        """What breaks a rule right now, at most so many of each.

        Raises:
            LedgerUnavailable
        """
        return {Broken(*row) for row in await self._postgres.fetch("audit", most)}

    async def mend(self, broken: Sequence[Broken]) -> list[Moved]:
        """Mend leases and jobs that lost each other; other rules are for a person to look at."""
        jobs = [b for b in broken if b.rule == "running-without-lease"]
        leases = [b for b in broken if b.rule == "lease-without-running-job"]
        rows: list[Row] = await self._postgres.fetch(
            "mend_leases",
            [b.row_id for b in jobs],
            [b.fence for b in jobs],
            [b.row_id for b in leases],
            [b.fence for b in leases],
        )
        return [Moved(*row) for row in rows]

    async def record(self, broken: Sequence[Broken], mended: Sequence[Broken]) -> None:
        """Write the counts down; a rule without a broken row is clean as of now."""
        await self._postgres.fetch(
            "record_audit",
            list(RULES),
            [sum(b.rule == rule for b in broken) for rule in RULES],
            [sum(b.rule == rule for b in mended) for rule in RULES],
        )
