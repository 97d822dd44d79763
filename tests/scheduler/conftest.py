"""A desk on a fresh ledger and an empty part of the broker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from lateack_core.ground import Ground
from tests.scheduler.clockwork import Clockwork
from tests.sql.conftest import empty_url
from tests.sql.desk import Desk, open_desk

__all__ = ["desk", "empty_url"]


@pytest.fixture
async def desk(ground: Ground) -> AsyncIterator[Desk]:
    """A desk whose loops do not run: nothing moves but what the test moves."""
    async with open_desk(ground) as desk:
        yield desk


@pytest.fixture
async def clock(desk: Desk) -> Clockwork:
    """Noon of a Thursday, and nothing scheduled."""
    clock = Clockwork(desk)
    await clock.set("2026-01-01T12:00:00+00:00")
    return clock
