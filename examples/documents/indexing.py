"""Index: vectors go into one SQLite file, and a search is an inner product over it.

The file serves several processes at once: who finds it locked waits, for at most BUSY_SECONDS, and
one document is replaced in one transaction of a few milliseconds. A task that runs twice, or two
that run at the same time, leave the index as one run would.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from .chunking import Chunk
from .embedding import Vector, question_terms

BUSY_SECONDS = 20.0

SCHEMA_VERSION = 1
SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS chunks (
    id        INTEGER PRIMARY KEY,
    document  TEXT NOT NULL,
    number    INTEGER NOT NULL,
    source    TEXT NOT NULL,
    heading   TEXT NOT NULL,
    page      INTEGER NOT NULL,
    text      TEXT NOT NULL,
    UNIQUE (document, number)
);
CREATE TABLE IF NOT EXISTS weights (
    term      TEXT NOT NULL,
    chunk     INTEGER NOT NULL REFERENCES chunks (id) ON DELETE CASCADE,
    weight    REAL NOT NULL,
    PRIMARY KEY (term, chunk)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS weights_of_chunk ON weights (chunk);
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""

INSERT_CHUNK = """
INSERT INTO chunks (document, number, source, heading, page, text) VALUES (?, ?, ?, ?, ?, ?)
"""
INSERT_WEIGHT = "INSERT INTO weights (term, chunk, weight) VALUES (?, ?, ?)"

SEARCH = """
WITH rarity AS (
    SELECT term, rarity(count(*), (SELECT count(*) FROM chunks)) AS factor
    FROM weights WHERE term IN (SELECT value FROM json_each(?)) GROUP BY term
)
SELECT source, page, heading, text, sum(weight * factor) AS score
FROM rarity JOIN weights USING (term) JOIN chunks ON chunks.id = chunk
GROUP BY chunk ORDER BY score DESC, document, number LIMIT ?
"""


class Hit(msgspec.Struct, frozen=True):
    """A piece that answers a search, and the file it is from. Higher scores answer better."""

    source: str
    page: int
    heading: str
    text: str
    score: float


def index_chunks(
    index: Path, document: str, source: str, chunks: Sequence[Chunk], vectors: Sequence[Vector]
) -> int:
    """Make these the pieces of `document`, whatever it had before; returns how many.

    Raises:
        sqlite3.OperationalError: another writer held the file for BUSY_SECONDS; try again.
        ValueError: chunks and vectors do not belong together.
    """
    if [chunk.number for chunk in chunks] != [vector.number for vector in vectors]:
        raise ValueError(f"{source}: {len(chunks)} chunks do not match {len(vectors)} vectors")
    with opened(index) as connection, connection:
        # Taking the write lock first spares a deadlock between two readers that turn writers.
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM chunks WHERE document = ?", (document,))
        for chunk, vector in zip(chunks, vectors, strict=True):
            row = (document, chunk.number, source, chunk.heading, chunk.page, chunk.text)
            key = connection.execute(INSERT_CHUNK, row).lastrowid
            weights = [(term, key, weight) for term, weight in vector.weights.items()]
            connection.executemany(INSERT_WEIGHT, weights)
    return len(chunks)


def search(index: Path, question: str, limit: int = 3) -> list[Hit]:
    """The pieces that answer a question in English or Chinese best, best first."""
    terms = msgspec.json.encode(question_terms(question)).decode()
    with opened(index) as connection:
        rows = connection.execute(SEARCH, (terms, limit)).fetchall()
    return [Hit(*row) for row in rows]


@contextmanager
def opened(index: Path) -> Iterator[sqlite3.Connection]:
    """The index, made when it is missing. Connections are not shared between threads."""
    index.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(index, timeout=BUSY_SECONDS, isolation_level=None)
    with closing(connection):
        connection.create_function("rarity", 2, _rarity, deterministic=True)
        connection.execute("PRAGMA foreign_keys = ON")
        if connection.execute("PRAGMA user_version").fetchone() != (SCHEMA_VERSION,):
            connection.executescript(SCHEMA)
        yield connection


def _rarity(containing: int, pieces: int) -> float:
    """BM25's inverse document frequency: 0 for a term in every piece, high for a rare one."""
    return math.log(1 + (pieces - containing + 0.5) / (containing + 0.5))
