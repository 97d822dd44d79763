"""The fleet: services, workers and schedulers, each behind proxies of its own, started again
whenever it ends; and the servers below it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import httpx

from lateack_cli.embedded import EmbeddedServers, embedded_servers
from lateack_cli.embedded.ports import loopback_port
from lateack_cli.lifeline import LAUNCHER
from lateack_core.postgres import Postgres, connect
from lateack_core.settings import Settings, environment_of

from .history import History
from .proxy import Proxy
from .tasks import HISTORY, OUTSIDE

APP = "lateack_cli.storm.tasks:app"
SLOTS = 20  # jobs in hand at once, for each worker
# Below the range from which systems take the ports of outgoing connections, as those of the
# embedded servers are.
PORTS = range(13_000, 16_000)
# Everything that takes half a minute in life takes a second or two here; the ratios stay.
TIMINGS: dict[str, float] = {
    "lease": 2.0,
    "heartbeat": 0.5,
    "reclaim_idle": 2.5,
    "reclaim_interval": 0.7,
    "ledger_settle": 1.0,
    "grace": 3.0,
    "outbox_delay": 0.7,
    "relay_interval": 0.2,
    "leader_ttl": 2.0,
    "cleanup_interval": 1.0,
    "reap_interval": 0.4,
    "reconcile_interval": 1.0,
    "reconcile_grace": 2.0,
}
RESTART_PAUSE = 0.2
# A process that was asked to stop has its grace, and as much again for what follows it.
STOP_PATIENCE = 20.0
START_PATIENCE = 60.0


class Member:
    """One process of the fleet."""

    def __init__(
        self, name: str, arguments: list[str], environment: Mapping[str, str], log: Path
    ) -> None:
        self.name = name
        self.proxies: dict[str, Proxy] = {}
        # Not before this moment, of the monotonic clock, is it started again.
        self.down_until = 0.0
        self._arguments = arguments
        self._environment = environment
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def keep(self, history: History) -> None:
        """Run it, and run it again whenever it ends, until it is asked to stop."""
        while not self._stopping.is_set():
            self._process = process = await self._spawn()
            history.tell("started", who=self.name, pid=process.pid)
            status = await process.wait()
            history.tell("exited", who=self.name, pid=process.pid, code=status)
            pause = max(RESTART_PAUSE, self.down_until - time.monotonic())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    def send(self, history: History, number: signal.Signals) -> None:
        """Send it a signal, when it runs."""
        if (pid := self.pid) is not None:
            history.tell("signal", who=self.name, pid=pid, code=int(number))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    async def ended(self, history: History, pid: int | None, patience: float) -> None:
        """Wait until that process has ended; one that takes too long is told of, and killed."""
        deadline = time.monotonic() + patience
        while pid is not None and self.pid == pid:
            if time.monotonic() > deadline:
                history.tell("overdue", who=self.name, pid=pid)
                self.send(history, signal.SIGKILL)
                deadline += patience
            await asyncio.sleep(0.05)

    async def stop(self, history: History) -> None:
        """Stop it politely, for good."""
        self._stopping.set()
        self.send(history, signal.SIGTERM)
        await self.ended(history, self.pid, STOP_PATIENCE)

    async def _spawn(self) -> asyncio.subprocess.Process:
        with self._log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", "lateack_cli", *self._arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )


@dataclass
class Fleet:
    """What runs: servers, their proxies, processes."""

    servers: EmbeddedServers
    postgres: Postgres  # our own way to the database, past the proxies
    members: dict[str, Member]
    services: list[str]  # the URLs of the API processes
    history: History
    folder: Path
    _keeping: list[asyncio.Task[None]]

    async def start(self) -> None:
        """Start every process, and wait until all services take jobs.

        Raises:
            TimeoutError: they do not.
        """
        for member in self.members.values():
            for proxy in member.proxies.values():
                await proxy.start()
            self._keeping.append(asyncio.create_task(member.keep(self.history)))
        async with asyncio.timeout(START_PATIENCE), httpx.AsyncClient() as http:
            for url in self.services:
                await _until_ready(http, url)

    async def stop(self) -> None:
        """Stop every process politely: workers first, while what they report to still runs."""
        for kind in ("worker", "scheduler", "service"):
            members = [m for m in self.members.values() if m.name.startswith(kind)]
            await asyncio.gather(*(member.stop(self.history) for member in members))
        await asyncio.gather(*self._keeping)

    def proxies(self, target: str, side: str) -> list[Proxy]:
        """The connections of a process, or of all, to one server or to both."""
        members = self.members.values() if target == "all" else [self.members[target]]
        sides = ("broker", "database") if side == "both" else (side,)
        return [member.proxies[side] for member in members for side in sides]


@asynccontextmanager
async def fleet(folder: Path, history: History, workers: int) -> AsyncIterator[Fleet]:
    """Servers and a fleet on `folder`, the processes not started. The servers end with the block.

    Raises:
        EmbeddedError: a server does not start.
    """
    for name in ("logs", "outside"):
        (folder / name).mkdir(exist_ok=True)
    async with embedded_servers(
        folder / "servers", durable=False, postgres_port=0, broker_port=0
    ) as servers:
        postgres = await connect(servers.database_url, size=3, name="storm", lending=True)
        names = names_of(workers)
        ports = _ports(2 + 2 * len(names))
        services = [f"http://127.0.0.1:{next(ports)}" for _ in range(2)]
        members = {name: _member(name, folder, history, servers, services, ports) for name in names}
        made = Fleet(servers, postgres, members, services, history, folder, [])
        try:
            yield made
        finally:
            for member in members.values():
                member.send(history, signal.SIGKILL)
            for task in made._keeping:
                task.cancel()
            await asyncio.gather(*made._keeping, return_exceptions=True)
            for member in members.values():
                for proxy in member.proxies.values():
                    await proxy.stop()
            await postgres.close()


def names_of(workers: int) -> list[str]:
    """The processes of a fleet."""
    return [
        *(f"service-{n}" for n in (1, 2)),
        *(f"worker-{n}" for n in range(1, workers + 1)),
        *(f"scheduler-{n}" for n in (1, 2)),
    ]


def _member(
    name: str,
    folder: Path,
    history: History,
    servers: EmbeddedServers,
    services: list[str],
    ports: Iterator[int],
) -> Member:
    urls = {"database": servers.database_url, "broker": servers.redis_url}
    proxies = {side: Proxy(urlsplit(url).port or 0, next(ports)) for side, url in urls.items()}
    settings = Settings(
        database_url=_through(proxies["database"], urls["database"]),
        redis_url=_through(proxies["broker"], urls["broker"]),
        **TIMINGS,  # type: ignore[arg-type]
    )
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("LATEACK_")},
        **environment_of(settings),
        # They end with us, whatever happens to us.
        LAUNCHER: str(os.getpid()),
        HISTORY: str(history.path),
        OUTSIDE: str(folder / "outside"),
        "PYTHONUNBUFFERED": "1",
    }
    kind = name.partition("-")[0]
    if kind == "service":
        port = urlsplit(services[int(name[-1]) - 1]).port
        arguments = ["serve", "-A", APP, "--port", str(port)]
    elif kind == "worker":
        arguments = ["worker", "-A", APP, "-c", str(SLOTS), "-n", name]
    else:
        arguments = ["scheduler"]
    member = Member(name, arguments, environment, folder / "logs" / f"{name}.log")
    member.proxies = proxies
    return member


def _ports(count: int) -> Iterator[int]:
    """So many free ports, no two the same though nobody listens on them yet."""
    found: set[int] = set()
    while len(found) < count:
        found.add(loopback_port(0, PORTS))
    return iter(found)


def _through(proxy: Proxy, url: str) -> str:
    parts = urlsplit(url)
    before, _, _ = parts.netloc.rpartition(":")
    return urlunsplit(parts._replace(netloc=f"{before}:{proxy.port}"))


async def _until_ready(http: httpx.AsyncClient, url: str) -> None:
    """Wait until a service answers, and has heard of our tasks."""
    while True:
        with contextlib.suppress(httpx.HTTPError):
            ready = await http.get(f"{url}/readyz")
            tasks = await http.get(f"{url}/v1/tasks")
            if ready.status_code == 200 and "storm.instant" in tasks.text:
                return
        await asyncio.sleep(0.1)
