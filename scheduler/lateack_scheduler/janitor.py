"""Janitor: workers and consumers that came and died are forgotten, and no job of theirs is lost."""

from __future__ import annotations

import logging

from lateack_core.ground import Ground
from lateack_core.stream import BrokerUnavailable

log = logging.getLogger("lateack.janitor")


async def sweep(ground: Ground) -> tuple[int, int]:
    """Forget dead workers without a lease and idle consumers without an entry; how many of each.

    Raises:
        LedgerUnavailable
    """
    settings = ground.settings
    idle = max(settings.gone_after, settings.cleanup_interval)
    workers = await ground.ledger.prune_workers(idle)
    queues = set(await ground.ledger.live_queues())
    for worker in await ground.ledger.workers(settings.gone_after):
        queues.update(worker["queues"])
    consumers = 0
    try:
        for queue in sorted(queues):
            for stream in ground.broker.streams(queue):
                await ground.broker.ensure_group(stream)
                consumers += await ground.broker.remove_idle_consumers(stream, idle)
    except BrokerUnavailable as error:
        log.debug("consumers are left for the next sweep: %s", error)
    if workers or consumers:
        log.info("forgot %d dead workers and %d idle consumers", workers, consumers)
    return workers, consumers
