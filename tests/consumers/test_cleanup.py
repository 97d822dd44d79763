"""The cleanup of stale jobs needs no slot of any worker."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lateack_core.settings import Settings
from tests.consumers.conftest import Caller, lines, until
from tests.consumers.processes import lateack, worker_process


async def test_cleanup_runs_while_every_worker_is_occupied(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """SCH-11: one job holds the only slot for many intervals; those behind it time out meanwhile,
    one after the other, and the worker that had no time for them never runs them."""
    settings = msgspec.structs.replace(settings, pending_timeout="1.0", cleanup_interval=0.3)
    held, late = tmp_path / "held", tmp_path / "late"
    async with (
        worker_process(settings, tmp_path / "worker.log", slots=1),
        lateack(settings, tmp_path / "scheduler.log", "scheduler"),
    ):
        holder = await caller.submit("slow", str(held), 8.0)
        await until(lambda: lines(held))
        for _ in range(3):
            stale = await caller.submit("slow", str(late), 0.1)
            ended = await caller.until(stale.job_id)
            assert (ended.status, ended.error_code) == ("failed", "PendingTimeout")
            assert (await caller.job(holder.job_id)).status == "running"
        assert (await caller.until(holder.job_id)).attempt == 1
    assert lines(late) == []
