"""Background loops that fail: they start again by themselves, and nobody says meanwhile that all is
well."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import asyncpg

from lateack_core.settings import Settings
from tests.consumers.conftest import Caller, until
from tests.consumers.faults import (
    APP_PATH,
    all_ended,
    notes,
    reasons,
    serving,
    told,
    until_ready,
)
from tests.consumers.processes import lateack

BOUND = 15.0
# What a busy machine adds is no matter of readiness.
SLACK = 10.0


@asynccontextmanager
async def lost(settings: Settings, table: str) -> AsyncIterator[None]:
    """A table of the ledger is gone while the block runs: what needs it meets an error that no loop
    expects, though the database answers."""
    assert settings.database_url is not None
    connection = await asyncpg.connect(settings.database_url)
    await connection.execute(f"ALTER TABLE lateack.{table} RENAME TO {table}_lost")
    try:
        yield
    finally:
        await connection.execute(f"ALTER TABLE lateack.{table}_lost RENAME TO {table}")
        await connection.close()


async def test_a_loop_that_fails_turns_its_process_unready_until_it_works_again(
    settings: Settings, caller: Caller, tmp_path: Path
) -> None:
    """DEL-08: the relay, a chore of the leader beside an API, a worker's reader, acknowledger,
    claims and renewer; by errors that nobody foresaw, within 15 s and for as long as it lasts."""
    broker, effects = caller.ground.broker, tmp_path / "effects"
    odd = broker.stream("odd", 2)
    async with AsyncExitStack() as stack:
        api, _ = await stack.enter_async_context(serving(settings, tmp_path / "api.log", "-B"))
        await until_ready(api)
        processes = {}
        for verb, words in (("scheduler", ()), ("worker", ("-A", APP_PATH, "-Q", "q,odd"))):
            log = tmp_path / f"{verb}.log"
            process = await stack.enter_async_context(
                lateack(settings, log, verb, *words, LATEACK_HEALTH="127.0.0.1:0")
            )
            processes[await told(process, r"health is told at (\S+)")] = process
        scheduler, worker = processes
        for address in processes:
            await until_ready(address)
        expected = {
            api: ["loop relay", "loop rescue"],
            scheduler: ["loop relay"],
            worker: [
                "loop relay",
                "loop reader odd",
                "loop acknowledger",
                "cannot be claimed",
                "not renewed",
            ],
        }

        async def missing() -> list[str]:
            return [
                part
                for address, parts in expected.items()
                for found in [await reasons(address)]
                for part in parts
                if not any(part in reason for reason in found)
            ]

        jobs = [await caller.submit("f.held", str(effects), 1.0, queue="odd")]
        await until(lambda: notes(effects))
        await broker._redis.set(odd, "no stream")
        await all_ended(caller, jobs)
        async with lost(settings, "leases"):
            jobs.append(await caller.submit("f.nothing"))
            async with lost(settings, "outbox"):
                deadline = time.monotonic() + BOUND + SLACK
                while left := await missing():
                    assert time.monotonic() < deadline, left
                    await asyncio.sleep(0.2)
                # It does not turn positive whenever a loop begins again.
                for _ in range(20):
                    assert await missing() == []
                    await asyncio.sleep(0.2)
                await broker._redis.delete(odd)
        # Nothing was restarted, and nobody has to: it works again, and says so.
        jobs += [await caller.submit("f.nothing", queue=queue) for queue in ("q", "odd")]
        ended = await all_ended(caller, jobs)
        for address, process in [*processes.items()]:
            await until_ready(address)
            assert process.returncode is None
        await until_ready(api)
    assert {job.status for job in ended} == {"succeeded"}
