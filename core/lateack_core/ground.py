"""What every process of lateack stands on: ledger, broker, publisher, relay, supervised loops."""

from __future__ import annotations

import asyncio
import logging
import time

from lateack.errors import DeclarationError

from .jobs import Ledger
from .log import Throttled
from .migrate import pending
from .outbox import Publisher, Relay
from .postgres import LedgerUnavailable, LedgerUnfit, Postgres, connect
from .process import Loop, Loops
from .registry import Registry
from .settings import Settings
from .stream import Broker, BrokerUnavailable, BrokerUnfit
from .submission import Submissions

log = logging.getLogger("lateack.ground")

PROBE_INTERVAL = 2.0


class Ground:
    """The parts that each process has. Nothing connects before it is used, so a process starts, and
    says that it is not ready, while database or broker are still away (BRK-14)."""

    def __init__(self, settings: Settings, postgres: Postgres, broker: Broker) -> None:
        self.settings = settings
        self.postgres = postgres
        self.broker = broker
        self.loops = Loops()
        self.ledger = Ledger(postgres)
        self.registry = Registry(self.ledger)
        self.publisher = Publisher(postgres, broker)
        self.relay = Relay(postgres, broker, interval=settings.relay_interval)
        self.submissions = Submissions(
            self.ledger,
            self.registry,
            self.publisher,
            caps=settings.caps,
            outbox_delay=settings.outbox_delay,
        )
        # Set when database or broker cannot be used as they are; the process has to stop.
        self.unfit: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.fit = asyncio.Event()
        self._broker_ok = 0.0
        self._ledger_ok = 0.0
        self._troubles = Throttled(log, every=30.0)

    def start(self) -> None:
        """Start the loops that every process has."""
        self.loops.start("probe", self._probe)
        self.loops.start("publisher", self.publisher.run)
        self.loops.start("relay", self.relay.run)

    async def close(self) -> None:
        """Stop the loops, publish what is left, close the connections."""
        await self.loops.stop()
        await self.broker.close()
        await self.postgres.close()

    def troubles(self) -> list[str]:
        """Why this process is not ready, one sentence each; empty when it is."""
        found = [f"loop {name} makes no progress" for name in self.loops.stalled()]
        now = time.monotonic()
        if not self.fit.is_set():
            found.append("database and broker have not both been reached yet")
        elif now - self._ledger_ok > 3 * PROBE_INTERVAL:
            found.append("the database does not answer")
        # A broker that is away delays jobs; they are still accepted, so it is no reason.
        if self.loops.stopping.is_set():
            found.append("stopping")
        return found

    @property
    def broker_away(self) -> bool:
        """Whether the broker has not answered lately."""
        return time.monotonic() - self._broker_ok > 3 * PROBE_INTERVAL

    async def _probe(self, loop: Loop) -> None:
        checked_ledger = checked_broker = False
        while not loop.stopping:
            try:
                if checked_ledger:
                    await self.postgres.fetch("ping")
                else:
                    await self.postgres.check()
                    if missing := await pending(self.postgres):
                        raise LedgerUnfit(
                            f"the database lacks {len(missing)} migrations, first {missing[0]}; "
                            "run: lateack migrate"
                        )
                    checked_ledger = True
                self._ledger_ok = time.monotonic()
            except LedgerUnavailable as error:
                self._troubles.warning(f"the database is away: {error}", time.monotonic())
            except LedgerUnfit as error:
                self._stop(str(error))
            try:
                # It may come back as another server: look each time.
                await self.broker.check()
                self._broker_ok = time.monotonic()
                checked_broker = True
            except BrokerUnavailable as error:
                self._troubles.warning(f"the broker is away: {error}", time.monotonic())
            except BrokerUnfit as error:
                self._stop(str(error))
            if checked_ledger and checked_broker:
                self.fit.set()
            loop.beat()
            await loop.pause(PROBE_INTERVAL if self.fit.is_set() else 0.5, jitter=0.1)

    def _stop(self, reason: str) -> None:
        if not self.unfit.done():
            self.unfit.set_result(reason)


async def open_ground(settings: Settings, *, process: str) -> Ground:
    """The ground of one process; `process` names its connections in the database's views.

    Raises:
        DeclarationError: a URL is missing or cannot be used.
    """
    if not settings.database_url or not settings.redis_url:
        raise DeclarationError(
            "DATABASE_URL and REDIS_URL must be set (lateack up starts servers of its own instead)"
        )
    try:
        postgres = await connect(
            settings.database_url,
            size=settings.pool_size,
            prepared_statements=settings.prepared_statements,
            name=f"lateack {process}",
        )
        broker = Broker(settings.redis_url, namespace=settings.namespace)
    except (LedgerUnavailable, ValueError) as error:
        raise DeclarationError(str(error)) from error
    return Ground(settings, postgres, broker)
