"""Both kinds of client against the real service, and against networks that misbehave."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from lateack_core.settings import Settings
from tests.client.callers import Caller, Kind
from tests.client.services import Service, WorkerOf, gates


@pytest.fixture(params=["async", "sync"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Which of the two clients."""
    kind: Kind = request.param
    return kind


@pytest.fixture
async def caller(kind: Kind) -> AsyncIterator[Callable[..., Caller]]:
    """Makes callers, which are closed at the end."""
    made: list[Caller] = []

    def make(url: str, **options: Any) -> Caller:
        made.append(Caller(kind, url, **options))
        return made[-1]

    yield make
    for one in made:
        await one.close()


@pytest.fixture
async def service(settings: Settings) -> AsyncIterator[Service]:
    """The real service, running."""
    service = Service(settings)
    await service.start()
    yield service
    await service.stop()


@pytest.fixture
async def worker(settings: Settings) -> AsyncIterator[WorkerOf]:
    """A real worker, running."""
    gates.clear()
    worker = WorkerOf(settings)
    await worker.start()
    yield worker
    for gate in gates.values():
        gate.set()
    await worker.stop()
