"""A run, in order: start the fleet, let the storm loose, wait for calm, look, judge."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lateack_core.migrate import migrate

from .checker import violations
from .evidence import Evidence
from .faults import Faults
from .fleet import Fleet, fleet, names_of
from .history import History, read_history
from .mix import orders
from .plan import faults
from .report import print_report
from .snapshot import Snapshot
from .survey import make_effects_table, read_snapshot, unfinished
from .workload import Workload

SETTLE = 90.0  # seconds in which all jobs have to end once it is calm
LOOK_EVERY = 0.5
TELL_EVERY = 10.0  # seconds between two lines of progress where there is no terminal


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    seconds: float
    seed: int
    families: tuple[str, ...]
    rate: float  # orders a second
    workers: int
    data_dir: Path | None  # kept afterwards; None: a temporary one
    history: Path | None  # None: in the data directory


async def run(options: Options, stop: asyncio.Event) -> int:
    """Do it all, and print what came of it: 0 when every promise was kept, 1 when not.

    `stop` ends the storm early; what happened until then is judged.

    Raises:
        EmbeddedError: the servers do not start.
        TimeoutError: the fleet does not.
    """
    folder = options.data_dir or Path(tempfile.mkdtemp(prefix="lateack-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    path = options.history or folder / "history.jsonl"
    path.unlink(missing_ok=True)
    kept = options.data_dir is not None
    try:
        snapshot = await _storm(options, folder, History(path), stop)
        lines, torn = read_history(path)
        snapshot.save(folder / "ledger.json")
        evidence = Evidence(lines, snapshot)
        found = violations(evidence)
        print(f"lateack chaos --seconds {options.seconds:g} --seed {options.seed}\n")
        print_report(evidence, found, torn)
        if found:
            kept = True
            print(f"History, ledger and logs are in {folder}")
        return 1 if found else 0
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


async def _storm(options: Options, folder: Path, history: History, stop: asyncio.Event) -> Snapshot:
    # SIGQUIT is sent on purpose; before it is handled, it would leave a core file.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    say = Progress()
    say("starting servers and fleet")
    async with fleet(folder, history, options.workers) as ships:
        await migrate(ships.postgres)
        await make_effects_table(ships)
        await ships.start()
        workload, weather = Workload(ships), Faults(ships)
        try:
            await _blow(options, ships, workload, weather, stop, say)
            await _calm(ships, weather)
            await workload.stop_the_clock()
            say("calm; waiting for what is still on its way")
            await _settle(ships, workload, say)
        finally:
            await workload.close()
        say("stopping the fleet")
        await ships.stop()
        say.end()
        return await read_snapshot(ships)


async def _blow(
    options: Options,
    ships: Fleet,
    workload: Workload,
    weather: Faults,
    stop: asyncio.Event,
    say: Progress,
) -> None:
    """Submit and spoil for as long as was asked for."""
    began = time.monotonic()
    over = asyncio.Event()
    plan = faults(options.seed, options.families, names_of(options.workers))
    work: list[Coroutine[Any, Any, None]] = [
        workload.place(orders(options.seed, options.rate), began, over),
        weather.blow(plan, began, over),
    ]
    tasks = [asyncio.create_task(one) for one in work]
    ended = Ended()
    watching = [
        asyncio.create_task(weather.keep_copies()),
        asyncio.create_task(ended.keep_counting(ships)),
    ]
    try:
        while (left := began + options.seconds - time.monotonic()) > 0 and not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), min(left, 1.0))
            counts = ships.history.counts
            say(
                f"{max(0.0, left):4.0f} s left   {counts['accepted']} jobs accepted, "
                f"{ended.known} ended   {weather.done} faults"
            )
            for task in tasks:
                if task.done():
                    task.result()
    finally:
        over.set()
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        # Each fault that has begun is undone by itself.
        await asyncio.gather(*tasks)


async def _calm(ships: Fleet, weather: Faults) -> None:
    """Whatever the storm left: the servers run, and all can reach them."""
    await ships.servers.start()
    await weather.allow_writes()
    for proxy in ships.proxies("all", "both"):
        await proxy.heal()
    ships.history.tell("calm")


async def _settle(ships: Fleet, workload: Workload, say: Progress) -> None:
    """Wait until nothing is on its way, or for SETTLE seconds."""
    deadline = time.monotonic() + SETTLE
    while (left := deadline - time.monotonic()) > 0:
        try:
            on_their_way = await unfinished(ships)
        except Exception as error:
            on_their_way = {str(error): 1}
        if not on_their_way and not await workload.settled(min(left, LOOK_EVERY)):
            return
        what = ", ".join(f"{count} {name}" for name, count in on_their_way.items())
        say(f"calm; {left:.0f} s left for {what or 'callers'}")
        await asyncio.sleep(LOOK_EVERY)


class Ended:
    """How many jobs have ended, as far as the database told lately; for a person who waits."""

    def __init__(self) -> None:
        self.known = "0"

    async def keep_counting(self, ships: Fleet) -> None:
        """Ask again and again."""
        count = "SELECT count(*) FROM lateack.jobs WHERE completed_at IS NOT NULL"
        while True:
            try:
                async with ships.postgres.lend(idle=5.0) as lent:
                    self.known = str(await lent.connection.fetchval(count))
            except Exception:
                # The database is in whatever state the storm has left it in.
                self.known = "?"
            await asyncio.sleep(1.0)


class Progress:
    """One line on standard error that changes; where that is a file, a line now and then."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._told_at = 0.0

    def __call__(self, text: str) -> None:
        if self._live:
            print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self._told_at > TELL_EVERY or not text[:1].isspace():
            self._told_at = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the line."""
        if self._live:
            print(file=sys.stderr)
