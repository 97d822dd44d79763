"""One socket that watches many jobs: `WS /v1/progress`.

The client says {"watch": ["<id>", …], "after": {"<id>": "<event id>"}} or {"unwatch": ["<id>", …]},
as often as it likes. It gets the events of all of them, and for what cannot be watched
{"type": "error", "job_id": "<id>", "problem": {…}}. The socket stays open when jobs end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
from litestar import websocket

from lateack.models import Refusal
from lateack_core.ground import Ground
from lateack_core.validation import Refused, invalid

from .bodies import decode
from .events import AnySocket, Gone, close_after, close_for, follow, send_text
from .following import Follower, place
from .given import GroundGiven, HubGiven, TenancyGiven
from .jobs import identifier
from .problems import no_such_job, refusal_of
from .progress import Hub
from .sinks import Sink

MOST_WATCHED = 1000
# Of each job; a slow client reads the streams at its own pace, so this only saves round trips.
MOST_WAITING = 32
# Documents read at once: each may carry a result.
LOOKED_UP = 50

_encode = msgspec.json.Encoder().encode


class Command(msgspec.Struct, forbid_unknown_fields=True):
    """What a client says."""

    watch: list[str] = []
    after: dict[str, str] = {}
    unwatch: list[str] = []


class Trouble(msgspec.Struct):
    """What a client is told about a job that it cannot watch, or about its own words."""

    job_id: str | None
    problem: Refusal
    type: str = "error"


_command = msgspec.json.Decoder(Command)


@websocket("/v1/progress")
async def watch_many(
    socket: AnySocket,
    ground: GroundGiven,
    hub: HubGiven,
    tenancy: TenancyGiven,
) -> None:
    """The events of many jobs on one socket; see the top of this module for what is said."""
    await socket.accept()
    try:
        tenant = tenancy.tenant_of(socket)
        await Board(socket, ground, hub, tenant).run()
    except Exception as error:
        await close_for(socket, error)


class Board:
    """The jobs that one socket watches, each with a task of its own."""

    def __init__(self, socket: AnySocket, ground: Ground, hub: Hub, tenant: str) -> None:
        self._socket = socket
        self._ground = ground
        self._hub = hub
        self._tenant = tenant
        self._tasks: dict[UUID, asyncio.Task[None]] = {}
        self._sending = asyncio.Lock()
        self._failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        # Hears only of the process's end, which no job need be watched for.
        self._own = Sink()

    async def run(self) -> None:
        """Until the client leaves, is too slow, or the process stops.

        Raises:
            Gone, TooSlow
        """
        with self._hub.attending(self._own):
            listening = asyncio.create_task(self._listen())
            stopping = asyncio.create_task(self._stopping())
            try:
                ways: list[asyncio.Future[Any]] = [listening, stopping, self._failed]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                if self._failed.done():
                    raise self._failed.result()
                if listening.done():
                    listening.result()
                    return
            finally:
                for task in (listening, stopping, *self._tasks.values()):
                    task.cancel()
        await close_after(self._socket, "stopping")

    async def _stopping(self) -> None:
        while self._own.over is None:
            await self._own.wait(3600.0)

    async def _listen(self) -> None:
        while True:
            message: Any = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            try:
                await self._obey(text.encode() if text else message.get("bytes") or b"")
            except Gone:
                return
            except Exception as error:
                await self._complain(None, error)

    async def _obey(self, text: bytes) -> None:
        command = decode(text, _command)
        for job_id in command.unwatch:
            if task := self._tasks.pop(_key(job_id), None):
                task.cancel()
        wanted: dict[UUID, str] = {}
        for job_id in command.watch:
            try:
                wanted[identifier(job_id)] = job_id
            except Refused as error:
                await self._complain(job_id, error)
        after = {_key(job_id): cursor for job_id, cursor in command.after.items()}
        numbers = [number for number in wanted if number not in self._tasks]
        if len(self._tasks) + len(numbers) > MOST_WATCHED:
            raise invalid(f"one socket watches {MOST_WATCHED} jobs at most")
        for start in range(0, len(numbers), LOOKED_UP):
            await self._watch(numbers[start : start + LOOKED_UP], wanted, after)

    async def _watch(
        self, numbers: Sequence[UUID], names: dict[UUID, str], after: dict[UUID, str]
    ) -> None:
        jobs = await self._ground.ledger.get(self._tenant, numbers)
        for number in numbers:
            try:
                if (job := jobs.get(number)) is None:
                    raise no_such_job()
                start = place(after[number]) if number in after else None
            except Refused as error:
                await self._complain(names[number], error)
                continue
            follower = Follower(self._hub, number, start, ended=job.ended, most=MOST_WAITING)
            task = asyncio.create_task(self._follow(follower))
            self._tasks[number] = task
            task.add_done_callback(partial(self._forget, number))

    def _forget(self, number: UUID, task: asyncio.Task[None]) -> None:
        if self._tasks.get(number) is task:
            del self._tasks[number]

    async def _follow(self, follower: Follower) -> None:
        try:
            with self._hub.watching(follower.job_id, follower.sink):
                async for batch in follow(follower, self._ground.settings.stream_ping):
                    for told in batch:
                        await self._send(told.text)
            if follower.sink.over == "gone":
                await self._complain(str(follower.job_id), no_such_job())
        except Exception as error:
            if not self._failed.done():
                self._failed.set_result(error)

    async def _complain(self, job_id: str | None, error: Exception) -> None:
        await self._send(_encode(Trouble(job_id, refusal_of(error))))

    async def _send(self, text: bytes) -> None:
        async with self._sending:
            await send_text(self._socket, text)


def _key(job_id: str) -> UUID:
    try:
        return identifier(job_id)
    except Refused:
        return UUID(int=0)
