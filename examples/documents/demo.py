"""The demo: send the whole library through the service, watch it live, then ask two questions.

    make demo

It starts a service of its own and keeps it, with the work files and the index, in the folder .data
beside this file (DEMO_DATA_DIR moves it). Run it again and nothing runs again: each submission
carries a key made of the document's content, and is answered with the jobs of the first time.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from lateack import Client, ClientError, chain

from . import places
from .indexing import search
from .serving import NotStarted, lateack_up
from .showing import Board, Origin, Outcome, console, show_answer, table_of
from .tasks import chunk, embed, index, parse

QUESTIONS = ("At what wind speed must the dome be closed?", "氧气浓度低于多少时报警？")
TENANT = "default"
INTERRUPTED = 130  # the exit code that shells give a command which Ctrl-C ended


async def process(jobs: Client, source: str, board: Board) -> Outcome:
    """Submit one document and follow its chain to the end, step by step, over the WebSocket."""
    sha256 = places.content_sha256(places.LIBRARY / source)
    steps = chain(parse.s(source, sha256), chunk.s(), embed.s(), index.s())
    key = places.document_key(TENANT, sha256)
    submitted = await jobs.submit_request(steps.submission(idempotency_key=key))
    origin: Origin = "new"
    if submitted.replayed:
        origin = "replayed" if submitted.ended else "resumed"
    board.submitted(source, origin)
    ended = []
    for step in submitted.steps or ():
        if step.status not in ("succeeded", "failed", "cancelled"):
            async for event in jobs.watch(step.job_id):
                board.heard(source, step.task.rpartition(".")[2], event)
        ended.append(await jobs.get(step.job_id))
    outcome = Outcome(source, origin, ended)
    board.finished(outcome)
    return outcome


async def process_library(url: str, out: Console) -> list[Outcome]:
    """Every document at once."""
    sources = sorted(path.name for path in places.LIBRARY.iterdir())
    async with Client(url, tenant=TENANT, timeout=60.0) as jobs:
        with Board(out, sources) as board:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(process(jobs, name, board)) for name in sources]
    return [task.result() for task in running]


def report(out: Console, outcomes: Sequence[Outcome]) -> bool:
    """The table, a sentence on what happened, and the answers; whether all is well."""
    out.print()
    out.print(table_of(outcomes))
    failed = [outcome for outcome in outcomes if not outcome.succeeded]
    counts = Counter(outcome.origin for outcome in outcomes)
    out.print()
    out.print(
        f"{len(outcomes)} documents, {sum(len(outcome.jobs) for outcome in outcomes)} jobs: "
        f"{counts['new']} new, {counts['resumed']} resumed, {counts['replayed']} replayed"
        + (", of which nothing ran again." if counts["replayed"] else ".")
    )
    hits = [next(iter(search(places.index_of(TENANT), ask, limit=1)), None) for ask in QUESTIONS]
    for question, hit in zip(QUESTIONS, hits, strict=True):
        show_answer(out, question, hit)
    for outcome in failed:
        out.print(Text(f"\nnot indexed: {outcome.source}: {outcome.reason}", style="red"))
    if failed or None in hits:
        out.print(f"To begin afresh, delete {places.data_folder()}", soft_wrap=True)
        return False
    return True


async def run(out: Console, hurry: asyncio.Event) -> int:
    """The whole demo; the exit code."""
    folder = places.data_folder()
    began = time.monotonic()
    out.print("starting PostgreSQL, Valkey, API, scheduler and a worker …")
    async with lateack_up(folder / "server", folder / "lateack.log", hurry) as url:
        out.print(f"ready at {url} after {time.monotonic() - began:.1f} s\n")
        outcomes = await process_library(url, out)
        fine = report(out, outcomes)
        out.print("\nstopping the service …")
    return 0 if fine else 1


async def interruptible(out: Console) -> int:
    """Run the demo; the first signal ends it in order, the second makes haste."""
    hurry = asyncio.Event()
    demo = asyncio.create_task(run(out, hurry))
    asked = False

    def stop() -> None:
        nonlocal asked
        if asked:
            hurry.set()
        else:
            asked = True
            out.print("\nstopping; once more to make haste")
            demo.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # One that was switched off, as by nohup, stays so.
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stop)
    with contextlib.suppress(asyncio.CancelledError):
        return await demo
    return INTERRUPTED


def main() -> None:
    """Run the demo; ends the process."""
    out = console()
    try:
        sys.exit(asyncio.run(interruptible(out)))
    except* NotStarted as errors:
        out.print(str(errors.exceptions[0]), style="red", markup=False)
    except* ClientError as errors:
        out.print(f"{errors.exceptions[0]}", style="red", markup=False)
    sys.exit(1)


if __name__ == "__main__":
    main()
