"""The state table: which states a job can be in, and which moves exist.

This is the one list; the CHECK constraint of the jobs table, the documents and the tests are held
against it.
"""

from __future__ import annotations

from typing import Final, Literal

Status = Literal[
    "scheduled", "pending", "running", "retrying", "blocked", "succeeded", "failed", "cancelled"
]

LIVE: Final[frozenset[str]] = frozenset({"scheduled", "pending", "running", "retrying", "blocked"})
TERMINAL: Final[frozenset[str]] = frozenset({"succeeded", "failed", "cancelled"})

# From each state, the states that one ledger move can reach. A terminal row never changes (I2).
MOVES: Final[dict[str, frozenset[str]]] = {
    "scheduled": frozenset({"pending", "running", "failed", "cancelled"}),
    "pending": frozenset({"running", "failed", "cancelled"}),
    "running": frozenset({"pending", "retrying", "succeeded", "failed", "cancelled"}),
    "retrying": frozenset({"pending", "running", "failed", "cancelled"}),
    # A workflow's own row succeeds straight out of `blocked`, when its last step did.
    "blocked": frozenset({"pending", "succeeded", "failed", "cancelled"}),
    "succeeded": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}
