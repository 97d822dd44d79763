"""A database cluster: who runs it, whether it is ours and fits, and how it is made."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from signal import SIGTERM

from lateack_cli.embedded.account import Account, account_for, give, may_enter
from lateack_cli.embedded.binaries import postgres_major, postgres_programs, within_reach
from lateack_cli.embedded.directory import DataDirectory
from lateack_cli.embedded.errors import EmbeddedError
from lateack_cli.embedded.process import log_end, log_tail, spawn

NAME = "lateack"  # of the role and of the database
CLUSTER_PATIENCE = 300.0  # seconds

# Written into the cluster's own postgresql.conf when it is made, where its owner may change them.
TUNABLE = {
    "max_connections": "100",
    "shared_buffers": "128MB",
    "jit": "off",  # plans of queue queries are short; compiling them costs more than running them
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "huge_pages": "off",  # a container that forbids them answers with SIGBUS
    # Parallel plans take their memory from /dev/shm, which containers keep at 64 MB.
    "max_parallel_workers_per_gather": "0",
    "max_parallel_maintenance_workers": "0",
}
BUILTIN_LOCALE = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8")  # since PostgreSQL 17


@dataclass(frozen=True)
class Installation:
    """Programs that the server's user can run, and that user (None: ourselves)."""

    programs: Path
    major: int
    account: Account | None

    def command(
        self, program: str, cluster: Path, *words: str, settings: dict[str, str] | None = None
    ) -> tuple[str, ...]:
        """How to run `program` on `cluster`, which has to be its working directory."""
        # Root enters the cluster and steps down: the server's user may not be able to walk there,
        # but stands in it already.
        by_way_of_root = self.account is not None and sys.platform == "linux"
        where = "/proc/self/cwd" if by_way_of_root else str(cluster)
        chosen = (("-c", f"{name}={value}") for name, value in (settings or {}).items())
        return (str(self.programs / program), *words, "-D", where, *chain(*chosen))


async def installation_for(
    place: DataDirectory, cluster: Path, chosen: Path | None = None
) -> Installation:
    """The programs and the user to run `cluster` with. Raises EmbeddedError when there are none."""
    account = account_for(place.top, cluster)
    if account is not None and sys.platform != "linux" and not may_enter(account, place.top):
        raise EmbeddedError(
            "PostgreSQL refuses to run as root, and the user it would run as may not enter "
            f"{place.top}. Choose a data directory below /var or /tmp, or start lateack as an "
            "ordinary user."
        )
    found = chosen or postgres_programs()
    major = await postgres_major(found)
    programs = await within_reach(account, found, place.room / "programs")
    return Installation(programs, major, account)


def check_cluster(cluster: Path, installation: Installation) -> None:
    """Raises EmbeddedError when `cluster` is not one that this installation can run."""
    owner = cluster.stat().st_uid
    if installation.account is None and owner != os.geteuid():
        raise EmbeddedError(
            f"{cluster} belongs to user id {owner}, and this is {os.geteuid()}: it was made by "
            "another user or by root. Start lateack as that user again, or choose another data "
            "directory."
        )
    try:
        made_by = (cluster / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        raise EmbeddedError(
            f"{cluster} is no PostgreSQL cluster. Move it away, or choose another data directory."
        ) from None
    if made_by != str(installation.major):
        raise EmbeddedError(
            f"{cluster} was made by PostgreSQL {made_by}, and this is {installation.major}. Dump "
            f"it (pg_dump) with a PostgreSQL {made_by} and load that into a new data directory, or "
            "run pg_upgrade on it."
        )


async def make_cluster(
    place: DataDirectory, cluster: Path, installation: Installation, *, durable: bool
) -> None:
    """Make an empty database `lateack` in a new `cluster`, whole or not at all."""
    for unfinished in place.top.glob("postgres.new-*"):
        await asyncio.to_thread(shutil.rmtree, unfinished, ignore_errors=True)
    draft = Path(tempfile.mkdtemp(prefix="postgres.new-", dir=place.top))
    give(installation.account, draft)
    takes_settings = installation.major >= 16
    choices = (
        f"--username={NAME}",
        "--auth-local=peer",  # rules of our own replace these at every start
        "--auth-host=scram-sha-256",
        "--encoding=UTF8",
        # PostgreSQL's own collation: the same order on every machine, whatever its C library.
        "--locale=C",
        *(BUILTIN_LOCALE if installation.major >= 17 else ()),
        "--no-instructions",
        *(() if durable else ("--no-sync",)),
        *(f"--set={name}={value}" for name, value in TUNABLE.items() if takes_settings),
    )
    log = place.log("postgres")
    initdb = installation.command("initdb", draft, *choices)
    await _run(initdb, draft, log, installation.account)
    if not takes_settings:
        with (draft / "postgresql.conf").open("a") as configuration:
            configuration.writelines(f"{name} = '{value}'\n" for name, value in TUNABLE.items())
    # Before the cluster gets its name, so that one that has it always holds the database.
    single = installation.command("postgres", draft, "--single", settings={"exit_on_error": "on"})
    statement = f"CREATE DATABASE {NAME}\n"
    await _run((*single, "postgres"), draft, log, installation.account, statement)
    os.rename(draft, cluster)  # noqa: PTH104 - one system call


async def _run(
    command: tuple[str, ...], folder: Path, log: Path, account: Account | None, stdin: str = ""
) -> None:
    begin = log_end(log)
    process = await spawn(
        command,
        folder=folder,
        log=log,
        account=account,
        death_signal=SIGTERM,
        stdin=asyncio.subprocess.PIPE,
    )
    try:
        await asyncio.wait_for(process.communicate(stdin.encode()), CLUSTER_PATIENCE)
        how = f"exit status {process.returncode}"
    except TimeoutError:
        how = f"not done after {CLUSTER_PATIENCE:g} seconds"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise EmbeddedError(
            f"{Path(command[0]).name} could not make a database cluster ({how}). "
            f"The end of {log}:\n{log_tail(log, begin)}"
        )
