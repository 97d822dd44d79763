"""The tests of delivery, on every server and interpreter that lateack is said to run on.

    make matrix                                  every cell
    make matrix ARGS="redis-6.2 cluster"         some of them
    make matrix ARGS="--smoke --none-absent …"   the short list of tests; an absent cell fails
    make matrix ARGS="redis-6.2 -- -x -k ghosts" more words for pytest

One line a cell: PASS, FAIL, absent, or the same as the baseline. The exit status is 1 when a cell
failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lateack_cli.embedded.binaries import postgres_programs, valkey_server
from tests.matrix.programs import (
    KEPT,
    ROOT,
    Absent,
    postgres_15,
    python,
    redis_6_2,
    redis_7_0,
    version_of,
)

# Delivery is what the servers have a say in: the ledger's statements, the broker's streams, the
# workers and the scheduler that stand on both, and the main job from outside. The rest of the suite
# is about HTTP, the command line and documents, and would show the same in every cell.
DELIVERY = (
    "tests/sql",
    "tests/stream",
    "tests/scheduler",
    "tests/consumers",
    "tests/service/test_progress.py",
    "tests/service/test_outages.py",
    "tests/journeys/test_main_job.py",
)
# Every command to the broker at least once, within a minute.
SMOKE = (
    "tests/stream",
    "tests/scheduler/test_outbox.py",
    "tests/scheduler/test_reconcile.py",
    "tests/scheduler/test_rescue.py",
    "tests/consumers/test_outcomes.py",
)


@dataclass(frozen=True)
class Cell:
    """What one run of the tests stands on; everything else is as in the baseline."""

    name: str
    broker: Callable[[], Path] | None = None  # None: what the packages bring
    postgres: Callable[[], Path] | None = None
    python: str | None = None  # None: the one that runs this
    cluster: bool = False


# Not the product of all: one part at a time differs from the baseline.
CELLS = (
    Cell("baseline"),
    Cell("redis-6.2", broker=redis_6_2),
    Cell("redis-7.0", broker=redis_7_0),
    Cell("cluster", cluster=True),
    Cell("postgres-15", postgres=postgres_15),
    Cell("python-3.11", python="3.11"),
    Cell("python-3.13", python="3.13"),
)


@dataclass(frozen=True)
class Outcome:
    """How a cell ended, for its line."""

    status: str
    text: str
    failures: tuple[str, ...] = ()


def run(cell: Cell, tests: Sequence[str], words: Sequence[str]) -> Outcome:
    """Run the tests in one cell."""
    ours = "{}.{}".format(*sys.version_info)
    if cell.python == ours:
        return Outcome("same", f"Python {ours} is the baseline's")
    try:
        interpreter = python(cell.python or ours)
        broker = cell.broker() if cell.broker else None
        postgres = cell.postgres() if cell.postgres else None
    except Absent as absent:
        return Outcome("absent", str(absent))
    report, log = (KEPT / "runs" / f"{cell.name}.{kind}" for kind in ("xml", "log"))
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    began = time.monotonic()
    with log.open("wb") as output:
        status = subprocess.run(
            [
                *(interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
                *(f"--junitxml={report}", *tests, *words),
            ],
            cwd=ROOT,
            env={
                **os.environ,
                "LATEACK_TEST_BROKER_BINARY": str(broker or ""),
                "LATEACK_TEST_POSTGRES_BIN": str(postgres or ""),
                "LATEACK_TEST_CLUSTER": "1" if cell.cluster else "0",
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
        ).returncode
    stands_on = (
        f"Python {cell.python or ours}, PostgreSQL {version_of(postgres or postgres_programs())}, "
        f"{'Redis' if broker else 'Valkey'} {version_of(broker or valkey_server())}"
        f"{' as a cluster' if cell.cluster else ''}"
    )
    counts, failures = _counts(report)
    passed = status == 0 and not failures
    text = f"{stands_on}: {counts}, {time.monotonic() - began:.0f} s"
    return Outcome(
        "PASS" if passed else "FAIL",
        text if passed else f"{text}; see {log.relative_to(ROOT)}",
        failures,
    )


def _counts(report: Path) -> tuple[str, tuple[str, ...]]:
    if not report.exists():
        return "the tests did not run", ()
    suites = ET.parse(report).getroot()
    cases = list(suites.iter("testcase"))
    skipped = sum(case.find("skipped") is not None for case in cases)
    failures = tuple(
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    )
    counts = f"{len(cases) - skipped - len(set(failures))} passed, {len(set(failures))} failed"
    return counts + (f", {skipped} skipped" if skipped else ""), failures


def main() -> int:
    """Run the chosen cells one after the other; 1 when one failed."""
    known = {cell.name: cell for cell in CELLS}
    parser = argparse.ArgumentParser(prog="make matrix", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("cells", nargs="*", metavar="CELL", help=", ".join(known))
    parser.add_argument("--smoke", action="store_true", help="the short list of tests")
    parser.add_argument("--none-absent", action="store_true", help="an absent cell fails")
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    chosen = parser.parse_args(words[:split])
    if unknown := [name for name in chosen.cells if name not in known]:
        parser.error(f"no cell is called {', '.join(unknown)}; there are {', '.join(known)}")
    failed = False
    for name in chosen.cells or known:
        outcome = run(known[name], SMOKE if chosen.smoke else DELIVERY, words[split + 1 :])
        lines = (f"{outcome.status:<7} {name:<12} {outcome.text}", *outcome.failures[:10])
        print("\n        ".join(lines), flush=True)  # noqa: T201
        failed |= outcome.status == "FAIL" or (chosen.none_absent and outcome.status == "absent")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
