"""From an entry to a running job: claim what was read, start it, and explain what was not claimed.

Every entry that comes in has a slot behind it. One that does not become a job gives its slot back,
and is acknowledged only when the ledger says that nothing will be missed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from lateack.app import App
from lateack_core.jobs import Claimed, Ledger, Owned, Unclaimed
from lateack_core.postgres import LedgerUnavailable
from lateack_core.progress import Trail, announce
from lateack_core.stream import Broker, Entry, Hint

from .acknowledger import Acknowledger
from .active import Active, Delivery
from .execution import Execution
from .slots import Slots

log = logging.getLogger("lateack.dispatcher")

# A task that this worker lacks is offered to others after about this many seconds.
UNKNOWN_TASK_DELAY = (1.0, 4.0)
# A job on its last life that has to wait for another such job is offered again after these.
LAST_LIFE_DELAY = (0.5, 2.0)


class Stray(NamedTuple):
    """An entry that is no job of ours."""

    delivery: Delivery
    fields: dict[str, str]
    reason: str

    def record(self) -> tuple[str, dict[str, str], str]:
        """What is kept of it: text that the ledger can hold, and not more than somebody reads."""
        kept = {_legible(name): _legible(value) for name, value in self.fields.items()}
        return self.delivery.entry_id, kept, self.reason


class Dispatcher:
    """Claims entries and starts their jobs."""

    def __init__(
        self,
        app: App,
        ledger: Ledger,
        broker: Broker,
        slots: Slots,
        acknowledger: Acknowledger,
        execution: Execution,
        *,
        worker_id: UUID,
        lease: float,
        max_losses: int,
    ) -> None:
        self._app = app
        self._tasks = list(app.tasks)
        self._waiting = [n for n, t in app.tasks.items() if t.declared.pool == "process"]
        self._ledger = ledger
        self._broker = broker
        self._slots = slots
        self._acknowledger = acknowledger
        self._execution = execution
        self._worker_id = worker_id
        self._lease = lease
        self._max_losses = max_losses
        # The one job here on its last life.
        self._last_life: UUID | None = None
        self.actives: dict[UUID, Active] = {}
        # How many dispatches ask for a job right now.
        self._asked: Counter[UUID] = Counter()
        self._starting: set[asyncio.Task[None]] = set()
        self._running: set[asyncio.Task[None]] = set()
        self._abandoned: set[asyncio.Task[None]] = set()
        self.stopping = False
        # Why the last claim failed unexpectedly; None when it did not.
        self.trouble: str | None = None

    def dispatch(self, entries: Sequence[Entry]) -> None:
        """Start what these entries bring; a slot was taken for each."""
        for entry in entries:
            self._acknowledger.handling.add((entry.stream, entry.entry_id))
        task = asyncio.create_task(self._dispatch(list(entries)))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    def is_handling(self, entry: Entry) -> bool:
        """Whether this entry is already in this worker's hands."""
        return (entry.stream, entry.entry_id) in self._acknowledger.handling

    @property
    def abandoned(self) -> int:
        """Bodies on the loop that ignore their end, and whose jobs are no longer ours."""
        return len(self._abandoned)

    async def started(self) -> None:
        """Wait until every entry that was dispatched is a job or explained."""
        while self._starting:
            await asyncio.wait(set(self._starting))

    async def finished(self, timeout: float) -> bool:
        """Wait until every job has ended; false when some have not after `timeout` seconds."""
        if self._running:
            await asyncio.wait(set(self._running), timeout=timeout)
        return not self._running

    async def hand_back(self, entries: Sequence[Entry]) -> None:
        """Give entries that nobody here can take to another worker, at once.

        Raises:
            BrokerUnavailable, LedgerUnavailable: they stay pending and are taken over later.
        """
        named = {job_id: entry for entry in entries if (job_id := job_id_of(entry)) is not None}
        if not named:
            return
        found = await self._ledger.why_not_claimed(list(named))
        hints = [Hint(why.job_id, why.queue, why.priority) for why in found if not why.ended]
        if hints:
            await self._broker.publish(hints)
        # One that names no job at all stays, to be set aside by whoever takes it over.
        for why in found:
            entry = named[why.job_id]
            self._acknowledger.offer(Delivery(entry.stream, entry.entry_id))

    # -- claiming -------------------------------------------------------------------------

    async def _dispatch(self, entries: list[Entry]) -> None:
        wanted, strays = self._sorted_out(entries)
        if strays:
            await self._set_aside(strays)
        asked = list(wanted)
        self._asked.update(asked)
        try:
            await self._claim_patiently(wanted)
        finally:
            self._asked.subtract(asked)
            self._asked = +self._asked

    async def _claim_patiently(self, wanted: dict[UUID, Delivery]) -> None:
        """Claim these, for as long as the database is away and the worker goes on."""
        pause = 0.1
        while wanted:
            try:
                await self._claim(wanted)
                self.trouble = None
            except LedgerUnavailable as error:
                if self.stopping:
                    # Unacknowledged, they are taken over by whoever is there.
                    self._leave(wanted.values())
                    return
                log.debug("claiming waits for the database: %s", error)
                await asyncio.sleep(pause * random.uniform(0.7, 1.3))
                pause = min(2.0, pause * 2)
            except Exception as error:
                log.exception("claiming %d jobs failed", len(wanted))
                self.trouble = f"{type(error).__name__}: {error}"
                self._leave(wanted.values())
                return

    async def _claim(self, wanted: dict[UUID, Delivery]) -> None:
        """Start what can be had of these, explain the rest; what is done with is taken out."""
        for job in await self._take(list(wanted), self._max_losses):
            self._start(job, wanted.pop(job.job_id))
        if wanted:
            await self._explain(wanted)
            wanted.clear()

    async def _take(self, job_ids: list[UUID], max_losses: int | None) -> list[Claimed]:
        return await self._ledger.claim(
            job_ids,
            self._worker_id,
            lease=self._lease,
            tasks=self._tasks,
            waiting=self._waiting,
            max_losses=max_losses,
        )

    async def _take_last_life(self, waiting: list[Unclaimed], wanted: dict[UUID, Delivery]) -> None:
        """Start one of the jobs that another lost worker would end, if none runs here.

        Which body has killed a worker nobody can know: all that ran there have lost it. So those
        that may have done it run one at a time at the end, and the innocent ones end well (RTY-01).
        """
        ready = (why.job_id for why in waiting if why.last_life and self._is_ready(why))
        if self._last_life is not None or (job_id := next(ready, None)) is None:
            return
        self._last_life = job_id
        taken: list[Claimed] = []
        try:
            taken = await self._take([job_id], None)
            for job in taken:
                self._start(job, wanted.pop(job_id))
        finally:
            if not taken:
                self._last_life = None

    def _is_ready(self, why: Unclaimed) -> bool:
        return why.status == "pending" and not why.expired and why.task in self._app.tasks

    def _sorted_out(self, entries: Sequence[Entry]) -> tuple[dict[UUID, Delivery], list[Stray]]:
        """The jobs that these entries name, each once; and what names none (REC-05)."""
        wanted: dict[UUID, Delivery] = {}
        strays: list[Stray] = []
        for entry in entries:
            delivery = Delivery(entry.stream, entry.entry_id)
            job_id = job_id_of(entry)
            if job_id is None:
                reason = "not a job's id" if "job" in entry.fields else "no job id in it"
                strays.append(Stray(delivery, entry.fields, reason))
            elif job_id in wanted:
                # A second hint for the same job has nothing to add.
                self._drop(delivery)
            else:
                wanted[job_id] = delivery
        return wanted, strays

    async def _set_aside(self, strays: Sequence[Stray]) -> None:
        """Record what is no job of ours, then clear it; what cannot be recorded stays pending."""
        log.warning("set aside %d messages that are no jobs of ours", len(strays))
        by_stream: dict[str, list[Stray]] = {}
        for stray in strays:
            by_stream.setdefault(stray.delivery.stream, []).append(stray)
        for stream, found in by_stream.items():
            try:
                await self._ledger.record_strays(stream, [stray.record() for stray in found])
            except Exception as error:
                log.warning("they could not be recorded and are left: %s", error)
                self._leave(stray.delivery for stray in found)
            else:
                for stray in found:
                    self._drop(stray.delivery)

    def _start(self, job: Claimed, delivery: Delivery) -> None:
        task = self._app.tasks[job.task]
        declared = task.declared
        active = Active(
            job=job,
            task=task,
            delivery=delivery,
            trail=Trail(job.job_id, job.fence, job.attempt),
            soft_limit=declared.soft_time_limit
            if job.soft_time_limit is None
            else job.soft_time_limit,
            hard_limit=declared.time_limit if job.time_limit is None else job.time_limit,
        )
        if not declared.acks_late:
            # At most once: from here on a crash ends the job as WorkerLost.
            self._acknowledger.offer(delivery)
        self.actives[job.job_id] = active
        running = asyncio.create_task(self._run(active), name=active.name)
        self._running.add(running)
        active.on_release(lambda: self._let_go(active, running))

    async def _run(self, active: Active) -> None:
        try:
            await self._execution.execute(active)
        finally:
            active.release_slot()

    def _let_go(self, active: Active, running: asyncio.Task[None]) -> None:
        self._slots.give()
        self._running.discard(running)
        if self.actives.get(active.job_id) is active:
            del self.actives[active.job_id]
        if self._last_life == active.job_id:
            self._last_life = None
        if active.disowned:
            # Whoever meets the entry next clears it, also when that is this worker's reclaimer.
            self._acknowledger.leave(active.delivery)
        if not active.ours and active.reason is not None:
            # Its body was told to end; until it does, it is one that was left behind.
            self._abandoned.add(running)
            running.add_done_callback(self._abandoned.discard)

    # -- what was not claimed -------------------------------------------------------------

    async def _explain(self, wanted: dict[UUID, Delivery]) -> None:
        found = await self._ledger.why_not_claimed(list(wanted), max_losses=self._max_losses)
        if unknown := wanted.keys() - {why.job_id for why in found}:
            absent = [
                Stray(wanted.pop(job_id), {"job": str(job_id)}, "no such job in the ledger")
                for job_id in unknown
            ]
            await self._set_aside(absent)
        reasons = {why.job_id: why for why in found if not why.ended}
        orphans = [why for why in reasons.values() if self._is_orphan(why)]
        if orphans:
            # The answer to an earlier claim never came: the lease is ours, the job is not running.
            # Handed back, it has cost no attempt.
            released = await self._ledger.release([Owned(w.job_id, w.fence) for w in orphans])
            await announce(self._broker, released)
        waiting = [why for why in reasons.values() if why.status != "running"]
        await self._take_last_life(waiting, wanted)
        waiting = [why for why in waiting if why.job_id in wanted]
        if late := [why.job_id for why in waiting if why.expired]:
            await announce(self._broker, await self._ledger.expire(late))
        deferred = {
            why.job_id: self._delay(why)
            for why in waiting
            if why.status == "pending" and not why.expired
        }
        if deferred:
            await self._ledger.defer(deferred)
        # Neither dropped nor acknowledged: whoever runs these may be dead (DEL-02).
        ours = {why.job_id for why in orphans}
        running = {w.job_id for w in reasons.values() if w.status == "running"} - ours
        self._leave(wanted[job_id] for job_id in running)
        for job_id in wanted.keys() - running:
            self._drop(wanted[job_id])

    def _is_orphan(self, why: Unclaimed) -> bool:
        mine = why.status == "running" and why.worker_id == self._worker_id
        # When two hints for it are being dispatched, the other one may have it and not know yet.
        return mine and why.job_id not in self.actives and self._asked[why.job_id] < 2

    def _delay(self, why: Unclaimed) -> float:
        if why.task in self._app.tasks:
            return random.uniform(*LAST_LIFE_DELAY) if why.last_life else 0.2
        return random.uniform(*UNKNOWN_TASK_DELAY)

    def _drop(self, delivery: Delivery) -> None:
        self._acknowledger.offer(delivery)
        self._slots.give()

    def _leave(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            self._acknowledger.leave(delivery)
            self._slots.give()


def _legible(text: str) -> str:
    return text[:1000].replace("\x00", "\ufffd")


def job_id_of(entry: Entry) -> UUID | None:
    """The job that an entry names; None when it names none."""
    try:
        return UUID(entry.fields.get("job", ""))
    except ValueError:
        return None
