"""How each fault is done, and undone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lateack_cli.embedded import EmbeddedError, EmbeddedServer
from lateack_core.postgres import Blocked, LedgerUnavailable

from .fleet import STOP_PATIENCE, Fleet, Member
from .plan import Fault
from .proxy import Proxy
from .tasks import app
from .wire import tell_broker

COPY_EVERY = 2.0  # seconds between two copies of the broker's data
COPIES = 12
LEVELS = range(4)
# Errors of servers that are down for another fault's sake: the fault then has nothing to do.
NOBODY_THERE = (OSError, LedgerUnavailable, Blocked, EmbeddedError)


class Faults:
    """The storm over one fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._servers = {"broker": fleet.servers.broker, "database": fleet.servers.postgres}
        self._copies = fleet.folder / "copies"
        self.done = 0
        # Two faults never stop and start one server at the same time.
        self._turns = {"broker": asyncio.Lock(), "database": asyncio.Lock()}
        self._deeds: dict[str, Callable[[Fault], Awaitable[None]]] = {
            "kill": lambda f: self._end(f, signal.SIGKILL),
            "stop": lambda f: self._end(f, signal.SIGTERM),
            "hurry": lambda f: self._end(f, signal.SIGTERM, signal.SIGTERM),
            "quit": lambda f: self._end(f, signal.SIGQUIT),
            "kill child": self._kill_child,
            "freeze": self._freeze,
            "freeze broker": self._freeze_server,
            "freeze database": self._freeze_server,
            "kill broker": lambda f: self._bounce(f, EmbeddedServer.kill),
            "restart broker": lambda f: self._bounce(f, EmbeddedServer.stop),
            "kill database": lambda f: self._bounce(f, EmbeddedServer.kill),
            "restart database": lambda f: self._bounce(f, EmbeddedServer.stop),
            "flush": lambda f: self._tell_broker("FLUSHALL"),
            "roll back": self._roll_back,
            "drop groups": self._drop_groups,
            "drop clients": lambda f: self._tell_broker("CLIENT", "KILL", "TYPE", "normal"),
            "end sessions": self._end_sessions,
            "lock jobs": self._lock_jobs,
            "refuse writes": self._refuse_writes,
            "cut": lambda f: self._through(f, _cut),
            "refuse": lambda f: self._through(f, Proxy.refuse),
            "hold": lambda f: self._through(f, _hold),
            "delay": lambda f: self._through(f, lambda proxy: _delay(proxy, f.amount)),
            "deafen": lambda f: self._through(f, _deafen),
        }

    async def blow(self, plan: Iterator[Fault], began: float, over: asyncio.Event) -> None:
        """Do each fault at its time (after `began`, of the monotonic clock), until `over`; then
        wait until those that have begun are undone."""
        running: list[asyncio.Task[None]] = []
        for fault in plan:
            pause = began + fault.at - time.monotonic()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), max(0.0, pause))
            if over.is_set():
                break
            running.append(asyncio.create_task(self._do(fault)))
        await asyncio.gather(*running)

    async def _do(self, fault: Fault) -> None:
        """Do a fault, wait as long as it lasts, undo it."""
        facts = {"number": fault.number, "seconds": fault.seconds, "amount": fault.amount}
        self._tell(fault, "begins", facts)
        self.done += 1
        try:
            await self._deeds[fault.name](fault)
        except NOBODY_THERE as error:
            self._tell(fault, "over", facts | {"nobody there": str(error)[:200]})
        else:
            self._tell(fault, "over", facts)

    def _tell(self, fault: Fault, status: str, facts: dict[str, Any]) -> None:
        self._fleet.history.tell(
            "fault",
            kind=fault.name,
            who=fault.target,
            text=fault.side,
            status=status,
            facts={name: value for name, value in facts.items() if value},
        )

    # -- processes ------------------------------------------------------------------------

    async def _end(self, fault: Fault, *numbers: signal.Signals) -> None:
        member, history = self._fleet.members[fault.target], self._fleet.history
        pid = member.pid
        member.down_until = time.monotonic() + fault.seconds
        for number in numbers:
            member.send(history, number)
            await asyncio.sleep(0.2)
        await member.ended(history, pid, STOP_PATIENCE)
        await asyncio.sleep(max(0.0, member.down_until - time.monotonic()))

    async def _kill_child(self, fault: Fault) -> None:
        pid = self._fleet.members[fault.target].pid
        for child in sorted(_children(pid))[:1] if pid is not None else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    async def _freeze(self, fault: Fault) -> None:
        member: Member = self._fleet.members[fault.target]
        if (pid := member.pid) is None:
            return
        member.send(self._fleet.history, signal.SIGSTOP)
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            # Its successor, when somebody killed it meanwhile, was never stopped.
            if member.pid == pid:
                member.send(self._fleet.history, signal.SIGCONT)

    # -- servers --------------------------------------------------------------------------

    async def _freeze_server(self, fault: Fault) -> None:
        server = self._servers[fault.target]
        pids = [server.pid, *_children(server.pid)]
        _tell_all(pids, signal.SIGSTOP)
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            _tell_all(pids, signal.SIGCONT)

    async def _bounce(self, fault: Fault, end: Callable[[EmbeddedServer], Awaitable[None]]) -> None:
        server = self._servers[fault.target]
        async with self._turns[fault.target]:
            await end(server)
            await asyncio.sleep(fault.seconds)
            await server.start()

    async def _tell_broker(self, *words: str) -> None:
        await tell_broker(self._servers["broker"].url, *words)

    async def _drop_groups(self, fault: Fault) -> None:
        for queue in app.queues:
            for level in LEVELS:
                await self._tell_broker(
                    "XGROUP", "DESTROY", f"lateack:{{q:{queue}}}:{level}", "workers"
                )

    async def _end_sessions(self, fault: Fault) -> None:
        await self._fleet.postgres.script(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'lateack%'"
        )

    async def _lock_jobs(self, fault: Fault) -> None:
        # Sent as one text, it is one transaction.
        await self._fleet.postgres.script(
            f"LOCK TABLE lateack.jobs IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep({fault.seconds})"
        )

    async def _refuse_writes(self, fault: Fault) -> None:
        postgres = self._fleet.postgres
        await postgres.script("ALTER SYSTEM SET default_transaction_read_only = on")
        try:
            await postgres.script("SELECT pg_reload_conf()")
            await asyncio.sleep(fault.seconds)
        finally:
            await self.allow_writes()

    async def allow_writes(self) -> None:
        """Undo the refusal of writes, as soon as the database can be told."""
        for _ in range(100):
            with contextlib.suppress(*NOBODY_THERE):
                await self._fleet.postgres.script(
                    "ALTER SYSTEM RESET default_transaction_read_only"
                )
                await self._fleet.postgres.script("SELECT pg_reload_conf()")
                return
            await asyncio.sleep(0.2)

    # -- the broker's past ----------------------------------------------------------------

    async def keep_copies(self) -> None:
        """Copy the broker's data again and again, for `roll back` to have something to restore."""
        source = self._fleet.folder / "servers" / "broker"
        while True:
            await asyncio.sleep(COPY_EVERY)
            async with self._turns["broker"]:
                with contextlib.suppress(OSError, shutil.Error):
                    target = self._copies / f"{time.monotonic():.3f}"
                    await asyncio.to_thread(shutil.copytree, source, target)
            for old in _oldest_first(self._copies)[:-COPIES]:
                await asyncio.to_thread(shutil.rmtree, old, ignore_errors=True)

    async def _roll_back(self, fault: Fault) -> None:
        broker = self._servers["broker"]
        async with self._turns["broker"]:
            wanted = time.monotonic() - fault.amount
            copies = sorted(
                _oldest_first(self._copies), key=lambda path: abs(float(path.name) - wanted)
            )
            await broker.kill()
            data = self._fleet.folder / "servers" / "broker"
            await asyncio.to_thread(_replace, data, copies[0] if copies else None)
            await asyncio.sleep(fault.seconds)
            try:
                await broker.start()
            except EmbeddedError:
                # A copy of files that were being written may be unreadable: then all is lost.
                await asyncio.to_thread(_replace, data, None)
                await broker.start()

    # -- the network ----------------------------------------------------------------------

    async def _through(self, fault: Fault, spoil: Callable[[Proxy], Awaitable[None]]) -> None:
        proxies = self._fleet.proxies(fault.target, fault.side)
        async with _healed(proxies):
            for proxy in proxies:
                await spoil(proxy)
            await asyncio.sleep(fault.seconds)


@asynccontextmanager
async def _healed(proxies: list[Proxy]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for proxy in proxies:
            await proxy.heal()


async def _cut(proxy: Proxy) -> None:
    proxy.cut()


async def _hold(proxy: Proxy) -> None:
    proxy.hold()


async def _delay(proxy: Proxy, seconds: float) -> None:
    proxy.delay(seconds)


async def _deafen(proxy: Proxy) -> None:
    proxy.deafen()


def _oldest_first(folder: Path) -> list[Path]:
    return sorted(folder.iterdir(), key=lambda path: float(path.name)) if folder.exists() else []


def _replace(data: Path, copy: Path | None) -> None:
    for entry in list(data.iterdir()):
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    if copy is not None:
        shutil.copytree(copy, data, dirs_exist_ok=True)


def _tell_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _children(pid: int) -> list[int]:
    """The processes that `pid` has started and that live, as far as the system tells."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(child) for child in task.read_text().split()]
    return found
