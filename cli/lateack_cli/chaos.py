"""`lateack chaos`: does its worst to a fleet of its own, and proves that nothing was lost."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import click

from lateack_cli import flags
from lateack_cli.signals import Interrupted, run, unless
from lateack_cli.trouble import MUST_CHANGE, UNSUCCESSFUL, Trouble


@click.command("chaos")
@flags.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=60.0,
    help="How long the storm lasts; starting, settling and judging come on top.",
)
@flags.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Replays a run's choices: the same jobs and the same faults at the same times. "
    "Without it, a new one.",
)
@flags.option(
    "--faults",
    default="kill,freeze,broker,database,network",
    metavar="FAMILY,FAMILY",
    help="Which families of faults; `none` for none.",
)
@flags.option(
    "--jobs-per-second",
    type=click.FloatRange(min=0.1, max=1000),
    default=10.0,
    help="How many orders are submitted, on average.",
)
@flags.option("--workers", type=click.IntRange(1, 64), default=3, help="How many worker processes.")
@flags.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where servers, logs and history go, and are kept; without it, into a temporary folder, "
    "which is kept when something was violated.",
)
@flags.option(
    "--history",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where the history goes, if not into that folder; it is written anew.",
)
def command(
    seconds: float,
    seed: int | None,
    faults: str,
    jobs_per_second: float,
    workers: int,
    data_dir: Path | None,
    history: Path | None,
) -> None:
    """Break a fleet in every way there is, and prove that no promise was broken.

    \b
    Example:
      lateack chaos --seconds 60 --seed 7 --faults kill,network

    It starts two APIs, workers, two schedulers, PostgreSQL and a broker of its own, submits a
    random mix of jobs, and meanwhile kills, freezes, stops and cuts off whatever runs. Then it
    waits until all jobs have ended, and holds what was seen to happen against the ledger.

    Exit code: 0 every promise was kept, 1 one was broken, 2 it could not be run like this. Ctrl-C
    ends the storm early, and what happened until then is judged; twice ends it at once.
    """
    from lateack_cli.embedded import EmbeddedError
    from lateack_cli.storm.run import Options
    from lateack_cli.storm.run import run as run_storm

    families = _families(faults)
    if data_dir is not None and data_dir.exists() and any(data_dir.iterdir()):
        raise click.UsageError(f"--data-dir {data_dir} is not empty; name a new folder")
    options = Options(
        seconds=seconds,
        seed=random.randrange(1_000_000) if seed is None else seed,
        families=families,
        rate=jobs_per_second,
        workers=workers,
        data_dir=data_dir and data_dir.absolute(),
        history=history and history.absolute(),
    )

    async def body(stop: asyncio.Event, hurry: asyncio.Event) -> int:
        try:
            return await unless(hurry, run_storm(options, stop))
        except Interrupted:
            return UNSUCCESSFUL
        except (EmbeddedError, TimeoutError) as error:
            raise Trouble(f"the fleet does not start: {error}", MUST_CHANGE) from None

    # Not on uvloop, as in `up`: children are tied to the life of the thread that starts them.
    run(body, uvloop=False)


def _families(text: str) -> tuple[str, ...]:
    from lateack_cli.storm.plan import FAMILIES

    names = [name for part in text.split(",") if (name := part.strip())]
    if names == ["none"]:
        return ()
    for name in names:
        if name not in FAMILIES:
            raise click.UsageError(f"--faults {name!r} is none of {', '.join(FAMILIES)}")
    return tuple(dict.fromkeys(names))
