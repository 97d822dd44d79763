"""A process to freeze and kill: `scheduler`, or `relay`, which dies when it has published."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence

from lateack_core import outbox
from lateack_core.postgres import connect
from lateack_core.settings import Settings, from_environment
from lateack_core.stream import Broker, Hint
from lateack_scheduler.scheduler import schedule

log = logging.getLogger("replica")


async def scheduler(settings: Settings) -> None:
    """A replica of the scheduler, until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await schedule(settings, stop=stop, ready=lambda: log.info("ready"))


class Dying(Broker):
    """Publishes, and then its process is no more: nothing can be recorded."""

    async def publish(self, hints: Sequence[Hint]) -> list[bool]:
        await super().publish(hints)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("dead")


async def relay(settings: Settings) -> None:
    """A relay that takes a few rows, publishes them and is killed."""
    assert settings.database_url is not None
    assert settings.redis_url is not None
    outbox.MOST = 50
    postgres = await connect(settings.database_url)
    broker = Dying(settings.redis_url, namespace=settings.namespace)
    while True:
        await outbox.Relay(postgres, broker, interval=0.1).turn()


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level="INFO")
    asyncio.run({"scheduler": scheduler, "relay": relay}[sys.argv[1]](from_environment()))
