"""What REDIS_URL says about a cluster."""

from __future__ import annotations

import pytest

from lateack_core.stream import Broker
from lateack_core.stream.door import cluster_in


@pytest.mark.parametrize(
    ("url", "plain", "cluster"),
    [
        ("redis://h:1/0", "redis://h:1/0", False),
        ("redis://h:1/0?cluster=true", "redis://h:1/0", True),
        ("rediss://:p%40@h?cluster=1&db=0", "rediss://:p%40@h?db=0", True),
        ("redis://h?socket_timeout=3&cluster=False", "redis://h?socket_timeout=3", False),
        ("unix:///tmp/a.sock?db=1", "unix:///tmp/a.sock?db=1", False),
        ("unix:///tmp/a.sock?cluster=no", "unix:///tmp/a.sock", False),
    ],
)
def test_the_url_says_whether_it_is_a_cluster(url: str, plain: str, cluster: bool) -> None:
    assert cluster_in(url) == (plain, cluster)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://h?cluster=perhaps", "true or false"),
        ("redis://h/1?cluster=true", "'db' must be 0"),
        ("unix:///tmp/a.sock?cluster=true", "Unix domain socket"),
    ],
)
def test_what_cannot_be_a_cluster_is_refused(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Broker(url)


@pytest.mark.parametrize("url", ["redis://h:1?cluster=true", "rediss://h:1?cluster=true"])
async def test_a_cluster_is_not_asked_before_it_is_needed(url: str) -> None:
    await Broker(url).close()
