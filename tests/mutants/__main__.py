"""`make mutants`: take each guard out in turn, and see some test fail.

    python -m tests.mutants                    all of them
    python -m tests.mutants claim reader       those whose name has one of these words
    python -m tests.mutants --list             only say which there are

The checkout is left alone: each change is made in a copy of it. Exits 1 when a mutant survives, 2
when the list does not fit the code, or a test that is to notice fails before anything is changed.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.mutants import MUTANTS
from tests.mutants.mutant import Mutant, Stale

ROOT = Path(__file__).parents[2]
PARTS = ("", "core", "sql", "service", "consumers", "scheduler", "cli")
COPIED = ("lateack", *PARTS[1:], "examples", "tests", "docs", "pyproject.toml")
PATIENCE = 300.0
_FAILED = re.compile(r"^FAILED (\S+)", re.MULTILINE)
# A mutant that does not even run says nothing about the tests.
_BROKEN = re.compile(
    r"Syntax|Undefined|InvalidColumnReference|Indeterminate|AmbiguousColumn|DatatypeMismatch|NameError|ImportError|TypeError"
)


class Verdict(NamedTuple):
    """What the tests said of a copy. `failed` is the first that failed, None when none did."""

    failed: str | None
    trouble: str | None
    seconds: float


@contextmanager
def copy_of_the_tree() -> Iterator[Path]:
    """A copy in which mutants may live."""
    with tempfile.TemporaryDirectory(prefix="lateack-mutants-") as name:
        copy = Path(name)
        ignored = shutil.ignore_patterns("__pycache__", ".data", ".*_cache", "*.log")
        for part in COPIED:
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, copy / part, ignore=ignored)
            else:
                shutil.copy2(ROOT / part, copy / part)
        yield copy


def run_tests(copy: Path, tests: str) -> Verdict:
    """Run them until the first failure."""
    path = os.pathsep.join(str(copy / part) for part in PARTS)
    environ = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider",
        "-o", "timeout=60", "--tb=line", "-rfE", *_words(tests),
    ]  # fmt: skip
    began = time.monotonic()
    process = subprocess.Popen(
        command, cwd=copy, env=environ, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        return Verdict(None, f"no end after {PATIENCE:g} s", time.monotonic() - began)
    seconds = time.monotonic() - began
    if broken := _BROKEN.search(said):
        return Verdict(None, f"it is broken, {broken.group()}:\n{said}", seconds)
    if failed := _FAILED.search(said):
        return Verdict(failed.group(1), None, seconds)
    trouble = (
        None if process.returncode == 0 else f"pytest ended with {process.returncode}:\n{said}"
    )
    return Verdict(None, trouble, seconds)


def _words(tests: str) -> list[str]:
    """Split at blanks; what follows -k is one word up to the end."""
    paths, found, chosen = tests.partition(" -k ")
    return [*paths.split(), *(["-k", chosen] if found else [])]


def try_one(mutant: Mutant, copies: queue.Queue[Path]) -> Verdict:
    """Run a mutant's tests on a copy that has it."""
    copy = copies.get()
    file = copy / mutant.file
    whole = file.read_text("utf-8")
    try:
        file.write_text(mutant.text(copy), "utf-8")
        return run_tests(copy, mutant.tests)
    finally:
        file.write_text(whole, "utf-8")
        copies.put(copy)


def sound(copy: Path, mutants: Sequence[Mutant]) -> bool:
    """Whether the copy is what is tested, and the tests pass while nothing is changed."""
    path = os.pathsep.join(str(copy / part) for part in PARTS)
    names = ["lateack", *(f"lateack_{part}" for part in PARTS[1:])]
    script = f"import {', '.join(names)}; print(*({', '.join(f'{n}.__file__' for n in names)},))"
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=copy, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    if not all(file.startswith(str(copy)) for file in found):
        say(f"these are not of the copy: {found}")
        return False
    # All that is asked of a file at one go: most of the time goes into starting servers.
    asked: dict[str, list[str]] = {}
    for tests in dict.fromkeys(mutant.tests for mutant in mutants):
        paths, _, chosen = tests.partition(" -k ")
        asked.setdefault(paths, []).append(f"({chosen})" if chosen else "test")
    for paths, choices in asked.items():
        tests = f"{paths} -k {' or '.join(choices)}"
        verdict = run_tests(copy, tests)
        if verdict.failed or verdict.trouble:
            say(f"fails with nothing changed: {tests}\n  {verdict.failed or verdict.trouble}")
            return False
    return True


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("words", nargs="*", help="only mutants whose name has one of these")
    parser.add_argument("--list", action="store_true", help="only say which there are")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (2)")
    parser.add_argument("--unchecked", action="store_true", help="skip the run without a change")
    chosen = parser.parse_args()
    mutants = [m for m in MUTANTS if not chosen.words or any(w in m.name for w in chosen.words)]
    if stale := stale_ones(mutants):
        say("\n".join(["the list is stale:", *stale]))
        return 2
    if chosen.list:
        say("\n".join(f"{mutant.name}  ({mutant.tests})" for mutant in mutants))
        return 0
    return judge(mutants, chosen.jobs, checked=not chosen.unchecked)


def stale_ones(mutants: Sequence[Mutant]) -> list[str]:
    """What does not fit the code any more, and why."""
    reasons = []
    for mutant in mutants:
        try:
            mutant.text(ROOT)
        except Stale as error:
            reasons.append(str(error))
    return reasons


def judge(mutants: Sequence[Mutant], jobs: int, *, checked: bool) -> int:
    """Try them all; the exit code."""
    began, survivors = time.monotonic(), 0
    with ThreadPoolExecutor(jobs) as pool, copies_of_the_tree(jobs) as copies:
        if checked:
            copy = copies.get()
            if not sound(copy, mutants):
                return 2
            copies.put(copy)
        verdicts = pool.map(lambda mutant: try_one(mutant, copies), mutants)
        for mutant, verdict in zip(mutants, verdicts, strict=True):
            if verdict.failed:
                word = f"killed by {verdict.failed}"
            else:
                survivors += 1
                word = f"SURVIVED {mutant.tests}\n  {verdict.trouble or 'every test passed'}"
            say(f"{mutant.name:56} {verdict.seconds:5.1f} s  {word}")
    seconds = time.monotonic() - began
    say(f"{len(mutants)} mutants, {survivors} survived, {seconds:.0f} s")
    return 1 if survivors else 0


@contextmanager
def copies_of_the_tree(count: int) -> Iterator[queue.Queue[Path]]:
    """So many copies, to be taken and put back."""
    copies: queue.Queue[Path] = queue.Queue()
    with copy_of_the_tree() as first:
        copies.put(first)
        if count == 1:
            yield copies
            return
        with copies_of_the_tree(count - 1) as more:
            while not more.empty():
                copies.put(more.get())
            yield copies


if __name__ == "__main__":
    sys.exit(main())
