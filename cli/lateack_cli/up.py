"""`lateack up`: API, scheduler and workers, and the servers below them where none are named."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from lateack_cli import flags
from lateack_cli.children import LAST_PATIENCE, Child, GaveUp
from lateack_cli.signals import Interrupted, run, unless
from lateack_cli.trouble import MUST_CHANGE, Trouble

if TYPE_CHECKING:
    from lateack_cli.embedded import EmbeddedServers
    from lateack_core.settings import Settings

log = logging.getLogger("lateack.up")

# Beyond the grace that a worker gives its jobs: handing back, closing connections.
WORKER_PATIENCE = 15.0  # seconds
DATABASE_PATIENCE = 60.0  # how long a database that is named may take to answer
READY_POLL = 0.1
STILL_WAITING = 30.0  # after this long, and again, it is said what is being waited for
# A server that ends this often, one start after the other, is not started again.
MOST_LOSSES = 5
# These are for this command; a child gets what it needs as arguments.
OWN_VARIABLES = ("LATEACK_APP", "LATEACK_BEAT", "LATEACK_WORKER_NAME", "LATEACK_QUEUES")


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for."""

    app_path: str | None
    host: str
    port: int
    data_dir: Path
    workers: int
    concurrency: int
    queues: list[str] | None


@click.command("up")
@flags.app(
    required=False, what="The app whose tasks are run; without it only API and scheduler start."
)
@flags.host
@flags.port
@flags.option(
    "--data-dir",
    envvar="LATEACK_DATA_DIR",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".lateack"),
    help="Where the PostgreSQL and Valkey of our own keep their data; it survives restarts.",
)
@flags.option(
    "--workers",
    envvar="LATEACK_WORKERS",
    type=click.IntRange(0, 256),
    default=1,
    help="How many worker processes.",
)
@flags.concurrency
@flags.queues
@flags.log_level
def command(
    app_path: str | None,
    host: str,
    port: int,
    data_dir: Path,
    workers: int,
    concurrency: int,
    queues: str | None,
    log_level: str,
) -> None:
    """Start everything: API, scheduler, workers, and their servers.

    \b
    Example:
      lateack up -A tasks:app --workers 2

    Where DATABASE_URL is not set, a PostgreSQL of our own is started, and where REDIS_URL is not
    set, a Valkey; both end with this command. Once all is ready, one line with the URL is printed
    to standard output; logs go to standard error.

    Ctrl-C or SIGTERM once: the workers finish their jobs, then everything ends; twice: the jobs
    are interrupted and handed back. SIGQUIT: the workers end their jobs where they are.
    """
    from lateack_core.log import configure
    from lateack_core.settings import from_environment

    configure(log_level, process="up")
    wanted = Wanted(
        app_path,
        host,
        port,
        data_dir.absolute(),
        workers if app_path else 0,
        concurrency,
        flags.split(queues),
    )

    at_once = asyncio.Event()

    async def body(stop: asyncio.Event, hurry: asyncio.Event) -> int:
        settings = from_environment(log_level=log_level.upper())
        try:
            return await _up(wanted, settings, stop, hurry, at_once)
        except Interrupted:
            return 0

    # Not on uvloop: only asyncio's own loop starts children from this thread for certain, to whose
    # life theirs is tied.
    run(body, uvloop=False, at_once=at_once)


async def _up(
    wanted: Wanted,
    settings: Settings,
    stop: asyncio.Event,
    hurry: asyncio.Event,
    at_once: asyncio.Event,
) -> int:
    """Everything, in order; and in the other order at the end. The exit code."""
    from lateack_core.settings import environment_of

    async with _servers(wanted.data_dir, settings, stop) as (settings, servers):
        await unless(stop, _migrate(settings))
        environment = {k: v for k, v in os.environ.items() if k not in OWN_VARIABLES}
        children = _children(wanted, environment | environment_of(settings))
        keeping = [asyncio.create_task(child.keep(), name=child.name) for child in children]
        if servers is not None:
            keeping.append(asyncio.create_task(_keep_servers(servers), name="servers"))
        telling = asyncio.create_task(_tell_when_ready(wanted.host, children))
        try:
            return await _until_stopped(stop, [*keeping, telling])
        finally:
            telling.cancel()
            await asyncio.wait((telling,))
            await _stop(children, hurry, at_once, grace=settings.grace)
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)


async def _until_stopped(stop: asyncio.Event, tasks: list[asyncio.Task[None]]) -> int:
    """Wait for `stop`, or for one of the tasks to fail."""
    waiting = asyncio.create_task(stop.wait())
    running: set[asyncio.Future[Any]] = {waiting, *tasks}
    try:
        while waiting in running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {waiting}:
                task.result()
    except GaveUp as error:
        log.error("%s", error)
        return MUST_CHANGE if error.must_change else 1
    finally:
        waiting.cancel()
    log.info("stopping; once more to hand running jobs back")
    return 0


def _children(wanted: Wanted, environment: dict[str, str]) -> list[Child]:
    """API, scheduler and workers, in the order in which they are started."""
    serve = ["serve", "--host", wanted.host, "--port", str(wanted.port)]
    children = [
        Child("serve", serve, environment),
        Child("scheduler", ["scheduler"], environment),
    ]
    for number in range(1, wanted.workers + 1):
        worker = ["worker", "-A", str(wanted.app_path), "-c", str(wanted.concurrency)]
        if wanted.queues:
            worker += ["-Q", ",".join(wanted.queues)]
        children.append(Child(f"worker {number}", worker, environment))
    return children


async def _stop(
    children: list[Child], hurry: asyncio.Event, at_once: asyncio.Event, *, grace: float
) -> None:
    """Workers first, while what they report to still runs; then scheduler and API."""
    serve, scheduler, *workers = children
    for child in workers:
        child.ask_to_stop()
    patience = grace + WORKER_PATIENCE
    await asyncio.gather(*(w.gone(hurry, patience=patience, at_once=at_once) for w in workers))
    for child in (scheduler, serve):
        child.ask_to_stop()
    await asyncio.gather(*(c.gone(hurry, patience=LAST_PATIENCE) for c in (scheduler, serve)))


async def _tell_when_ready(host: str, children: list[Child]) -> None:
    serve = children[0]
    await _patiently(
        _all_ready(children),
        lambda: ", ".join(child.name for child in children if not child.ready.is_set()),
    )
    url = _reachable(host, serve.word)
    # A free port was found once; it has to be the same after a restart.
    serve.arguments[-1] = str(urlsplit(url).port)
    await _patiently(_answers(f"{url}/readyz"), lambda: f"{url}/readyz to answer 200")
    print(f"lateack is ready at {url}", flush=True)


async def _all_ready(children: list[Child]) -> None:
    for child in children:
        await child.ready.wait()


async def _patiently(work: Awaitable[None], what: Callable[[], str]) -> None:
    """Wait for `work`, and say every now and then `what` is being waited for."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=STILL_WAITING)
            if not task.done():
                log.warning("still waiting for %s", what())
        task.result()
    finally:
        task.cancel()


async def _answers(url: str) -> None:
    import httpx

    async with httpx.AsyncClient(trust_env=False, timeout=5.0) as http:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if (await http.get(url)).status_code == 200:
                    return
            await asyncio.sleep(READY_POLL)


def _reachable(host: str, url: str) -> str:
    """Where a caller on this machine finds a service that listens on `host`."""
    port = urlsplit(url).port
    if host in ("0.0.0.0", ""):
        host = "127.0.0.1"
    elif host == "::":
        host = "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.asynccontextmanager
async def _servers(
    data_dir: Path, settings: Settings, stop: asyncio.Event
) -> AsyncIterator[tuple[Settings, EmbeddedServers | None]]:
    """Settings that name both servers, and those of them that are ours.

    Raises:
        Trouble: one of ours cannot run.
        Interrupted: `stop` came first.
    """
    import msgspec

    if settings.database_url and settings.redis_url:
        yield settings, None
        return
    from lateack_cli.embedded import EmbeddedError, embedded_servers

    ours = embedded_servers(
        data_dir,
        postgres=not settings.database_url,
        broker=not settings.redis_url,
        progress=log.info,
    )
    async with contextlib.AsyncExitStack() as stack:
        try:
            servers = await unless(stop, stack.enter_async_context(ours))
        except EmbeddedError as error:
            raise Trouble(str(error)) from None
        if not settings.database_url:
            # A socket that only this user can open: there is no password in it.
            log.info("the database is at %s", servers.database_url)
        settings = msgspec.structs.replace(
            settings,
            database_url=settings.database_url or servers.database_url,
            redis_url=settings.redis_url or servers.redis_url,
        )
        yield settings, servers


async def _keep_servers(servers: EmbeddedServers) -> None:
    """Start again what of ours ends by itself; everything else waits for it meanwhile.

    Raises:
        GaveUp: it does not start again.
    """
    from lateack_cli.embedded import EmbeddedError

    for _ in range(MOST_LOSSES):
        lost = await servers.wait_lost()
        log.error("%s", lost)
        try:
            await servers.start()
        except EmbeddedError as error:
            log.error("%s", error)
            raise GaveUp(lost.name, lost.status) from None
        log.warning("%s runs again", lost.name)
    raise GaveUp(lost.name, lost.status)


async def _migrate(settings: Settings) -> None:
    """Bring the schema up to date; a database that is named may take a while to answer."""
    from lateack_core.migrate import migrate
    from lateack_core.postgres import LedgerUnavailable, connect

    assert settings.database_url is not None
    deadline = asyncio.get_running_loop().time() + DATABASE_PATIENCE
    while True:
        try:
            postgres = await connect(
                settings.database_url,
                size=1,
                prepared_statements=settings.prepared_statements,
                name="lateack migrate",
            )
            try:
                await migrate(postgres)
            finally:
                await postgres.close()
            return
        except LedgerUnavailable as error:
            if asyncio.get_running_loop().time() > deadline:
                raise
            log.warning("the database does not answer yet: %s", error)
            await asyncio.sleep(2.0)
