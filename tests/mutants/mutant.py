"""One guard taken out of the code, and the tests of which at least one has to fail then."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

QUERIES = "sql/lateack_sql/queries"
SCHEMA = "sql/lateack_sql/schema"


class Stale(Exception):
    """The list does not fit the code any more."""


@dataclass(frozen=True)
class Mutant:
    """`old` has to be in `file` exactly once; `tests` are arguments to pytest, words apart."""

    name: str
    file: str
    old: str
    new: str
    tests: str

    def text(self, root: Path) -> str:
        """The file's text with the guard gone.

        Raises:
            Stale: there is no such file, or not exactly one such place in it.
        """
        path = root / self.file
        if not path.exists():
            raise Stale(f"{self.name}: there is no {self.file}")
        text = path.read_text("utf-8")
        if (count := text.count(self.old)) != 1:
            raise Stale(f"{self.name}: {count} places in {self.file} read {self.old!r}")
        return text.replace(self.old, self.new)


def query(name: str, what: str, old: str, new: str, tests: str) -> Mutant:
    """A mutant of a statement."""
    return Mutant(f"{name}: {what}", f"{QUERIES}/{name}.sql", old, new, tests)
