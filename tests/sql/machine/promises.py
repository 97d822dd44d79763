"""What holds of the ledger after any moves at all, without asking what they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from uuid import UUID

from tests.sql.machine.model import WAITING
from tests.sql.machine.table import Table


def check(before: Table, after: Table, hinted: Collection[UUID]) -> None:
    """`hinted` are the jobs of which somebody has a hint: the broker, or a worker that will put it
    back."""
    for job, row in after.rows.items():
        was = before.rows.get(job)
        # I2.
        assert was is None or not was.ended or row == was, f"a terminal row changed: {was} {row}"
        assert was is None or row.fence >= was.fence, "a fence went down"
        # I3.
        assert (row.lease is not None) == (row.status == "running"), row
        assert row.lease is None or row.lease.fence == row.fence, row
        assert row.result is None or row.status == "succeeded", row
        assert row.attempt <= row.max_retries + 1, row
        _attempts_are_explained(after, job)
    _nothing_is_forgotten(after, hinted)
    _joins_keep_their_rule(after)


def _attempts_are_explained(table: Table, job: UUID) -> None:
    """I10: each attempt has a row that says how it ended; the first, when it succeeds, has none."""
    row = table.rows[job]
    spent = Counter(ended.outcome for ended in row.attempts)
    del spent["handed_back"]
    silent = row.status == "succeeded" and not row.workflow and not spent["succeeded"]
    assert row.attempt == spent.total() + (row.status == "running") + silent, row
    assert not silent or row.attempt == 1, row
    assert row.losses == spent["lost"], row


def _nothing_is_forgotten(table: Table, hinted: Collection[UUID]) -> None:
    """I1: whatever can run, now or later, is in the outbox, or a hint of it is on its way."""
    in_outbox = {slip.job for slip in table.outbox}
    for job, row in table.rows.items():
        expired = row.expires_at is not None and row.expires_at <= table.now
        if row.status in WAITING and not expired:
            assert job in in_outbox or job in hinted, f"nobody will ever hear of {job}: {row}"


def _joins_keep_their_rule(table: Table) -> None:
    """I5: a join is decided when its step has ended, and counts it once."""
    feeding = {row.waiter: row for row in table.rows.values() if row.waiter is not None}
    decided = Counter(join["decided_at"] is not None for join in table.joins)
    assert decided[True] == sum(row.ended for row in feeding.values())
    for status in ("succeeded", "failed", "cancelled"):
        counted = sum(join[status] for join in table.joins)
        assert counted == sum(row.status == status for row in feeding.values()), status
    for waiter, upstream in feeding.items():
        row = table.rows[waiter]
        assert row.status == "cancelled" or (row.status == "blocked") != upstream.ended, row
        assert row.error != "UpstreamFailed" or upstream.status == "failed", row
