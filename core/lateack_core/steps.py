"""The steps that bodies took outside: begun, ended with a result, or in doubt. All fenced."""

from __future__ import annotations

from lateack.effects import Found, Move

from .jobs import Owned
from .postgres import Postgres


class Steps:
    """The ledger's record of steps, over a pool of connections."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def move(self, owned: Owned, attempt: int, move: Move) -> Found:
        """Write what a body asks for; `held` is false, and nothing written, when the job is not
        its attempt's any more. Repeating a move whose answer was not heard is harmless.

        Raises:
            LedgerUnavailable
        """
        named = (owned.job_id, owned.fence, move.name)
        if move.kind == "begin":
            (row,) = await self._postgres.fetch("begin_step", *named, attempt)
            return Found(row["held"], row["done"], row["doubt"], row["result"])
        if move.kind == "repeat":
            rows = await self._postgres.fetch("repeat_step", *named, attempt)
        elif move.kind == "end":
            rows = await self._postgres.fetch("end_step", *named, attempt, move.text)
        else:
            rows = await self._postgres.fetch("leave_step", *named, move.text)
        return Found(bool(rows))
