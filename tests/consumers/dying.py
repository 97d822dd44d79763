"""A worker that dies at a chosen point of a retry's bookkeeping: `python -m … before|after`.

`before`: the body has asked for its retry and nothing is recorded. `after`: it is recorded, and
neither the entry is acknowledged nor anybody told.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from lateack_consumers.worker import work
from lateack_core.jobs import Failure, Ledger, Moved
from lateack_core.settings import from_environment
from tests.consumers.fault_tasks import APP_PATH, app

_fail = Ledger.fail


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def fail_and_die(ledger: Ledger, failures: Sequence[Failure]) -> list[Moved]:
    if sys.argv[1] == "before":
        die()
    await _fail(ledger, failures)
    die()
    raise AssertionError("dead")


async def main() -> None:
    Ledger.fail = fail_and_die  # type: ignore[assignment,method-assign]
    await work(
        from_environment(),
        app,
        queues=["q"],
        slots=5,
        name="dying",
        app_path=APP_PATH,
        stop=asyncio.Event(),
        hurry=asyncio.Event(),
        ready=lambda: None,
    )


if __name__ == "__main__":
    asyncio.run(main())
