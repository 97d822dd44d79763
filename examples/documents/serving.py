"""A service for the time of the demo: `lateack up` as a child, with its own folder and port."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
APP = "examples.documents.tasks:app"
READY = "lateack is ready at "
# The first start makes a database cluster, which takes a while on a slow disk.
START_SECONDS = 180.0
# Running jobs are finished first; none of ours takes longer.
STOP_SECONDS = 60.0


class NotStarted(Exception):
    """`lateack up` ended before it was ready; the message holds the end of its log."""


@contextlib.asynccontextmanager
async def lateack_up(data_dir: Path, log: Path, hurry: asyncio.Event) -> AsyncIterator[str]:
    """Start the service; yields its URL, and stops it at the end, whatever that is.

    Setting `hurry` makes it hand back its running jobs instead of finishing them.

    Raises:
        NotStarted: it does not get ready.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as said:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "lateack_cli", "up", "-A", APP, "--port", "0"),
            *("--data-dir", str(data_dir), "-c", "8"),
            cwd=REPOSITORY,
            env=_environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=said,
            # A Ctrl-C reaches the demo alone, which then stops the service in order.
            start_new_session=True,
        )
    try:
        yield await _url_of(process, log)
    finally:
        await _stop(process, hurry)


def _environment() -> dict[str, str]:
    """Ours, less what would lead the service to somebody's own database or change its ways."""
    outside = ("LATEACK_", "DATABASE_URL", "REDIS_URL")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(outside)}
    # No more than so many documents wait at once; the next submission is told to come again.
    return kept | {"LATEACK_MAX_PENDING": "20"}


async def _url_of(process: asyncio.subprocess.Process, log: Path) -> str:
    assert process.stdout is not None
    line = ""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_SECONDS):
            line = (await process.stdout.readline()).decode()
    if line.startswith(READY):
        return line.removeprefix(READY).strip()
    raise NotStarted(f"lateack up did not get ready; its log, {log}, ends with:\n{_tail_of(log)}")


def _tail_of(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


async def _stop(process: asyncio.subprocess.Process, hurry: asyncio.Event) -> None:
    """End the service: politely, then at once, then by force."""
    ended = asyncio.create_task(process.wait())
    hurried = asyncio.create_task(hurry.wait())
    try:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            if ended.done():
                break
            process.send_signal(number)
            # The wish to hurry shortens the first wait only: the second is short by itself.
            waiting = {ended} if hurried.done() else {ended, hurried}
            await asyncio.wait(waiting, timeout=STOP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        await ended
    finally:
        hurried.cancel()
