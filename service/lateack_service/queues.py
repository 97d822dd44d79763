"""Queues and tasks, as one tenant may see them."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, get

from .given import GroundGiven, TenantGiven
from .problems import json_response


class QueueView(msgspec.Struct):
    """A tenant's own live jobs in a queue. `oldest_age` is that of the oldest pending one, in
    seconds; null when none is pending. What is not in `counts` is 0; an empty queue has none."""

    queue: str
    counts: dict[str, int]
    oldest_age: float | None


@get("/v1/queues", summary="Your own live jobs by queue")
async def list_queues(
    request: Request[Any, Any, Any], ground: GroundGiven, tenant: TenantGiven
) -> Response[bytes]:
    """Counts by status. Other tenants' numbers are not among them."""
    views: dict[str, QueueView] = {}
    known = [row["queue"] for row in await ground.ledger.tasks()]
    rows = await ground.ledger.queue_counts(tenant)
    for queue in [*known, *(row["queue"] for row in rows)]:
        views[queue] = QueueView(queue, {}, None)
    for row in rows:
        view = views[row["queue"]]
        view.counts[row["status"]] = row["jobs"]
        if row["oldest"] is not None:
            view.oldest_age = max(0.0, row["oldest"])
    items = sorted(views.values(), key=lambda view: view.queue)
    return json_response(msgspec.json.encode({"items": items}))


@get("/v1/tasks", summary="What can be submitted")
async def list_tasks(
    request: Request[Any, Any, Any], ground: GroundGiven, tenant: TenantGiven
) -> Response[bytes]:
    """Every task that a worker ever registered, with its parameters and limits (seconds)."""
    items = [
        {**dict(row), "parameters": msgspec.Raw(row["parameters"].encode())}
        for row in await ground.ledger.tasks()
    ]
    return json_response(msgspec.json.encode({"items": items}))
