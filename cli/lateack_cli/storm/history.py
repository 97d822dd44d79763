"""The history of a run: one line of JSON for everything that was seen to happen.

Many processes append to one file. A line is one write on a descriptor opened with O_APPEND, so that
whoever is killed in the middle of its own line cannot tear another's.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec


class Line(msgspec.Struct, omit_defaults=True, frozen=True):
    """Something that happened. `at` is in seconds since 1970; `what` says which fields are used.

    accepted, replayed, refused, unknown, cancel   what the service said to a caller
    looking, seen, watching, watched               what it told of a job, and to whom it had to
    pried, listed, answer                          what it told others; answers of 500 and more
    began, finished, dying                         a body: it starts, ends, is about to kill itself
    effect, called, asked                          what bodies did: in the ledger; outside
    started, exited, signal, overdue               processes
    fault, calm                                    the storm
    """

    at: float
    what: str
    job: str = ""
    who: str = ""
    pid: int = 0
    attempt: int = 0
    tenant: str = ""
    kind: str = ""
    key: str = ""
    status: str = ""
    code: int = 0
    text: str = ""
    facts: dict[str, Any] = {}


class History:
    """The file, as one of those who write it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts: Counter[str] = Counter()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def tell(self, what: str, **fields: Any) -> None:
        """Append a line; `fields` are those of `Line`."""
        self.counts[what] += 1
        os.write(self._file, _encode(Line(time.time(), what, **fields)) + b"\n")

    def close(self) -> None:
        """Close the file; what was told stays."""
        os.close(self._file)


def read_history(path: Path) -> tuple[list[Line], int]:
    """The lines in the order in which they were written, and how many were torn."""
    lines, torn = [], 0
    for text in path.read_bytes().split(b"\n"):
        if not text:
            continue
        try:
            lines.append(_decode(text))
        except msgspec.MsgspecError:
            torn += 1
            # The stump of somebody who was killed may stand before another's whole line.
            if (begin := text.rfind(b'{"at":')) > 0:
                lines.append(_decode(text[begin:]))
    return lines, torn


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Line).decode
