"""Starting, freezing and killing replicas as real processes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from lateack_core.settings import Settings, environment_of
from tests.sql.desk import PATIENCE

SCRIPT = Path(__file__).with_name("replica.py")


class Replica:
    """A process and what it says."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said = ""

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def hear(self, words: str) -> None:
        """Wait until it has said something."""
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while words not in self.said:
                line = await self.process.stderr.readline()
                assert line, f"it ended before it said {words!r}:\n{self.said}"
                self.said += line.decode()


@asynccontextmanager
async def replica(
    settings: Settings, kind: str = "scheduler", *, script: Path = SCRIPT
) -> AsyncIterator[Replica]:
    """A replica; it is killed at the end of the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        kind,
        env={**os.environ, **environment_of(settings)},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Replica(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
