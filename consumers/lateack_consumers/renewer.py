"""Renewing leases, from a thread of its own with connections of its own.

A task that blocks the event loop does not lose its lease: this thread goes on as long as the
process runs and the interpreter lets go now and then (I3). The same thread enforces what must not
depend on the loop: hard limits, cancellations, and the word about a loop that is blocked.

Renewal asks PostgreSQL first and then the broker, for the confirmed ids only: a blind XCLAIM would
steal entries back from their new owners. Only a definite "no" loses a job, silence never does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from uuid import UUID

from lateack_core.jobs import Failure, Ledger, Owned, Worker
from lateack_core.log import Throttled
from lateack_core.postgres import LedgerUnavailable, connect
from lateack_core.settings import Settings
from lateack_core.stream import Broker, BrokerUnavailable

from .active import Active, Reason
from .verdict import of_past_limit

log = logging.getLogger("lateack.renewer")

TICK = 0.2
CANCEL_INTERVAL = 1.0
# A loop that has not turned for so long is named in a warning.
LOOP_LAG_WARNING = 2.0
# After a hard limit the loop gets this long to let go of the job; then the process is replaced.
STUCK_AFTER = 5.0
EXIT_STUCK = 70


class Renewer:
    """The thread. `actives` is shared with the event loop and only read here."""

    def __init__(
        self,
        settings: Settings,
        worker: Worker,
        actives: Mapping[UUID, Active],
        *,
        consumer: str,
        abandoned: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._worker = worker
        self._actives = actives
        self._consumer = consumer
        self._abandoned = abandoned
        self._main_loop = asyncio.get_running_loop()
        self._main_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="lateack renewer", daemon=True)
        self._stop = threading.Event()
        self._troubles = Throttled(log)
        self.draining = False
        # When the event loop last turned, by its own word.
        self._turned = time.monotonic()
        self._warned_at = 0.0
        # When the ledger last answered everything that it was asked here.
        self._answered = time.monotonic()
        self._failed: dict[UUID, float] = {}

    def start(self) -> None:
        self._thread.start()

    def silence(self) -> None:
        """Renew nothing more after the turn that is under way."""
        self._stop.set()

    async def stop(self) -> None:
        """End the thread; leases are renewed until here."""
        self.silence()
        await asyncio.to_thread(self._thread.join, 5.0)

    @property
    def silent_for(self) -> float:
        """Seconds since a whole turn of the thread went well."""
        return time.monotonic() - self._answered

    def turned(self) -> None:
        """The event loop turned; to be called from it, several times a second."""
        self._turned = time.monotonic()

    # -- the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        # It must outlive any trouble: without it, every lease of this worker runs out.
        while not self._stop.is_set():
            try:
                asyncio.run(self._serve())
            except Exception as error:
                self._troubles.warning(
                    f"the renewer failed and starts again: {type(error).__name__}: {error}",
                    time.monotonic(),
                )
                log.debug("the renewer", exc_info=True)
                self._stop.wait(0.5)

    async def _serve(self) -> None:
        settings = self._settings
        assert settings.database_url
        assert settings.redis_url
        postgres = await connect(
            settings.database_url,
            size=2,
            prepared_statements=settings.prepared_statements,
            name="lateack renewer",
        )
        broker = Broker(settings.redis_url, namespace=settings.namespace, size=2)
        try:
            await self._beat_until_stopped(Ledger(postgres), broker)
        finally:
            await broker.close()
            await postgres.close()

    async def _beat_until_stopped(self, ledger: Ledger, broker: Broker) -> None:
        beat_at = cancel_at = 0.0
        while not self._stop.is_set():
            now = time.monotonic()
            try:
                await self._enforce_hard_limits(ledger, now)
                if now >= beat_at:
                    beat_at = now + self._settings.heartbeat
                    await self._renew(ledger, broker)
                    await ledger.beat_worker(self._worker, draining=self.draining)
                if now >= cancel_at:
                    cancel_at = now + CANCEL_INTERVAL
                    await self._look_for_cancellations(ledger)
                    self._answered = time.monotonic()
            except LedgerUnavailable as error:
                self._troubles.warning(f"the database is away, leases wait: {error}", now)
                # Renew as soon as it is back: past their expiry, leases are ours until taken.
                beat_at = min(beat_at, now + 0.5)
            except BrokerUnavailable as error:
                self._troubles.warning(f"the broker is away: {error}", now)
            self._watch_the_loop(now)
            await asyncio.sleep(TICK)

    async def _renew(self, ledger: Ledger, broker: Broker) -> None:
        actives = {a.job_id: a for a in list(self._actives.values()) if a.ours}
        if not actives:
            return
        renewals = await ledger.heartbeat(
            [active.beat() for active in actives.values()], lease=self._settings.lease
        )
        confirmed: dict[str, list[str]] = {}
        for renewal in renewals:
            active = actives[renewal.job_id]
            if renewal.renewed:
                confirmed.setdefault(active.delivery.stream, []).append(active.delivery.entry_id)
            elif not renewal.held and active.ours and not active.settling:
                log.warning("job %s is no longer ours: its lease was lost", active.job_id)
                self._on_loop(active.disown, Reason.LOST)
        for stream, entry_ids in confirmed.items():
            await broker.keep(stream, self._consumer, entry_ids)

    async def _look_for_cancellations(self, ledger: Ledger) -> None:
        for owned in await ledger.cancelled_leases(self._worker.worker_id):
            active = self._actives.get(owned.job_id)
            if active is not None and active.job.fence == owned.fence and active.reason is None:
                self._on_loop(active.interrupt, Reason.CANCEL)

    # -- what must not depend on the loop -------------------------------------------------

    async def _enforce_hard_limits(self, ledger: Ledger, now: float) -> None:
        late = [a for a in list(self._actives.values()) if a.ours and a.past_hard_limit(now)]
        fresh = [active for active in late if active.job_id not in self._failed]
        if fresh:
            await ledger.fail([_past_limit(active) for active in fresh])
            for active in fresh:
                log.warning(
                    "job %s (%s) is past its time limit of %g s",
                    active.job_id, active.job.task, active.hard_limit,
                )  # fmt: skip
                self._failed[active.job_id] = now
                self._on_loop(active.disown, Reason.HARD_LIMIT)
        overdue = [a for a in late if now - self._failed.get(a.job_id, now) > STUCK_AFTER]
        self._failed = {job_id: at for job_id, at in self._failed.items() if now - at < 60}
        if overdue or self._abandoned() >= self._worker.slots:
            await self._give_up_the_process(ledger)

    async def _give_up_the_process(self, ledger: Ledger) -> None:
        """The loop does not let go, or every slot is held by a body that cannot be ended: hand
        back what is innocent, and end. Whoever supervises this process starts a new one."""
        innocent = [
            Owned(a.job_id, a.job.fence)
            for a in list(self._actives.values())
            if a.ours and a.job_id not in self._failed
        ]
        log.error("this worker is stuck and ends; %d jobs are handed back", len(innocent))
        if innocent:
            await ledger.release(innocent)
        await ledger.remove_worker(self._worker.worker_id)
        os._exit(EXIT_STUCK)

    def _watch_the_loop(self, now: float) -> None:
        lag = now - self._turned
        if lag > LOOP_LAG_WARNING and now - self._warned_at > 10.0:
            self._warned_at = now
            frame = sys._current_frames().get(self._main_thread)
            stack = "".join(traceback.format_stack(frame)[-6:]) if frame else ""
            log.warning(
                "the event loop has been blocked for %.1f s; blocking code belongs in a def task. "
                "%s\n%s",
                lag,
                self._who_blocks(),
                stack,
            )

    def _who_blocks(self) -> str:
        """Who has the loop now; when that is a task of the body's own making, whoever it can be."""
        current = asyncio.current_task(self._main_loop)
        actives = list(self._actives.values())
        for active in actives:
            if current is not None and current.get_name() == active.name:
                return f"It is blocked by {active.job.task}, job {active.job_id}"
        return "Running: " + ", ".join(sorted({active.job.task for active in actives}))

    def _on_loop(self, call: Callable[[Reason], None], reason: Reason) -> None:
        try:
            self._main_loop.call_soon_threadsafe(call, reason)
        except RuntimeError:
            # The loop is closed: the worker has ended.
            return


def _past_limit(active: Active) -> Failure:
    verdict = of_past_limit(active.hard_limit or 0.0)
    return Failure(active.job.owned, verdict.code or "", verdict.message, verdict.info, None)
