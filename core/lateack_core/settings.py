"""Every setting, read from the environment here and nowhere else. Durations are seconds."""

from __future__ import annotations

import os
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from lateack.errors import DeclarationError
from lateack.names import queue_problem

# Patience that may be none at all; a loop without a pause would be none.
_MAY_BE_ZERO = frozenset(
    {"ledger_settle", "grace", "outbox_delay", "reconcile_grace", "retention", "retention_failed"}
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is told.

    Each field is the variable `LATEACK_<NAME>`; DATABASE_URL and REDIS_URL go by their own
    names. A secret can be given as a file instead: `<VARIABLE>_FILE`.
    """

    database_url: str | None = None
    redis_url: str | None = None
    namespace: str = "lateack"

    # How long a worker owns a job without renewing, and how often it renews. Three beats a lease:
    # one may be missed.
    lease: float = 30.0
    heartbeat: float = 10.0
    # Longer than a lease, so that the claim succeeds when the entry arrives.
    reclaim_idle: float = 45.0
    reclaim_interval: float = 15.0
    max_worker_losses: int = 3
    # A process trusts its own view of who is lost only after the ledger has answered for this long.
    ledger_settle: float = 15.0
    # How long a stopping worker lets jobs finish before it hands them back.
    grace: float = 30.0

    # For tasks with pool="process". As many children as there are processors, two at least.
    processes: int | None = None
    # MiB that a body may use when its task names no limit; what uses more is killed.
    process_memory_limit: float | None = None
    # A child is replaced after so many jobs, or when it holds more MiB between two of them.
    process_max_jobs: int | None = None
    process_max_memory: float | None = None

    # Fresh jobs are published by the process that accepted them; the relay takes over after this.
    outbox_delay: float = 2.0
    relay_interval: float = 0.5

    leader_ttl: float = 15.0
    pending_timeout: str = "1800"
    unpublished_timeout: float = 86_400.0
    cleanup_interval: float = 600.0
    reap_interval: float = 5.0
    reconcile_interval: float = 30.0
    reconcile_grace: float = 60.0

    # How long what has ended is kept: what failed for longer. 0 is for ever.
    retention: float = 7 * 86_400.0
    retention_failed: float = 30 * 86_400.0
    audit_interval: float = 300.0

    # "" is no cap; "20" caps all queues together, "documents=20,default=500" each its own.
    max_pending: str = ""

    auth: Literal["header"] = "header"
    trust_tenant_header: bool = False

    # Silence of this length is broken by a sign of life, before a proxy takes it for death.
    stream_ping: float = 15.0

    # host:port at which a worker or scheduler answers /livez and /readyz; empty: nowhere.
    health: str = ""

    pool_size: int = 10
    # How many bodies of one worker can be inside of ctx.transaction() at once.
    transaction_pool_size: int = 5
    prepared_statements: bool = True
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if isinstance(value, float) and not (
                0 < value < 1e9 or (field in _MAY_BE_ZERO and value == 0)
            ):
                raise DeclarationError(
                    f"{variable_of(field)} ({value:g}) must be {_unit(field)}, more than 0"
                )
        for field in ("processes", "process_max_jobs"):
            count = getattr(self, field)
            if count is not None and count < 1:
                raise DeclarationError(f"{variable_of(field)} ({count}) must be 1 or more")
        if self.lease < 3 * self.heartbeat:
            raise DeclarationError(
                f"LATEACK_LEASE ({self.lease:g} s) must be at least three times LATEACK_HEARTBEAT "
                f"({self.heartbeat:g} s), or one late beat loses a job"
            )
        if self.reclaim_idle <= self.lease:
            raise DeclarationError("LATEACK_RECLAIM_IDLE must be longer than LATEACK_LEASE")
        by_queue(self.max_pending, "LATEACK_MAX_PENDING")
        by_queue(self.pending_timeout, "LATEACK_PENDING_TIMEOUT")

    @property
    def caps(self) -> dict[str, int]:
        """The most pending jobs by queue; "" stands for all queues together."""
        return {q: int(n) for q, n in by_queue(self.max_pending, "LATEACK_MAX_PENDING").items()}

    @property
    def pending_timeouts(self) -> dict[str, float]:
        """Pending timeout in seconds by queue; "" is the one of every other queue, 0 is never."""
        return {"": 1800.0} | by_queue(self.pending_timeout, "LATEACK_PENDING_TIMEOUT")

    @property
    def gone_after(self) -> float:
        """Seconds without a sign of life after which a worker counts as gone."""
        return max(2 * self.lease, 3 * self.heartbeat)


def _unit(field: str) -> str:
    return "MiB" if "memory" in field else "seconds"


def by_queue(text: str, variable: str) -> dict[str, float]:
    """Read `20` or `documents=20,default=500`; "" is the key of the plain number.

    Raises:
        DeclarationError: it is neither.
    """
    values: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        queue, _, number = part.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = -1.0
        if not 0 <= value < 1e12 or (queue and queue_problem(queue)):
            raise DeclarationError(
                f"{variable}={text!r}: write a number, or queue=number, several by commas"
            )
        values[queue] = value
    return values


def from_environment(environ: Mapping[str, str] | None = None, **given: Any) -> Settings:
    """Settings from the environment; what is `given` and not None comes before it.

    Raises:
        DeclarationError: a value cannot be read; the message names the variable.
    """
    environ = os.environ if environ is None else environ
    hints = typing.get_type_hints(Settings)
    values: dict[str, Any] = {}
    for field in Settings.__struct_fields__:
        if given.get(field) is not None:
            values[field] = given[field]
        elif (text := _lookup(environ, variable_of(field))) is not None:
            values[field] = _read(text, hints[field], variable_of(field))
    return Settings(**values)


def variable_of(field: str) -> str:
    """The environment variable of a setting."""
    return field.upper() if field in ("database_url", "redis_url") else f"LATEACK_{field.upper()}"


def environment_of(settings: Settings) -> dict[str, str]:
    """The variables that give a child process these settings."""
    return {
        variable_of(field): "1" if value is True else "0" if value is False else str(value)
        for field in Settings.__struct_fields__
        if (value := getattr(settings, field)) is not None
    }


def _lookup(environ: Mapping[str, str], variable: str) -> str | None:
    if path := environ.get(f"{variable}_FILE"):
        return Path(path).read_text("utf-8").strip()
    return environ.get(variable) or None


def _read(text: str, hint: Any, variable: str) -> Any:
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    try:
        return msgspec.convert(text, hint, strict=False)
    except msgspec.ValidationError as error:
        raise DeclarationError(f"{variable}={text!r}: {error}") from None
