"""From an entry to a running job: claim what was read, start it, and explain what was not claimed.

Every entry that comes in has a slot behind it. One that does not become a job gives its slot back,
and is acknowledged only when the ledger says that nothing will be missed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
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
    ) -> None:
        self._app = app
        self._tasks = list(app.tasks)
        self._ledger = ledger
        self._broker = broker
        self._slots = slots
        self._acknowledger = acknowledger
        self._execution = execution
        self._worker_id = worker_id
        self._lease = lease
        self.actives: dict[UUID, Active] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._running: set[asyncio.Task[None]] = set()
        self._abandoned: set[asyncio.Task[None]] = set()
        self.stopping = False

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
        for entry in named.values():
            self._acknowledger.offer(Delivery(entry.stream, entry.entry_id))

    # -- claiming -------------------------------------------------------------------------

    async def _dispatch(self, entries: list[Entry]) -> None:
        wanted = await self._sorted_out(entries)
        if not wanted:
            return
        pause = 0.1
        while True:
            try:
                claimed = await self._ledger.claim(
                    list(wanted), self._worker_id, lease=self._lease, tasks=self._tasks
                )
                for job in claimed:
                    self._start(job, wanted.pop(job.job_id))
                if wanted:
                    await self._explain(wanted)
                return
            except LedgerUnavailable as error:
                if self.stopping:
                    # Unacknowledged, they are taken over by whoever is there.
                    self._slots.give(len(wanted))
                    for delivery in wanted.values():
                        self._acknowledger.leave(delivery)
                    return
                log.debug("claiming waits for the database: %s", error)
                await asyncio.sleep(pause * random.uniform(0.7, 1.3))
                pause = min(2.0, pause * 2)
            except Exception:
                log.exception("claiming %d jobs failed", len(wanted))
                self._slots.give(len(wanted))
                for delivery in wanted.values():
                    self._acknowledger.leave(delivery)
                return

    async def _sorted_out(self, entries: Sequence[Entry]) -> dict[UUID, Delivery]:
        """The jobs that these entries name, each once; strays are set aside (REC-05)."""
        wanted: dict[UUID, Delivery] = {}
        strays: dict[str, list[tuple[str, dict[str, str], str]]] = {}
        for entry in entries:
            job_id = job_id_of(entry)
            if job_id is None:
                reason = "no job id in it" if "job" not in entry.fields else "not a job's id"
                strays.setdefault(entry.stream, []).append((entry.entry_id, entry.fields, reason))
                continue
            if job_id in wanted:
                # A second hint for the same job has nothing to add.
                self._drop(Delivery(entry.stream, entry.entry_id))
                continue
            wanted[job_id] = Delivery(entry.stream, entry.entry_id)
        for stream, found in strays.items():
            await self._set_aside(stream, found)
        return wanted

    async def _set_aside(self, stream: str, found: list[tuple[str, dict[str, str], str]]) -> None:
        log.warning("set aside %d messages of %s that are no jobs of ours", len(found), stream)
        try:
            await self._ledger.record_strays(stream, found)
        except LedgerUnavailable:
            for entry_id, _, _ in found:
                self._acknowledger.leave(Delivery(stream, entry_id))
            self._slots.give(len(found))
            return
        for entry_id, _, _ in found:
            self._drop(Delivery(stream, entry_id))

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
        running = asyncio.create_task(self._run(active), name=f"{job.task} {job.job_id}")
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
        if not active.ours and active.reason is not None:
            # Its body was told to end; until it does, it is one that was left behind.
            self._abandoned.add(running)
            running.add_done_callback(self._abandoned.discard)

    # -- what was not claimed -------------------------------------------------------------

    async def _explain(self, wanted: dict[UUID, Delivery]) -> None:
        found = await self._ledger.why_not_claimed(list(wanted))
        reasons = {why.job_id: why for why in found if not why.ended}
        orphans = [why for why in reasons.values() if self._is_orphan(why)]
        if orphans:
            # The answer to an earlier claim never came: the lease is ours, the job is not running.
            # Handed back, it has cost no attempt.
            released = await self._ledger.release([Owned(w.job_id, w.fence) for w in orphans])
            await announce(self._broker, released)
        waiting = [why for why in reasons.values() if why.status != "running"]
        if late := [why.job_id for why in waiting if why.expired]:
            await announce(self._broker, await self._ledger.expire(late))
        deferred = {
            why.job_id: self._delay(why)
            for why in waiting
            if why.status == "pending" and not why.expired
        }
        if deferred:
            await self._ledger.defer(deferred)
        running = reasons.keys() - {why.job_id for why in [*orphans, *waiting]}
        for job_id, delivery in wanted.items():
            if job_id in running:
                # Neither dropped nor acknowledged: whoever runs it may be dead (DEL-02).
                self._acknowledger.leave(delivery)
                self._slots.give()
            else:
                self._drop(delivery)

    def _is_orphan(self, why: Unclaimed) -> bool:
        mine = why.status == "running" and why.worker_id == self._worker_id
        return mine and why.job_id not in self.actives

    def _delay(self, why: Unclaimed) -> float:
        if why.task in self._app.tasks:
            return 0.2
        return random.uniform(*UNKNOWN_TASK_DELAY)

    def _drop(self, delivery: Delivery) -> None:
        self._acknowledger.offer(delivery)
        self._slots.give()


def job_id_of(entry: Entry) -> UUID | None:
    """The job that an entry names; None when it names none."""
    try:
        return UUID(entry.fields.get("job", ""))
    except ValueError:
        return None
