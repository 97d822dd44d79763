"""A worker process: its parts, wired in one place, and its orderly end.

reader (one a queue) ─► dispatcher: claim ─► execution ─► settler: commit ─► acknowledger
renewer (thread): leases, hard limits, cancellations        reclaimer: entries of the dead
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from uuid import UUID

from lateack.app import App
from lateack.errors import DeclarationError
from lateack.models import Job, Submission
from lateack_core.ground import Ground, open_ground
from lateack_core.health import health
from lateack_core.identifiers import uuid7
from lateack_core.jobs import Worker
from lateack_core.postgres import LedgerUnavailable
from lateack_core.process import STALLED_AFTER, Loop
from lateack_core.registry import entries_of
from lateack_core.settings import Settings

from .acknowledger import Acknowledger
from .active import Reason
from .beginnings import Beginnings
from .bodies import Threads
from .cold import EXIT_LEFT_BEHIND, hand_back
from .current import current_tenant
from .dispatcher import Dispatcher
from .effects import Effector
from .execution import Execution
from .process_pool import ProcessPool
from .reader import Reader
from .reclaimer import Reclaimer
from .renewer import Renewer
from .reporter import Reporter
from .settler import Settler
from .slots import Slots
from .upkeep import Upkeep

log = logging.getLogger("lateack.worker")

# Bodies that were interrupted at the end of the grace period get this long to clean up.
CLEAN_UP = 2.0
# A fetch that is under way when the worker is to stop is waited for: longer than one waits in the
# broker, since its wake-up may have come a moment too early.
LAST_FETCH = 3.0


class WorkerProcess:
    """The parts of one worker on a ground."""

    def __init__(
        self, ground: Ground, app: App, *, queues: list[str], slots: int, name: str, app_path: str
    ) -> None:
        settings = ground.settings
        self.ground = ground
        self.app = app
        worker_id: UUID = uuid7()
        # New at every start: a dead process's name is never taken over by accident (REC-04).
        consumer = f"{name}-{worker_id.hex[-8:]}"
        self.record = Worker(
            worker_id, name, socket.gethostname(), os.getpid(), queues, list(app.tasks), slots
        )
        self.slots = Slots(slots)
        self.threads = Threads()
        self.processes = ProcessPool(
            app_path,
            most=settings.processes or max(2, min(slots, os.cpu_count() or 1)),
            begin=Beginnings(ground.ledger).begin,
            upkeep=Upkeep(
                settings.process_memory_limit,
                settings.process_max_jobs,
                settings.process_max_memory,
            ),
        )
        self.acknowledger = Acknowledger(ground.broker)
        self.settler = Settler(
            ground.ledger, ground.broker, self.acknowledger, max_losses=settings.max_worker_losses
        )
        self.effector = Effector(settings, ground.ledger, self.settler)
        self.dispatcher = Dispatcher(
            app,
            ground.ledger,
            ground.broker,
            self.slots,
            self.acknowledger,
            Execution(self.settler, self.effector, self.threads, self.processes),
            worker_id=worker_id,
            lease=settings.lease,
            max_losses=settings.max_worker_losses,
        )
        self.readers = [
            Reader(queue, ground.broker, self.slots, self.dispatcher, consumer=consumer)
            for queue in queues
        ]
        self.reclaimer = Reclaimer(
            queues,
            ground.ledger,
            ground.broker,
            self.slots,
            self.dispatcher,
            consumer=consumer,
            min_idle=settings.reclaim_idle,
            interval=settings.reclaim_interval,
            settle=settings.ledger_settle,
            max_losses=settings.max_worker_losses,
        )
        self.fetching: list[Loop] = []
        self.reporter = Reporter(ground.broker, self.dispatcher.actives)
        self.renewer = Renewer(
            settings,
            self.record,
            self.dispatcher.actives,
            consumer=consumer,
            abandoned=lambda: self.threads.abandoned + self.dispatcher.abandoned,
        )

    async def start(self) -> None:
        """Register the tasks, for as long as that takes, and start reading."""
        ground = self.ground
        await self._register()
        self.app.use_transport(self._submit)
        self.renewer.start()
        ground.loops.start("turns", self._turns)
        ground.loops.start("acknowledger", self.acknowledger.run)
        ground.loops.start("reporter", self.reporter.run)
        self.fetching.append(ground.loops.start("reclaimer", self.reclaimer.run))
        for reader in self.readers:
            self.fetching.append(ground.loops.start(f"reader {reader.queue}", reader.run))

    async def _register(self) -> None:
        """A database may answer reads and refuse writes; that passes, too (BRK-14)."""
        pause = 0.2
        while True:
            try:
                await self.ground.ledger.register_tasks(entries_of(self.app))
                await self.ground.ledger.beat_worker(self.record)
                return
            except LedgerUnavailable as error:
                log.warning("not ready: the tasks cannot be registered yet: %s", error)
                await asyncio.sleep(pause)
                pause = min(5.0, pause * 2)

    def troubles(self) -> list[str]:
        """Why this worker should not be counted on, beyond what its loops tell."""
        found = []
        if self.dispatcher.trouble is not None:
            found.append(f"jobs cannot be claimed: {self.dispatcher.trouble}")
        if self.renewer.silent_for > STALLED_AFTER:
            found.append("leases are not renewed")
        if self.dispatcher.stopping:
            found.append("draining")
        return found

    async def drain(self, *, grace: float, hurry: asyncio.Event) -> None:
        """Stop reading, let jobs finish for `grace` seconds, hand the others back, say goodbye."""
        log.info("draining: %d jobs are running", len(self.dispatcher.actives))
        self.renewer.draining = True
        self.dispatcher.stopping = True
        # Only what fetches ends now; reports and soft limits go on to the last job.
        for loop in self.fetching:
            loop.retire()
        for reader in self.readers:
            await reader.wake()
        # What a fetch that is under way brings would be claimed behind our back.
        await asyncio.wait([loop.task for loop in self.fetching if loop.task], timeout=LAST_FETCH)
        await self.dispatcher.started()
        for active in list(self.dispatcher.actives.values()):
            if active.queued:
                # Others can begin it now (SHD-02).
                active.interrupt(Reason.DRAIN)
        await _first(self.dispatcher.finished(grace), hurry.wait())
        if self.dispatcher.actives:
            log.warning("handing back %d jobs that did not finish", len(self.dispatcher.actives))
            for active in list(self.dispatcher.actives.values()):
                active.interrupt(Reason.DRAIN)
            if not await self.dispatcher.finished(CLEAN_UP):
                await self._leave_behind()
        await self.renewer.stop()
        await self.processes.close()
        await self.effector.close()
        await self.acknowledger.flush()
        for reader in self.readers:
            await reader.close()
        with contextlib.suppress(LedgerUnavailable):
            await self.ground.ledger.remove_worker(self.record.worker_id)
        self.app.use_transport(None)

    def end_cold(self) -> int:
        """End every body at once and hand the jobs back; the exit code. For the main thread, which
        must not go on afterwards."""
        self.renewer.silence()
        self.processes.kill()
        count = hand_back(self.ground.settings, self.record.worker_id)
        with contextlib.suppress(Exception):
            # A log that was interrupted in the middle of a line may refuse another.
            if count is not None:
                log.warning("cold shutdown: %d jobs were handed back", count)
            else:
                log.error(
                    "cold shutdown: the database did not take every job back; those that are left "
                    "behind run again when their leases have ended"
                )
        return EXIT_LEFT_BEHIND if count is None else 0

    async def _leave_behind(self) -> None:
        """Bodies that ignore their interruption: their jobs go back, what they say is dropped."""
        self.settler.giving_up.set()
        stubborn = [active for active in self.dispatcher.actives.values() if active.ours]
        for active in stubborn:
            log.error(
                "left behind: job %s (%s) ignores its interruption", active.job_id, active.job.task
            )
            active.disown(Reason.DRAIN)
        # Before anybody else can start them.
        self.processes.kill()
        if stubborn:
            with contextlib.suppress(LedgerUnavailable):
                await self.ground.ledger.release([active.job.owned for active in stubborn])
                for active in stubborn:
                    self.acknowledger.offer(active.delivery)

    async def _turns(self, loop: Loop) -> None:
        """Tell the renewer that the event loop turns."""
        while not loop.stopping:
            loop.beat()
            self.renewer.turned()
            await loop.pause(0.1)

    async def _submit(self, submission: Submission) -> Job:
        """How `.enqueue()` works inside this worker: straight to the ledger, same tenant."""
        accepted = await self.ground.submissions.accept(current_tenant(), submission)
        return accepted.job


async def work(
    settings: Settings,
    app: App,
    *,
    queues: list[str] | None,
    slots: int,
    name: str | None,
    app_path: str,
    stop: asyncio.Event,
    hurry: asyncio.Event,
    ready: Callable[[], None],
    also: Callable[[Ground], None] | None = None,
    on_cold: Callable[[Callable[[], int]], None] | None = None,
) -> int:
    """Run a worker until `stop` is set, then drain it; `hurry` cuts the drain short.

    `slots` is how many jobs it has in hand at once. `also` may start further loops on the worker's
    ground (the scheduler's, for -B). `on_cold` is given the cold shutdown: it ends every body at
    once, hands the jobs back and returns the exit code. Returns the exit code.

    Raises:
        DeclarationError: it cannot work as it was started.
    """
    queues = queues or app.queues
    if not queues:
        raise DeclarationError(f"{app_path} declares no tasks, and no queue was given (-Q)")
    if slots < 1:
        raise DeclarationError("a worker needs at least one slot (-c 1)")
    ground = await open_ground(settings, process="worker")
    worker: WorkerProcess | None = None

    def troubles() -> list[str]:
        return ground.troubles() + (["starting"] if worker is None else worker.troubles())

    async with health(settings.health, troubles):
        ground.start()
        try:
            if not await _until_fit(ground, stop):
                return 0
            worker = WorkerProcess(
                ground,
                app,
                queues=queues,
                slots=slots,
                name=name or default_name(),
                app_path=app_path,
            )
            if on_cold is not None:
                on_cold(worker.end_cold)
            if not await _unless(stop, worker.start(), ground.unfit):
                return 0
            if also is not None:
                also(ground)
            log.info("ready: %d slots on %s", slots, ", ".join(queues))
            ready()
            await _first(stop.wait(), ground.unfit)
            await worker.drain(grace=settings.grace, hurry=hurry)
            if ground.unfit.done():
                raise DeclarationError(ground.unfit.result())
            return 0
        finally:
            await ground.close()


async def _until_fit(ground: Ground, stop: asyncio.Event) -> bool:
    """Wait until database and broker are there; false when told to stop before that."""
    await _first(ground.fit.wait(), stop.wait(), ground.unfit)
    if ground.unfit.done():
        raise DeclarationError(ground.unfit.result())
    return not stop.is_set()


async def _unless(
    stop: asyncio.Event, work: Coroutine[Any, Any, None], unfit: asyncio.Future[str]
) -> bool:
    """Do `work`; false when told to stop before it was done.

    Raises:
        DeclarationError: a server turned out to be unfit meanwhile.
    """
    task = asyncio.ensure_future(work)
    await _first(task, stop.wait(), unfit)
    if unfit.done():
        raise DeclarationError(unfit.result())
    if not task.done() or task.cancelled():
        return False
    task.result()
    return True


async def _first(*waits: Awaitable[Any]) -> None:
    """Return as soon as one of these has; the others are given up, a bare future is left alone."""
    futures: set[asyncio.Future[Any]] = {asyncio.ensure_future(wait) for wait in waits}
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    for future in futures:
        if isinstance(future, asyncio.Task):
            future.cancel()


def default_name() -> str:
    """A worker's name when none is given."""
    return f"{socket.gethostname()}-{os.getpid()}"
