"""The outside system in which steps take effect: a folder with one file a token.

It behaves as a payment provider does: the first call with a token takes effect, a later one with
the same token gets what the first one got. Every call and every question is told to the history.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

from lateack import NOT_DONE
from lateack.effects import NotDone

from .history import History


class Outside:
    """The folder, as seen by one process."""

    def __init__(self, folder: Path, history: History) -> None:
        self._folder = folder
        self._history = history

    def apply(self, token: str, job: str, attempt: int) -> str:
        """Take effect under `token`; returns the receipt, the same at each call."""
        receipt = uuid.uuid4().hex
        mine = self._folder / f".{receipt}"
        mine.write_text(receipt)
        # A link is there whole or not at all, and only one can be made.
        try:
            os.link(mine, self._path(token))
            first = True
        except FileExistsError:
            first, receipt = False, self._path(token).read_text()
        mine.unlink()
        self._history.tell(
            "called",
            job=job,
            attempt=attempt,
            pid=os.getpid(),
            key=token,
            status="first" if first else "again",
            text=receipt,
        )
        return receipt

    def find(self, token: str, job: str, attempt: int) -> str | NotDone:
        """The receipt of what was done under `token`, or NOT_DONE."""
        found: str | None = None
        with contextlib.suppress(FileNotFoundError):
            found = self._path(token).read_text()
        self._history.tell(
            "asked", job=job, attempt=attempt, pid=os.getpid(), key=token, text=found or ""
        )
        return NOT_DONE if found is None else found

    def _path(self, token: str) -> Path:
        return self._folder / token.replace(":", ",")


def effects_of(folder: Path) -> dict[str, str]:
    """Every effect that the outside system has: token to receipt."""
    return {
        path.name.replace(",", ":"): path.read_text()
        for path in folder.iterdir()
        if not path.name.startswith(".")
    }
