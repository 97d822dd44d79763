"""The broker alone: one server, and a cluster of one node, whatever the rest of the run is on."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from lateack_core.stream import Broker
from tests.servers import broker_url, chosen_servers, kept_open

_numbers = itertools.count(1)


@pytest.fixture(scope="session", params=["server", "cluster"])
def url(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a broker."""
    cluster = request.param == "cluster"
    folder: Path = tmp_path_factory.mktemp("broker")
    with kept_open(chosen_servers(folder, postgres=False, cluster=cluster)) as servers:
        yield broker_url(servers, cluster=cluster)


@pytest.fixture
def namespace() -> str:
    """An empty part of the broker."""
    return f"s{next(_numbers)}"


@pytest.fixture
async def broker(url: str, namespace: str) -> AsyncIterator[Broker]:
    broker = Broker(url, namespace=namespace)
    yield broker
    await broker.close()
