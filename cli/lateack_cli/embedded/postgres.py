"""A PostgreSQL of our own: its cluster, its settings, and who may connect."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path
from signal import SIGINT, SIGQUIT

from lateack_cli.embedded.account import give, give_tree, own_name
from lateack_cli.embedded.cluster import (
    NAME,
    check_cluster,
    installation_for,
    make_cluster,
)
from lateack_cli.embedded.directory import DataDirectory
from lateack_cli.embedded.errors import EmbeddedError
from lateack_cli.embedded.ports import loopback_port
from lateack_cli.embedded.postgres_wire import Refused, ask
from lateack_cli.embedded.process import EmbeddedServer, Program

SOCKET_PORT = 5432  # names the socket's file only
CANDIDATE_PORTS = range(16000, 23000)
# SIGINT ends sessions and writes a checkpoint; SIGQUIT ends at once, and the next start recovers.
STOP_STEPS = ((SIGINT, 30.0), (SIGQUIT, 10.0))


async def postgres_server(
    place: DataDirectory,
    *,
    durable: bool,
    port: int | None,
    progress: Callable[[str], None],
    programs: Path | None = None,
) -> EmbeddedServer:
    """A PostgreSQL on `<data>/postgres`, made when missing, not started.

    With `port` (0: any free one) it also listens on loopback, with a password. Raises EmbeddedError
    when the cluster is of another major version, belongs to somebody else, or cannot be made.
    """
    us = own_name()
    cluster = place.top / "postgres"
    installation = await installation_for(place, cluster, programs)
    account = installation.account
    if cluster.exists():
        check_cluster(cluster, installation)
        await asyncio.to_thread(give_tree, account, cluster)
    else:
        progress(f"Making a PostgreSQL cluster in {cluster}")
        await make_cluster(place, cluster, installation, durable=durable)

    sockets = place.room / "postgres"
    sockets.mkdir(mode=0o700)
    give(account, sockets)
    # Until PostgreSQL 16 a map of users names each role.
    rules = _write_rules(place.room, us, "all" if installation.major >= 16 else NAME)
    number = SOCKET_PORT if port is None else loopback_port(port, CANDIDATE_PORTS)
    password = secrets.token_hex(16)
    # The password is for TCP only; it is new in every launcher, so none is kept anywhere.
    by_socket = f"postgresql://{NAME}@/{NAME}?host={sockets}&port={number}"
    by_tcp = f"postgresql://{NAME}:{password}@127.0.0.1:{number}/{NAME}"
    statement = None if port is None else f"ALTER ROLE {NAME} PASSWORD '{password}'"
    settings = {
        "unix_socket_directories": str(sockets),
        "unix_socket_permissions": "0700",
        "listen_addresses": "" if port is None else "127.0.0.1",
        "port": str(number),
        "logging_collector": "off",
        "log_destination": "stderr",
        "cluster_name": NAME,
        **rules,
        # Nothing else is given up for speed: what was acknowledged still outlives kill -9.
        "fsync": "on" if durable else "off",
    }

    def prepare() -> None:
        # Nothing runs on this cluster any more: the process that its lock file names is dead, and
        # if one with that number lives, it is a stranger, whom PostgreSQL would wait for.
        (cluster / "postmaster.pid").unlink(missing_ok=True)
        for leftover in sockets.iterdir():
            leftover.unlink()

    async def ready() -> bool:
        return await _takes_connections(sockets / f".s.PGSQL.{number}", statement)

    return EmbeddedServer(
        Program(
            name="PostgreSQL",
            command=installation.command("postgres", cluster, settings=settings),
            folder=cluster,
            log=place.log("postgres"),
            url=by_socket if port is None else by_tcp,
            account=account,
            stop_steps=STOP_STEPS,
            prepare=prepare,
            ready=ready,
            mark=str(place.room),
        )
    )


def _write_rules(room: Path, us: str, roles: str) -> dict[str, str]:
    """Say who may connect; returns the settings that name the files.

    Over the socket: the launcher's own user alone, for whom the kernel vouches, as any of `roles`
    and without a password. The socket's folder is closed to others besides, but a PostgreSQL
    started by root shares its user with whatever else runs as `nobody`. Over TCP, when it is on:
    whoever has a password.
    """
    texts = {
        "hba_file": (
            "pg_hba.conf",
            "local all all peer map=launcher\nhost all all 127.0.0.1/32 scram-sha-256\n",
        ),
        "ident_file": ("pg_ident.conf", f'launcher "{us}" {roles}\n'),
    }
    settings = {}
    for name, (file, text) in texts.items():
        path = room / file
        path.write_text(text)
        path.chmod(0o644)
        settings[name] = str(path)
    return settings


async def _takes_connections(socket: Path, statement: str | None) -> bool:
    try:
        await ask(socket, NAME, NAME, statement)
    except OSError:
        return False
    except Refused as refused:
        if refused.sqlstate == "57P03":  # starting up, or recovering
            return False
        raise EmbeddedError(f"PostgreSQL runs, but refuses to work: {refused}") from refused
    return True
