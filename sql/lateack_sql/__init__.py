"""The SQL of lateack, loaded once: `query(name)` is the text of `queries/<name>.sql`.

Every statement has a file of its own, named by what it does; the comment on top says what it
promises, which locks it takes and what its parameters are.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_NO_TRANSACTION = "-- no-transaction"


@dataclass(frozen=True)
class Migration:
    """One step of the schema. Forward only; once released, its text never changes."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def transactional(self) -> bool:
        """False for a file that begins with `-- no-transaction`: one idempotent statement."""
        return not self.text.startswith(_NO_TRANSACTION)


@cache
def query(name: str) -> str:
    """The statement called `name`.

    Raises:
        FileNotFoundError: there is no such file.
    """
    return (files(__name__) / "queries" / f"{name}.sql").read_text("utf-8")


@cache
def migrations() -> tuple[Migration, ...]:
    """Every migration, in the order in which they apply."""
    found = []
    for entry in (files(__name__) / "schema").iterdir():
        stem, dot, ending = entry.name.rpartition(".")
        if ending == "sql" and dot:
            number, _, name = stem.partition("_")
            found.append(Migration(int(number), name, entry.read_text("utf-8")))
    return tuple(sorted(found, key=lambda migration: migration.number))
