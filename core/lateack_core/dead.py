"""What waits for an operator: jobs that failed for good, and steps whose effect is not known."""

from __future__ import annotations

from uuid import UUID

from lateack.ended import DeadLetter, Ended, StepInDoubt

from .jobs import Ledger

LAST_ID = UUID(int=(1 << 128) - 1)


async def dead_letters(
    ledger: Ledger, tenant_id: str, which: Ended, *, before: UUID | None, most: int
) -> list[DeadLetter]:
    """A tenant's failed jobs that nobody redrove, newest first. `before` is the id to go on from.

    Raises:
        LedgerUnavailable
    """
    rows = await ledger.postgres.fetch(
        "dead_letters",
        tenant_id,
        which.task,
        which.queue,
        which.tag,
        which.error_code,
        which.since,
        which.until,
        before or LAST_ID,
        most,
    )
    return [DeadLetter(**row) for row in rows]


async def steps_in_doubt(
    ledger: Ledger, tenant_id: str, *, before: tuple[UUID, str] | None, most: int
) -> list[StepInDoubt]:
    """A tenant's steps that began, never ended, and whose attempt is over; of the newest job
    first. `before` is the job and the name to go on from.

    Raises:
        LedgerUnavailable
    """
    rows = await ledger.postgres.fetch(
        "steps_in_doubt", tenant_id, *(before or (LAST_ID, "")), most
    )
    return [
        StepInDoubt(
            job_id=row["job_id"],
            task=row["task"],
            queue=row["queue"],
            status=row["status"],
            name=row["name"],
            key=f"{row['origin_id']}:{row['name']}",
            since=row["began_at"],
            attempt=row["attempt"],
            begun=row["begun"],
            error=row["error"],
        )
        for row in rows
    ]
