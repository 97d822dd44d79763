"""What the ledger, the broker and the outside hold at the end, as plain data for the checker."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec


class JobRow(msgspec.Struct):
    """A row of `jobs`, as far as it is looked at."""

    id: str
    tenant_id: str
    task: str
    status: str
    created_at: datetime
    run_at: datetime
    queue: str = "default"
    engine: str = "lateack"
    fence: int = 0
    attempt: int = 0
    max_retries: int = 3
    worker_losses: int = 0
    args: list[Any] = []
    root_id: str | None = None
    waits_for: str | None = None
    feeds: str | None = None
    external_ref: str | None = None
    expires_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    error_code: str | None = None
    error_message: str | None = None


class ResultRow(msgspec.Struct):
    job_id: str
    result: Any


class AttemptRow(msgspec.Struct):
    job_id: str
    fence: int
    attempt: int
    outcome: str
    ended_at: datetime
    started_at: datetime | None = None
    worker_id: str | None = None
    error_code: str | None = None


class StepRow(msgspec.Struct):
    job_id: str
    name: str
    fence: int
    attempt: int
    begun: int
    began_at: datetime
    ended_at: datetime | None = None
    result: Any = None
    error: str | None = None


class KeyRow(msgspec.Struct):
    tenant_id: str
    key: str
    job_id: str


class TickRow(msgspec.Struct):
    schedule_id: str
    due_at: datetime
    outcome: str
    job_id: str | None = None
    epoch: int | None = None
    reason: str | None = None


class EffectRow(msgspec.Struct):
    """A business row that a body wrote in its job's transaction."""

    job_id: str
    attempt: int
    at: datetime


class Queue(msgspec.Struct):
    """What a queue's streams hold: entries that wait, and entries that were read and not acked."""

    name: str
    waiting: int
    reserved: int


class Snapshot(msgspec.Struct):
    """Everything. `leases`, `outbox` and `joins` (undecided ones) are to be empty."""

    jobs: list[JobRow] = []
    results: list[ResultRow] = []
    attempts: list[AttemptRow] = []
    steps: list[StepRow] = []
    keys: list[KeyRow] = []
    effects: list[EffectRow] = []
    ticks: list[TickRow] = []
    leases: list[dict[str, Any]] = []
    outbox: list[dict[str, Any]] = []
    joins: list[dict[str, Any]] = []
    queues: list[Queue] = []
    receipts: dict[str, str] = {}  # the outside system: token to receipt

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_bytes(msgspec.json.encode(self))
