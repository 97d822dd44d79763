"""Submissions to API processes that are killed, and batches that meet everything at once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import msgspec

from lateack_cli.embedded import EmbeddedServers
from lateack_core.settings import Settings
from tests.consumers.processes import worker_process
from tests.journeys.test_main_job import ADD, eventually, registered, serving


@asynccontextmanager
async def ledger(settings: Settings) -> AsyncIterator[asyncpg.Connection]:
    """A look into the database."""
    connection = await asyncpg.connect(settings.database_url)
    try:
        yield connection
    finally:
        await connection.close()


async def all_succeed(connection: asyncpg.Connection, within: float = 60.0) -> int:
    """Wait until every stored job has succeeded, once, with nothing left to publish; how many."""
    deadline = time.monotonic() + within
    while True:
        rows = await connection.fetch(
            "SELECT status, attempt, count(*) FROM lateack.jobs GROUP BY 1, 2"
        )
        left = await connection.fetchval("SELECT count(*) FROM lateack.outbox")
        found = {(row["status"], row["attempt"]): row["count"] for row in rows}
        if set(found) == {("succeeded", 1)} and not left:
            return int(found["succeeded", 1])
        assert time.monotonic() < deadline, (found, left)
        await asyncio.sleep(0.2)


class Stream:
    """A steady stream of submissions to whichever API process answers."""

    def __init__(self, seed: int) -> None:
        self.urls: list[str | None] = [None, None]
        self.accepted: set[str] = set()
        self.unheard = 0
        self.kills = 0
        # No more kills and no new submissions; then the last ones have been answered.
        self.stop, self.over = asyncio.Event(), asyncio.Event()
        self._chance = random.Random(seed)

    async def api(self, settings: Settings, folder: Path, place: int) -> None:
        """A process that is killed at random instants, and the next one in its place."""
        for number in itertools.count():
            log = folder / f"api-{place}-{number}.log"
            async with serving(settings, log) as (url, process):
                self.urls[place] = url
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.stop.wait(), self._chance.uniform(0.2, 0.8))
                    await self.over.wait()
                    return
                await process.kill()
                self.kills += 1
                self.urls[place] = None

    async def submit(self, number: int, http: httpx.AsyncClient) -> None:
        """One after the other, each once more when nobody answered and it has a key."""
        count = 0
        while not self.stop.is_set():
            count += 1
            body: dict[str, Any] = {"task": ADD, "args": [number, count]}
            if count % 4:
                body["idempotency_key"] = f"{number}-{count}"
            told = await self._told(http, body)
            while not told and "idempotency_key" in body:
                await asyncio.sleep(0.05)
                told = await self._told(http, body)
            await asyncio.sleep(0.005)

    async def _told(self, http: httpx.AsyncClient, body: dict[str, Any]) -> bool:
        living = [url for url in self.urls if url]
        try:
            reply = await http.post(f"{self._chance.choice(living)}/v1/jobs", json=body)
        except (httpx.TransportError, IndexError):
            self.unheard += 1
            return False
        assert reply.status_code in (200, 202), reply.text
        self.accepted.add(reply.json()["job_id"])
        return True


async def test_api_processes_are_killed_under_a_stream_of_submissions(
    settings: Settings, tmp_path: Path
) -> None:
    """OUT-01, I1, I4: at random instants; every accepted job and every stored row is delivered and
    finished, and no key has two."""
    await registered(settings, tmp_path / "migrate.log")
    stream = Stream(11)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=10))
        look = await stack.enter_async_context(ledger(settings))
        await stack.enter_async_context(worker_process(settings, tmp_path / "w.log"))
        async with asyncio.TaskGroup() as running:
            for place in (0, 1):
                running.create_task(stream.api(settings, tmp_path, place))
            submitting = [running.create_task(stream.submit(n, http)) for n in range(8)]

            async def enough() -> bool:
                return stream.kills >= 8 and len(stream.accepted) >= 200

            await eventually(enough, within=60)
            stream.stop.set()
            await asyncio.gather(*submitting)
            stream.over.set()
        stored = await all_succeed(look)
        ids = {str(row["id"]) for row in await look.fetch("SELECT id FROM lateack.jobs")}
        assert stream.accepted <= ids
        # What was stored and not heard of had no key, or its key would have brought it back.
        assert stored - len(stream.accepted) <= stream.unheard
        keys = await look.fetchrow(
            "SELECT count(*), count(DISTINCT (key, job_id)) AS jobs FROM lateack.idempotency"
        )
        assert keys is not None
        assert keys["count"] == keys["jobs"]


async def test_a_batch_meets_everything_at_once(
    own_servers: EmbeddedServers, own_settings: Settings, tmp_path: Path
) -> None:
    """SUB-07, I7: invalid items, a queue that becomes full in the middle, a dead broker; the reply
    says of each what became of it, and exactly the accepted ones run."""
    await registered(own_settings, tmp_path / "migrate.log")
    capped = msgspec.structs.replace(own_settings, max_pending="q=5")
    good = [{"task": ADD, "args": [1, n]} for n in range(8)]
    bad: list[dict[str, Any]] = [{"task": "nobody.knows"}, {"task": ADD, "args": "no list"}]
    async with (
        ledger(own_settings) as look,
        serving(capped, tmp_path / "api.log") as (url, _),
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):
        await own_servers.broker.stop()
        items = [bad[0], *good[:3], bad[1], *good[3:]]
        reply = await http.post("/v1/jobs/batch", json={"items": items})
        assert reply.status_code == 202, reply.text
        answers = reply.json()["items"]
        outcome = [
            "accepted" if answer["accepted"] else answer["problem"]["status"] for answer in answers
        ]
        assert outcome[0] == outcome[4] == 422
        assert Counter(outcome) == {"accepted": 5, 503: 3, 422: 2}
        assert (reply.json()["accepted"], reply.json()["refused"]) == (5, 5)
        accepted = {answer["job"]["job_id"] for answer in answers if answer["accepted"]}
        stored = await look.fetch("SELECT id FROM lateack.jobs")
        assert {str(row["id"]) for row in stored} == accepted
        await own_servers.broker.start()
        async with worker_process(own_settings, tmp_path / "w.log"):
            assert await all_succeed(look) == 5


async def test_a_batch_whose_api_process_is_killed_half_way(
    settings: Settings, tmp_path: Path
) -> None:
    """SUB-07, I4: sent again with the same keys, the reply says which were there already and makes
    the others; each runs once."""
    await registered(settings, tmp_path / "migrate.log")
    async with (
        ledger(settings) as look,
        worker_process(settings, tmp_path / "w.log", slots=50),
        httpx.AsyncClient(timeout=60) as http,
    ):
        total = 0
        for turn in range(5):
            items = [
                {"task": ADD, "args": [turn, n], "idempotency_key": f"{turn}-{n}"}
                for n in range(4000)
            ]
            async with serving(settings, tmp_path / f"{turn}.log") as (url, process):
                sending = asyncio.create_task(
                    http.post(f"{url}/v1/jobs/batch", json={"items": items})
                )
                while await look.fetchval("SELECT count(*) FROM lateack.jobs") == total:
                    assert not sending.done()
                    await asyncio.sleep(0)
                await process.kill()
                with contextlib.suppress(httpx.TransportError):
                    await sending
            stored = await look.fetchval("SELECT count(*) FROM lateack.jobs") - total
            async with serving(settings, tmp_path / f"{turn}-again.log") as (url, _):
                reply = (await http.post(f"{url}/v1/jobs/batch", json={"items": items})).json()
            assert (reply["replayed"], reply["accepted"]) == (stored, 4000 - stored)
            total += 4000
            assert len({item["job"]["job_id"] for item in reply["items"]}) == 4000
            if 0 < stored < 4000:
                break
        else:
            raise AssertionError("it was never killed half-way")
        assert await all_succeed(look) == total
