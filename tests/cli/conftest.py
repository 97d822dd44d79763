"""A folder to run commands in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli.processes import Bench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """A folder with a task file; whatever runs in it at the end is ended."""
    bench = Bench(tmp_path)
    yield bench
    await bench.close()
