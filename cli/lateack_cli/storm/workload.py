"""Callers: they submit the mix, cancel, look at jobs until these end, watch them live, and pry.

Everything that the service answers is told to the history; whether it was right is the checker's to
say.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Iterator
from typing import Any

import httpx

from lateack import Client, ClientError

from .fleet import Fleet
from .mix import TENANTS, Body, Order
from .tasks import TENANT_OF_TICKS, TICKS

PATIENCE = 40.0  # seconds for a request with a key, or one that changes nothing, to be answered
REQUEST = 8.0  # seconds for one try
LOOK = 5.0  # seconds of a long poll
LIST_EVERY = 1.0
SECOND_LOOK = 3.0  # seconds after the end was seen
AGAIN = frozenset({429, 500, 502, 503, 504})


class Workload:
    """The callers of one fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._history = fleet.history
        self._http = httpx.AsyncClient(
            timeout=REQUEST, limits=httpx.Limits(max_connections=200, max_keepalive_connections=20)
        )
        self._tasks: set[asyncio.Task[None]] = set()

    async def place(self, orders: Iterator[Order], began: float, stop: asyncio.Event) -> None:
        """Submit each order at its time (after `began`, of the monotonic clock), until `stop`."""
        self._start(self._list_again_and_again(stop))
        for order in orders:
            pause = began + order.at - time.monotonic()
            if pause > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), pause)
            if stop.is_set():
                return
            self._start(self._order(order))

    async def settled(self, patience: float) -> int:
        """Wait until every caller has had his answer; how many have none after `patience`."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=patience)
        return len(self._tasks)

    async def stop_the_clock(self) -> None:
        """Pause the periodic job: there are to be no more of it.

        Raises:
            TimeoutError: no service does so.
        """
        async with asyncio.timeout(PATIENCE):
            while True:
                for url in self._fleet.services:
                    with contextlib.suppress(httpx.HTTPError):
                        answer = await self._http.post(
                            f"{url}/v1/schedules/{TICKS}/pause",
                            headers={"X-Tenant-ID": TENANT_OF_TICKS},
                        )
                        if answer.status_code == 200:
                            return
                await asyncio.sleep(0.3)

    async def close(self) -> None:
        """Give up what callers still wait for."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.aclose()

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- one order ------------------------------------------------------------------------

    async def _order(self, order: Order) -> None:
        if len(order.bodies) > 1:
            await self._batch(order)
            return
        job = await self._submit(order, order.bodies[0])
        if order.then is not None:
            await self._submit(order, order.then)
        if job is None:
            return
        afterwards: list[Awaitable[None]] = []
        if order.cancel_after is not None:
            afterwards.append(self._cancel(order, job))
        if order.look_after is not None:
            afterwards.append(self._look(order, job))
        if order.watch:
            afterwards.append(self._watch(order, job))
        if order.pry is not None:
            afterwards.append(self._pry(order, job))
        await asyncio.gather(*afterwards)

    async def _submit(self, order: Order, body: Body) -> str | None:
        """Submit until there is an answer; the job's id when it was accepted."""
        key = body.get("idempotency_key", "")
        answer = await self._asked(order, "POST", "/v1/jobs", body=body, repeat=bool(key))
        facts = {"kind": order.kind, "tenant": order.tenant, "key": key}
        if answer is None:
            self._history.tell("unknown", **facts, text=body["external_ref"])
        elif answer.status_code in (200, 202):
            job: str = answer.json()["job_id"]
            what = "accepted" if answer.status_code == 202 else "replayed"
            self._history.tell(what, job=job, **facts, text=body["external_ref"])
            return job
        else:
            self._history.tell("refused", code=answer.status_code, **facts, text=answer.text[:300])
        return None

    async def _batch(self, order: Order) -> None:
        # Without keys on all items, a batch whose answer was lost is not sent again.
        keyed = all("idempotency_key" in body for body in order.bodies)
        body = {"items": list(order.bodies)}
        answer = await self._asked(order, "POST", "/v1/jobs/batch", body=body, repeat=keyed)
        facts = {"kind": order.kind, "tenant": order.tenant}
        if answer is None:
            self._history.tell("unknown", **facts, text=f"order-{order.number}")
        elif answer.status_code not in (200, 202):
            self._history.tell("refused", code=answer.status_code, **facts, text=answer.text[:300])
        else:
            for item, body in zip(answer.json()["items"], order.bodies, strict=True):
                self._batch_item(facts, item, body)

    def _batch_item(self, facts: dict[str, Any], item: dict[str, Any], body: Body) -> None:
        key = body.get("idempotency_key", "")
        if item.get("job"):
            what = "replayed" if item.get("replayed") else "accepted"
            job = item["job"]["job_id"]
            self._history.tell(what, job=job, **facts, key=key, text=body["external_ref"])
        else:
            problem = item["problem"]
            self._history.tell(
                "refused", code=problem["status"], **facts, key=key, text=problem["detail"][:300]
            )

    # -- afterwards -----------------------------------------------------------------------

    async def _cancel(self, order: Order, job: str) -> None:
        await asyncio.sleep(order.cancel_after or 0.0)
        answer = await self._asked(order, "POST", f"/v1/jobs/{job}/cancel", body={}, repeat=True)
        if answer is None:
            # It may have been cancelled nevertheless.
            self._history.tell("cancel", job=job, tenant=order.tenant)
            return
        self._history.tell("cancel", job=job, tenant=order.tenant, code=answer.status_code)
        if answer.status_code in (200, 202):
            self._saw(answer.json(), order.tenant)

    async def _look(self, order: Order, job: str) -> None:
        """Ask until it has ended; and once more, when it must be what it was."""
        self._history.tell("looking", job=job, tenant=order.tenant)
        await asyncio.sleep(order.look_after or 0.0)
        ended = False
        while not ended:
            answer = await self._asked(order, "GET", f"/v1/jobs/{job}?wait={LOOK:g}", repeat=True)
            ended = answer is not None and self._looked(answer, job, order.tenant)
            await asyncio.sleep(0.2)
        await asyncio.sleep(SECOND_LOOK)
        answer = await self._asked(order, "GET", f"/v1/jobs/{job}", repeat=True)
        if answer is not None:
            self._looked(answer, job, order.tenant)

    def _looked(self, answer: httpx.Response, job: str, tenant: str) -> bool:
        if answer.status_code == 200:
            return self._saw(answer.json(), tenant)
        # A job of one's own is there for ever.
        self._history.tell("seen", job=job, tenant=tenant, code=answer.status_code)
        return True

    def _saw(self, document: dict[str, Any], tenant: str) -> bool:
        """Tell of a document when its job has ended; whether it has."""
        if document["completed_at"] is None:
            return False
        facts = {name: document[name] for name in ("result", "attempt", "error_code")}
        self._history.tell(
            "seen",
            job=document["job_id"],
            tenant=tenant,
            code=200,
            status=document["status"],
            text=document["completed_at"],
            facts=facts,
        )
        return True

    async def _watch(self, order: Order, job: str) -> None:
        """Follow its events to the end, through whatever happens to the service meanwhile."""
        url = self._fleet.services[order.service % len(self._fleet.services)]
        ids: list[str] = []
        gaps, status = 0, ""
        self._history.tell("watching", job=job, tenant=order.tenant)
        while not status:
            try:
                async with Client(url, tenant=order.tenant, timeout=PATIENCE) as client:
                    async for event in client.watch(job, ids[-1] if ids else None):
                        ids.append(event.id)
                        gaps += event.type == "gap"
                        status = event.status if event.ended else ""
            except ClientError as error:
                self._history.tell("watched", job=job, text=f"{type(error).__name__}: {error}")
                await asyncio.sleep(1.0)
        self._history.tell("watched", job=job, status=status, facts={"ids": ids, "gaps": gaps})

    async def _pry(self, order: Order, job: str) -> None:
        """Ask for a job that is another tenant's."""
        other = TENANTS[1 - TENANTS.index(order.tenant)]
        method, path = {
            "get": ("GET", ""),
            "wait": ("GET", "?wait=1"),
            "cancel": ("POST", "/cancel"),
            "attempts": ("GET", "/attempts"),
            "events": ("GET", "/events"),
        }[order.pry or "get"]
        answer = await self._asked(
            order,
            method,
            f"/v1/jobs/{job}{path}",
            body={} if method == "POST" else None,
            repeat=True,
            tenant=other,
            head_only=True,
        )
        if answer is not None:
            self._history.tell(
                "pried", job=job, tenant=other, kind=order.pry, code=answer.status_code
            )

    async def _list_again_and_again(self, stop: asyncio.Event) -> None:
        turn = 0
        while not stop.is_set():
            await asyncio.sleep(LIST_EVERY)
            turn += 1
            tenant = TENANTS[turn % len(TENANTS)]
            url = self._fleet.services[turn // 2 % len(self._fleet.services)]
            try:
                answer = await self._http.get(
                    f"{url}/v1/jobs?limit=50", headers={"X-Tenant-ID": tenant}
                )
            except httpx.HTTPError:
                continue
            if answer.status_code == 200:
                ids = [job["job_id"] for job in answer.json()["items"]]
                self._history.tell("listed", tenant=tenant, facts={"jobs": ids})

    # -- asking ---------------------------------------------------------------------------

    async def _asked(
        self,
        order: Order,
        method: str,
        path: str,
        *,
        body: Any = None,
        repeat: bool,
        tenant: str | None = None,
        head_only: bool = False,
    ) -> httpx.Response | None:
        """The answer of one service or of the other. None: whether it was heard is not known.

        What is safe to repeat is asked again, for PATIENCE seconds.
        """
        deadline = time.monotonic() + PATIENCE
        services = self._fleet.services
        headers = {"X-Tenant-ID": tenant or order.tenant}
        turn = order.service
        while True:
            url = f"{services[turn % len(services)]}{path}"
            request = self._http.build_request(method, url, json=body, headers=headers)
            answer: httpx.Response | None = None
            try:
                answer = await self._http.send(request, stream=head_only)
                if head_only:
                    # Of an endless answer, such as events that one must not see, the head tells.
                    await answer.aclose()
                elif answer.status_code >= 500:
                    self._history.tell("answer", code=answer.status_code, text=answer.text[:300])
            except httpx.HTTPError:
                answer = None
            if answer is not None and answer.status_code not in AGAIN:
                return answer
            if not repeat or time.monotonic() > deadline:
                return answer if answer is not None and answer.status_code != 500 else None
            turn += 1
            await asyncio.sleep(0.3)
