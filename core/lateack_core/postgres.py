"""The only door to asyncpg: named statements, one pool, and one word for "not there".

Nothing here holds a session: no LISTEN, no session lock, no temporary table; so a transaction
pooler may stand in between (`prepared_statements=False`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from lateack_sql import query

MINIMUM_VERSION = 15
# A statement that waits longer than this has met something that is stuck.
STATEMENT_TIMEOUT = 15.0
MIGRATION_TIMEOUT = 3600.0
ACQUIRE_TIMEOUT = 5.0
CONNECT_TIMEOUT = 5.0
# Deadlocks and serialisation failures: the statement did nothing and may be sent again.
_REPEATABLE = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
_UNAVAILABLE = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.CannotConnectNowError,
)
# A statement that was prepared in one session and met in another, or by somebody else in this one.
_MIXED_UP = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)

Row = asyncpg.Record
Connection = asyncpg.pool.PoolConnectionProxy


class LedgerUnavailable(Exception):
    """The database gave no answer. What was sent may have happened or not."""


class LedgerUnfit(Exception):
    """The database cannot be used as it is; the message says what to change."""


class Blocked(Exception):
    """Another transaction holds what the statement needs; nothing was written."""


class Duplicate(Exception):
    """A unique constraint refused the statement; nothing was written."""


class Postgres:
    """A pool of connections to the ledger."""

    def __init__(self, pool: asyncpg.Pool, *, prepares: bool = True) -> None:
        self._pool = pool
        self._prepares = prepares
        self._ok_since = time.monotonic()

    @property
    def settled_for(self) -> float:
        """Seconds since the last trouble with the database, as this process saw it."""
        return time.monotonic() - self._ok_since

    async def fetch(self, name: str, *args: Any) -> list[Row]:
        """Run the statement called `name` on its own and return its rows.

        Raises:
            LedgerUnavailable: no answer; whether it took effect is not known.
        """
        text = query(name)
        async with self._acquired() as connection:
            return await self._fetch(connection, text, args)

    async def fetch_with_lock_timeout(self, name: str, milliseconds: int, *args: Any) -> list[Row]:
        """Like fetch, in a transaction that waits for locks no longer than that.

        Raises:
            Blocked: a lock was not had in time.
        """
        async with self.transaction(lock_timeout=milliseconds) as transaction:
            return await transaction.fetch(name, *args)

    @asynccontextmanager
    async def transaction(self, *, lock_timeout: int | None = None) -> AsyncIterator[Transaction]:
        """A transaction that cannot hold locks for long, even when frozen inside it."""
        async with self._acquired() as connection, connection.transaction():
            settings = "SET LOCAL idle_in_transaction_session_timeout = '5s';"
            settings += "SET LOCAL statement_timeout = '4s';"
            if lock_timeout is not None:
                settings += f"SET LOCAL lock_timeout = '{int(lock_timeout)}ms'"
            await connection.execute(settings)
            yield Transaction(connection)

    @asynccontextmanager
    async def migration(self) -> AsyncIterator[Transaction]:
        """A transaction that may take its time, but does not wait long for a lock: whoever comes
        after a waiting ALTER TABLE waits as well.

        Raises:
            Blocked: try again.
        """
        async with self._acquired() as connection, connection.transaction():
            await connection.execute("SET LOCAL lock_timeout = '5s'")
            yield Transaction(connection)

    @asynccontextmanager
    async def lend(self, *, idle: float) -> AsyncIterator[Lent]:
        """A transaction for somebody else's statements; rolled back unless it was committed.

        What those raise passes unchanged. `idle` is how many seconds the transaction may be idle
        before the server ends it: the locks of a process that was frozen inside end with it.

        Raises:
            LedgerUnavailable: there was no connection to begin with.
        """
        try:
            connection = await self._pool.acquire()
        except _UNAVAILABLE as error:
            raise self._trouble(error) from error
        try:
            transaction = connection.transaction()
            try:
                await transaction.start()
                await connection.execute(
                    f"SET LOCAL idle_in_transaction_session_timeout = {int(idle * 1000)}"
                )
            except _UNAVAILABLE as error:
                raise self._trouble(error) from error
            lent = Lent(connection, transaction)
            try:
                yield lent
            finally:
                if not lent.broken and connection.is_in_transaction():
                    with contextlib.suppress(*_UNAVAILABLE):
                        await transaction.rollback()
        finally:
            with contextlib.suppress(*_UNAVAILABLE):
                await self._pool.release(connection, timeout=CONNECT_TIMEOUT)

    async def script(self, text: str) -> None:
        """Run statements without parameters, outside of a transaction of ours."""
        async with self._acquired() as connection:
            await connection.execute(text, timeout=MIGRATION_TIMEOUT)

    async def check(self) -> None:
        """Refuse a server that is too old, and prepared statements through a pooler.

        Raises:
            LedgerUnfit, LedgerUnavailable
        """
        async with self._acquired() as connection:
            version = connection.get_server_version()
            is_pooled = self._prepares and await _is_pooled(connection)
        if version.major < MINIMUM_VERSION:
            raise LedgerUnfit(
                f"PostgreSQL {version.major} is too old: lateack needs {MINIMUM_VERSION} or newer"
            )
        if is_pooled:
            raise LedgerUnfit(
                "DATABASE_URL leads to a connection pooler, where prepared statements are lost or "
                "mixed up; set LATEACK_PREPARED_STATEMENTS=0"
            )

    async def close(self) -> None:
        """Close every connection; those in use get a moment to finish."""
        try:
            await asyncio.wait_for(self._pool.close(), 3.0)
        except (TimeoutError, *_UNAVAILABLE):
            self._pool.terminate()

    async def _fetch(self, connection: Connection, text: str, args: Sequence[Any]) -> list[Row]:
        for attempt in range(5):
            try:
                rows: list[Row] = await connection.fetch(text, *args)
            except _REPEATABLE:
                if attempt == 4 or connection.is_in_transaction():
                    raise
                await asyncio.sleep(0.01 * 2**attempt)
            else:
                return rows
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def _acquired(self) -> AsyncIterator[Connection]:
        """A connection, with every error that means "not there" under one name."""
        try:
            async with self._pool.acquire(timeout=ACQUIRE_TIMEOUT) as connection:
                yield connection
        except (asyncpg.LockNotAvailableError, *_REPEATABLE) as error:
            raise Blocked(str(error)) from error
        except asyncpg.UniqueViolationError as error:
            raise Duplicate(str(error)) from error
        except _UNAVAILABLE as error:
            raise self._trouble(error) from error

    def _trouble(self, error: BaseException) -> LedgerUnavailable:
        self._ok_since = time.monotonic()
        return LedgerUnavailable(f"{type(error).__name__}: {error}".rstrip(": "))


class Lent:
    """A transaction on a connection that was lent to somebody else's code."""

    def __init__(
        self, connection: Connection, transaction: asyncpg.transaction.Transaction
    ) -> None:
        self.connection = connection
        self._transaction = transaction

    @property
    def broken(self) -> bool:
        """Whether the connection has ended under it."""
        try:
            return bool(self.connection.is_closed())
        except asyncpg.InterfaceError:
            # The pool has taken it back already.
            return True

    def is_outage(self, error: BaseException) -> bool:
        """Whether this error of a statement is the database's state rather than the statement's."""
        return self.broken or isinstance(error, asyncpg.ReadOnlySQLTransactionError)

    async def commit_with(self, name: str, *args: Any) -> list[Row]:
        """Run the statement called `name` as the last one and commit with it; its rows. When it
        returns none, nothing is committed.

        The rows of the ledger are touched here and not before, so that they are locked for a
        moment only, however long the transaction took; frozen in that moment, for five seconds.

        Raises:
            RuntimeError: the transaction was ended by hand.
            Blocked: somebody else holds the ledger's rows; nothing was committed.
            asyncpg.PostgresError, OSError, …: when `broken`, the commit may have happened.
        """
        connection = self.connection
        if not self.broken and not connection.is_in_transaction():
            raise RuntimeError("the transaction was ended by hand; leave COMMIT to its block")
        await connection.execute(
            "SET LOCAL idle_in_transaction_session_timeout = '5s'; SET LOCAL lock_timeout = '4s'; "
            "SET LOCAL statement_timeout = '4s'",
            timeout=STATEMENT_TIMEOUT,
        )
        try:
            rows: list[Row] = await connection.fetch(query(name), *args, timeout=STATEMENT_TIMEOUT)
        except (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError) as error:
            # The two limits above: no doing of whose transaction it is.
            raise Blocked(str(error)) from error
        end = self._transaction.commit() if rows else self._transaction.rollback()
        try:
            await asyncio.wait_for(end, STATEMENT_TIMEOUT)
        except TimeoutError:
            # Nothing more will be heard on it.
            connection.terminate()
            raise
        return rows


class Transaction:
    """A connection inside a transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def fetch(self, name: str, *args: Any) -> list[Row]:
        rows: list[Row] = await self._connection.fetch(query(name), *args)
        return rows

    async def script(self, text: str) -> None:
        """Run statements without parameters."""
        await self._connection.execute(text, timeout=MIGRATION_TIMEOUT)


async def _is_pooled(connection: Connection) -> bool:
    """Whether somebody between us and the server shares its sessions out: the number that came with
    the connection is then not that of the process that answers."""
    try:
        answers = await connection.fetchval("SELECT pg_backend_pid()")
    except _MIXED_UP:
        return True
    return bool(answers != connection.get_server_pid())


async def _nothing_to_reset(connection: Any) -> None:
    """Nothing of ours outlives its transaction, so the usual round trip for it is saved."""


async def connect(
    url: str,
    *,
    size: int = 10,
    prepared_statements: bool = True,
    name: str = "lateack",
    lending: bool = False,
) -> Postgres:
    """Open a pool; connections are made when they are needed.

    `lending` is for connections that other people's code uses: their statements may take as long as
    they like, and what they leave in a session is reset.

    Raises:
        LedgerUnavailable: the URL cannot be used at all.
    """
    try:
        pool = asyncpg.create_pool(
            url,
            min_size=0,
            max_size=size,
            max_inactive_connection_lifetime=60.0,
            command_timeout=None if lending else STATEMENT_TIMEOUT,
            timeout=CONNECT_TIMEOUT,
            statement_cache_size=100 if prepared_statements else 0,
            server_settings={"application_name": name},
            reset=None if lending else _nothing_to_reset,
        )
        return Postgres(await pool, prepares=prepared_statements)
    except (*_UNAVAILABLE, ValueError) as error:
        raise LedgerUnavailable(f"DATABASE_URL cannot be used: {error}") from error
