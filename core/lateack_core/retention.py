"""Forgetting what is old, a batch at a time. Every statement carries the leader's term."""

from __future__ import annotations

from .jobs import Term
from .postgres import Postgres


class Retention:
    """What has an age, over a pool of connections."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def prune_jobs(
        self, term: Term, *, well: float | None, badly: float | None, most: int
    ) -> int:
        """Forget jobs, with all that belongs to them, that ended so many seconds ago: well, or
        badly; None is for ever. At most `most` of each kind; returns how many rows went.

        Raises:
            LedgerUnavailable
        """
        return len(await self._postgres.fetch("prune_jobs", *term, well, badly, most))

    async def prune_records(self, term: Term, *, older_than: float | None, most: int) -> int:
        """Forget decided ticks and strays; returns how many.

        Raises:
            LedgerUnavailable
        """
        rows = await self._postgres.fetch("prune_records", *term, older_than, most)
        return int(rows[0]["gone"])
