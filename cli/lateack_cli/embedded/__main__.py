"""Run the two servers alone: python -m lateack_cli.embedded --data-dir DIR

Prints one line of JSON, {"database_url": …, "redis_url": …}, once both answer, and runs until
SIGINT or SIGTERM. Exit status 1: they could not start, or one of them ended by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

import msgspec

from lateack_cli.embedded import EmbeddedError, embedded_servers


async def run(options: argparse.Namespace) -> int:
    """Run the servers until a signal; the exit status."""
    asked_to_stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, asked_to_stop.set)
    async with embedded_servers(
        options.data_dir,
        durable=not options.throw_away,
        postgres_port=options.postgres_port,
        broker_port=options.broker_port,
        progress=lambda what: print(what, file=sys.stderr),
    ) as servers:
        print(msgspec.json.encode(servers.urls).decode(), flush=True)
        stop = asyncio.create_task(asked_to_stop.wait())
        lost = asyncio.create_task(servers.wait_lost())
        await asyncio.wait((stop, lost), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        lost.cancel()
        if lost.done() and not asked_to_stop.is_set():
            print(lost.result(), file=sys.stderr)
            return 1
    return 0


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(
        prog="python -m lateack_cli.embedded", description="Run PostgreSQL and Valkey."
    )
    parser.add_argument("--data-dir", type=Path, required=True, help="where they keep their data")
    parser.add_argument(
        "--postgres-port", type=int, help="listen on this loopback port too (0: any free one)"
    )
    parser.add_argument(
        "--broker-port", type=int, help="listen on this loopback port too (0: any free one)"
    )
    parser.add_argument(
        "--throw-away", action="store_true", help="faster, and not safe against a power cut"
    )
    try:
        return asyncio.run(run(parser.parse_args()))
    except EmbeddedError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
