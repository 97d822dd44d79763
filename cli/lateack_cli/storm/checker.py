"""The proof: a pure function over what was seen to happen and what the ledger holds."""

from __future__ import annotations

from collections.abc import Iterable

from .evidence import Evidence, Violation
from .history import Line
from .rules import RULES
from .snapshot import Snapshot


def check(lines: Iterable[Line], snapshot: Snapshot) -> list[Violation]:
    """Every promise that was broken; empty when all were kept."""
    return violations(Evidence(lines, snapshot))


def violations(evidence: Evidence) -> list[Violation]:
    """`check`, for who has the evidence already."""
    return [violation for rule in RULES for violation in rule(evidence)]
