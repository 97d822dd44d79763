"""Who may ask, where there is no gateway that vouches for the caller."""

from __future__ import annotations

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin

from lateack_core.identifiers import uuid7
from lateack_core.settings import Settings
from tests.service.conftest import served


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:8000"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
async def test_a_page_of_another_site_gets_nothing(
    settings: Settings, headers: dict[str, str]
) -> None:
    """I9: a browser on this machine is no way in, neither by a rebound name nor across sites."""
    async with served(settings) as url, httpx.AsyncClient(base_url=url) as http:
        reply = await http.get("/v1/jobs", headers=headers)
        assert reply.status_code == 403
        assert reply.json()["type"] == "foreign-page"
        assert (await http.get("/v1/jobs", headers={"Origin": url})).status_code == 200


async def test_a_socket_from_another_site_is_closed(settings: Settings) -> None:
    """I9: browsers open WebSockets across sites, so the service has to look."""
    async with served(settings) as url:
        address = f"{url.replace('http', 'ws')}/v1/jobs/{uuid7()}/progress"
        with pytest.raises((ConnectionClosed, InvalidStatus)) as met:
            async with connect(address, origin=Origin("https://evil.example")) as socket:
                await socket.recv()
        if isinstance(met.value, ConnectionClosed):
            assert met.value.rcvd is not None
            assert met.value.rcvd.code == 4403
