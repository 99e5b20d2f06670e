"""Transactions on a database, the same for SQLite and Postgres: statements with ``:name`` parameters, each unit of work atomic."""

from __future__ import annotations

import errno
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import anyio
import anyio.to_thread

from amplifier.store import Database as StoredDatabase
from amplifier.store import StoreDamagedError

from .._errors import DurableError, EngineUnavailableError, closed_error
from .._storable import storable_text

T = TypeVar("T")

Row = tuple[Any, ...]

FOR_UPDATE = " FOR UPDATE"
"""Locks the rows that a statement reads until the end of the transaction; SQLite has one writer at a time, and no such words."""


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


class Database(ABC):
    """A database: called, it does transactions in worker threads, and again while it is away.

    Work must be safe to do twice: a connection that is lost during a commit leaves unknown whether that has happened.

    Args:
        name: For messages, without credentials.
        patience: Seconds for which a database that does not answer is asked again.
    """

    def __init__(self, name: str, patience: float) -> None:
        self.name = name
        self.patience = patience
        self._threads = anyio.CapacityLimiter(8)  # own ones, so that busy tools do not keep results from being stored

    @abstractmethod
    def transaction(self, work: Callable[[Run], T], *, only_reads: bool = False) -> T:
        """Do some work atomically, from a thread and without a second try; what it raises rolls back.

        Args:
            work: Gets a function that runs statements.
            only_reads: It changes nothing, so it need not wait for others that do.

        Raises:
            DatabaseDown: There is no connection.
            EngineClosedError: It was closed.
            DurableError: It does not take a value, which is too large for example.
        """

    @abstractmethod
    def close(self) -> None:
        """Close all connections, and refuse transactions from now on; may be called again."""

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
        transact = partial(self.transaction, work, only_reads=only_reads)
        while True:
            try:
                return await anyio.to_thread.run_sync(transact, limiter=self._threads)
            except DatabaseDown as error:
                seconds = self.patience if patience is None or isinstance(error, DatabaseBusy) else patience
                if time.monotonic() + pause > began + seconds:
                    raise self.unavailable(error) from error
            await anyio.sleep(pause)
            pause = min(pause * 2, 2.0)

    def unavailable(self, error: DatabaseDown) -> EngineUnavailableError:
        """The error about a database that did not answer for as long as patience lasts."""
        return EngineUnavailableError(
            f"the database {self.name} does not answer ({error}); what was stored before is kept: "
            "check that it runs and can be reached from here, then try again",
            engine=self.name,
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


class SqliteDatabase(Database):
    """A file of SQLite, see `amplifier.store`; opened with the first transaction."""

    def __init__(self, path: str | Path, patience: float) -> None:
        self._path = Path(path).absolute()
        super().__init__(str(self._path), patience)
        self._database: StoredDatabase | None = None
        self._is_closed = False
        self._opening = threading.Lock()

    def transaction(self, work: Callable[[Run], T], *, only_reads: bool = False) -> T:
        try:
            database = self._opened()
            return database.transaction(lambda db: work(partial(_run_statement, db)), only_reads=only_reads)
        except sqlite3.DataError as error:
            raise unstorable(self.name, error) from error
        except (OSError, StoreDamagedError) as error:
            is_busy = isinstance(error, OSError) and error.errno == errno.EBUSY
            raise (DatabaseBusy if is_busy else DatabaseDown)(str(error)) from error

    def _opened(self) -> StoredDatabase:
        with self._opening:
            if self._is_closed:
                raise closed_error(self.name)
            if self._database is None:
                self._database = StoredDatabase.open(self._path, busy_seconds=2.0)
            return self._database

    def close(self) -> None:
        with self._opening:
            self._is_closed = True
            if self._database is not None:
                self._database.close()
                self._database = None


def _run_statement(connection: sqlite3.Connection, statement: str, /, **values: Any) -> list[Row]:
    return connection.execute(statement.replace(FOR_UPDATE, ""), storable_values(values, allows_nul=True)).fetchall()
