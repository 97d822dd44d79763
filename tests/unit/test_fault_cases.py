"""Every case of docs/fault-cases.md has a test that says so, or waits for a part that is named."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CASE = re.compile(r"\b[A-Z]{3}-\d\d\b")

# What the case is about does not exist yet. Take a line away with the part that brings it.
WAITING = {
    "limits by key": {"RTY-08"},
    "callbacks": {"OUT-05", "OUT-06", "OUT-07"},
    "the Celery lane": {f"CEL-0{number}" for number in range(1, 7)},
}


def cases() -> set[str]:
    text = (ROOT / "docs/fault-cases.md").read_text()
    return set(re.findall(r"^- ([A-Z]{3}-\d\d)\.", text, re.MULTILINE))


def shown() -> dict[str, list[str]]:
    """The tests that name a case in their docstring, by case."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith(
                "test_"
            ):
                for case in CASE.findall(ast.get_docstring(node) or ""):
                    found.setdefault(case, []).append(f"{path.relative_to(ROOT)}::{node.name}")
    return found


def test_every_case_has_a_test_or_waits() -> None:
    waiting = set().union(*WAITING.values())
    without = cases() - shown().keys() - waiting
    assert not without, f"no test shows {', '.join(sorted(without))}"
    assert not waiting & shown().keys(), "shown by now: no need to wait for it"


def test_there_are_no_other_cases() -> None:
    assert len(cases()) == 109
    assert shown().keys() <= cases(), f"no such case: {shown().keys() - cases()}"
