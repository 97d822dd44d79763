"""One job, top to bottom: the page to read first.

A job comes here claimed: its row says `running`, its lease is ours, its fence is in hand. Here its
body runs, its end is judged, and the outcome is settled: committed to the ledger, then acknowledged
to the broker. A worker that dies on the way has acknowledged nothing, and another one takes over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import msgspec

from lateack.arguments import misfit
from lateack.errors import TransactionLost

from .active import Active, Reason
from .bodies import Threads, run_on_loop
from .current import enter_tenant
from .effects import Effector
from .process_pool import ChildDied, ChildUnusable, ProcessPool
from .settler import Settler
from .verdict import Verdict, of_bad_arguments, of_error, of_past_limit, of_value

log = logging.getLogger("lateack.execution")


class Execution:
    """Runs claimed jobs to their outcome."""

    def __init__(
        self, settler: Settler, effector: Effector, threads: Threads, processes: ProcessPool
    ) -> None:
        self._settler = settler
        self._effector = effector
        self._threads = threads
        self._processes = processes

    async def execute(self, active: Active) -> None:
        """Run one claimed job. Whatever happens ends as an outcome or with its lease."""
        try:
            verdict = await self._run(active)
        except asyncio.CancelledError:
            verdict = None
        except ChildDied as error:
            if active.ours and active.reason is None:
                # A crash counts as a lost worker, so that a job cannot crash for ever.
                log.warning("job %s (%s): %s", active.job_id, active.job.task, error)
                await self._settler.lose(active)
                active.release_slot()
                return
            verdict = None
        except TransactionLost as error:
            await self._after_lost_transaction(active, error)
            return
        except Exception as error:
            # The worker's own trouble; handed back, such a job could go round for ever.
            log.exception("job %s could not be run", active.job_id)
            verdict = of_error(active.task, error, active.job.attempt)
        if not active.ours:
            if active.settling and verdict is not None and verdict.code is not None:
                log.warning(
                    "job %s (%s) is committed; its body then raised %s: %s",
                    active.job_id, active.job.task, verdict.code, verdict.message,
                )  # fmt: skip
            return
        try:
            await self._settle(active, verdict)
        finally:
            active.release_slot()

    async def _run(self, active: Active) -> Verdict | None:
        """The body's verdict; None when it was interrupted and said nothing of its own."""
        args, kwargs, meta = arguments_of(active)
        task, job = active.task, active.job
        enter_tenant(job.tenant_id)
        if reason := misfit(task.parameters, args, kwargs):
            return of_bad_arguments(f"{task.name} {reason}")
        if task.declared.pool == "process":
            try:
                return await self._processes.run(active, self._effector, args, kwargs, meta)
            except ChildUnusable as error:
                return error.verdict
        try:
            if task.is_async:
                value = await run_on_loop(active, self._effector, args, kwargs, meta)
            else:
                value = await self._threads.run(active, self._effector, args, kwargs, meta)
        except asyncio.CancelledError as error:
            # Interrupted by us, or a cancellation of the body's own making.
            return None if active.reason else of_error(task, error, job.attempt)
        except TransactionLost:
            raise
        except BaseException as error:
            return of_error(task, error, job.attempt)
        return of_value(task, value, ignore_result=job.ignore_result)

    async def _after_lost_transaction(self, active: Active, error: TransactionLost) -> None:
        """Nobody here knows whether it was committed. Both moves are fenced: if it was, they find
        an ended job and do nothing. An outage costs no attempt (I10); a connection that broke in
        a healthy database counts like a crash, so that it cannot go on for ever."""
        log.warning("job %s (%s): %s", active.job_id, active.job.task, error)
        try:
            await (self._settler.release if error.outage else self._settler.lose)(active)
        finally:
            active.release_slot()

    async def _settle(self, active: Active, verdict: Verdict | None) -> None:
        handed_back = active.reason is Reason.DRAIN and (
            verdict is None or verdict.code is not None
        )
        if handed_back or (verdict is None and active.reason is None):
            await self._settler.release(active)
        elif verdict is None or (active.reason is Reason.CANCEL and verdict.code is not None):
            # The ledger ends it cancelled, since its cancellation was asked for.
            await self._settler.fail(active, Verdict(code="Cancelled", message="cancelled"))
        elif verdict.code is None and active.past_hard_limit(time.monotonic()):
            # The renewer says so too, unless the database was away: the limit holds all the same.
            await self._settler.fail(active, of_past_limit(active.hard_limit or 0.0))
        elif verdict.code is None:
            await self._settler.complete(active, verdict)
        else:
            await self._settler.fail(active, verdict)


def arguments_of(active: Active) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """(args, kwargs, meta) of a job; in a chain the result of the step before stands first."""
    job = active.job
    args: list[Any] = msgspec.json.decode(job.args)
    kwargs: dict[str, Any] = msgspec.json.decode(job.kwargs)
    meta: dict[str, Any] = {} if job.meta is None else msgspec.json.decode(job.meta)
    if job.upstream is not None:
        args.insert(0, msgspec.json.decode(job.upstream))
    return args, kwargs, meta
