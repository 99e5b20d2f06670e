"""Transactions on a database, the same for SQLite and Postgres: statements with ``:name`` parameters, each unit of work atomic."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import anyio
import anyio.to_thread

from .._errors import DurableError, EngineClosedError, EngineUnavailableError
from .._storable import storable_text

T = TypeVar("T")

Row = tuple[Any, ...]


class Run(Protocol):
    """Runs one statement inside a transaction and returns its rows."""

    def __call__(self, statement: str, /, **values: Any) -> list[Row]:
        """Run it."""
        ...


class DatabaseDown(Exception):
    """The database does not answer; the work was not done, or its end is not known. Stays inside the package."""


class DatabaseBusy(DatabaseDown):
    """The database is there, and locked by others for longer than usual. Stays inside the package."""


def is_busy(error: BaseException | None) -> bool:
    """Whether an error of SQLite means that others have the lock."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class DatabaseConflict(Exception):
    """A uniqueness rule was violated, so the work was not done. Stays inside the package."""


class Database(Protocol):
    """A database whose calls block.

    Attributes:
        name: For messages, without credentials.
    """

    name: str

    def transaction(self, work: Callable[[Run], T], *, only_reads: bool = False) -> T:
        """Do some work atomically; what it raises rolls back.

        Args:
            work: Gets a function that runs statements.
            only_reads: It changes nothing, so it need not wait for others that do.

        Raises:
            DatabaseDown: There is no connection.
            EngineClosedError: It was closed.
            DatabaseConflict: A uniqueness rule was violated.
            DurableError: It does not take a value, which is too large for example.
        """
        ...

    def close(self) -> None:
        """Close all connections, and refuse transactions from now on; may be called again."""
        ...


def closed(name: str) -> EngineClosedError:
    """The error about a database that is used after its engine was closed."""
    return EngineClosedError(
        f"the engine on {name} was closed: its `async with` block has ended. Use it inside the block, and let the block end after the "
        "task group that runs its workers"
    )


def unstorable(name: str, error: object) -> DurableError:
    """The error about a value that a database does not take, although it is there."""
    return DurableError(f"the database {name} does not store a value: {str(error).strip()}; expected a smaller one")


def storable_values(values: dict[str, Any], *, allows_nul: bool) -> dict[str, Any]:
    """The parameters of a statement with text that the database can hold."""
    return {
        name: storable_text(value, allows_nul=allows_nul) if isinstance(value, str) else value
        for name, value in values.items()
    }


class SqliteDatabase:
    """A file of SQLite, through the standard library; one connection, used by one thread at a time.

    A transaction that writes takes the write lock at its beginning: workers read what they then change.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).absolute()
        self.name = str(self._path)
        self._connection: sqlite3.Connection | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def transaction(self, work: Callable[[Run], T], *, only_reads: bool = False) -> T:
        """Do some work atomically."""
        with self._lock:
            if self._is_closed:
                raise closed(self.name)
            try:
                connection = self._connection or self._connect()
                connection.execute("BEGIN" if only_reads else "BEGIN IMMEDIATE")
                try:
                    done = work(partial(_run_statement, connection))
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
            except sqlite3.IntegrityError as error:
                raise DatabaseConflict(str(error)) from error
            except sqlite3.DataError as error:
                raise unstorable(self.name, error) from error
            except sqlite3.Error as error:
                kind = DatabaseBusy if is_busy(error) else DatabaseDown
                raise kind(f"{type(error).__name__}: {error}") from error
            return done

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=2.0, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")  # a commit is on the disk, also after a loss of power
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._is_closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None


def _run_statement(connection: sqlite3.Connection, statement: str, /, **values: Any) -> list[Row]:
    return connection.execute(statement, storable_values(values, allows_nul=True)).fetchall()


class Transactions:
    """Runs transactions in worker threads, and again while the database is away.

    Work must be safe to do twice: a connection that is lost during a commit does not tell whether that has happened.

    Args:
        database: Where.
        patience: Seconds for which a database that does not answer is asked again.
    """

    def __init__(self, database: Database, patience: float) -> None:
        self._database = database
        self._patience = patience
        self._threads = anyio.CapacityLimiter(8)  # own ones, so that busy tools do not keep results from being stored

    async def __call__(self, work: Callable[[Run], T], *, patience: float | None = None, only_reads: bool = False) -> T:
        """Do some work.

        Args:
            work: What to do.
            patience: Other than usual, for a database that is away; one that is busy is there.
            only_reads: It changes nothing.

        Raises:
            EngineUnavailableError: The database did not answer for as long as patience lasts.
            EngineClosedError: The engine was closed.
        """
        began = time.monotonic()
        pause = 0.05
        transact = partial(self._database.transaction, work, only_reads=only_reads)
        while True:
            try:
                return await anyio.to_thread.run_sync(transact, limiter=self._threads)
            except DatabaseDown as error:
                seconds = self._patience if patience is None or isinstance(error, DatabaseBusy) else patience
                if time.monotonic() + pause > began + seconds:
                    raise EngineUnavailableError(
                        f"the database {self._database.name} does not answer ({error}); what was stored before is kept: "
                        "check that it runs and can be reached from here, then try again",
                        engine=self._database.name,
                    ) from error
            await anyio.sleep(pause)
            pause = min(pause * 2, 2.0)
