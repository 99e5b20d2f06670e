"""A database of turns, the same for SQLite and Postgres: transactions of statements with ``:name`` parameters, each atomic, and the tables."""

from __future__ import annotations

import errno
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import anyio
import anyio.to_thread

from amplifier.store import Database as StoredDatabase
from amplifier.store import StoreDamagedError

from ._errors import DurableError, EngineUnavailableError, closed_error
from ._values import storable_text

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


# ── statements about rows with certain values ─────────────────────────────────────────────────────


def insert(run: Run, table: str, /, **values: Any) -> bool:
    """Add a row, unless there is one with its key; returns whether it was added."""
    places = ", ".join(f":{name}" for name in values)
    added = f"INSERT INTO {table} ({', '.join(values)}) VALUES ({places}) ON CONFLICT DO NOTHING RETURNING 1"
    return bool(run(added, **values))


def select(run: Run, columns: str, table: str, /, **where: Any) -> list[Row]:
    """Columns of the rows with these values."""
    return run(f"SELECT {columns} FROM {table} WHERE {_all(where)}", **where)


def delete(run: Run, table: str, /, **where: Any) -> bool:
    """Remove the rows with these values; returns whether there were any."""
    return bool(run(f"DELETE FROM {table} WHERE {_all(where)} RETURNING 1", **where))


def _all(where: Iterable[str]) -> str:
    return " AND ".join(f"{name} = :{name}" for name in where)


# ── the tables ────────────────────────────────────────────────────────────────────────────────────


FORMAT = 1
"""Of the tables and what is in them; a version that changes it has to read the ones before."""

_TABLES = (
    """
    CREATE TABLE IF NOT EXISTS amplifier_turns (
        turn_id TEXT PRIMARY KEY,
        session_id TEXT NOT NULL,
        number INTEGER NOT NULL,
        prompt TEXT NOT NULL,
        state TEXT NOT NULL,
        is_open INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        deaths INTEGER NOT NULL,
        queued_at DOUBLE PRECISION NOT NULL,
        started_at DOUBLE PRECISION NOT NULL DEFAULT 0,
        ended_at DOUBLE PRECISION,
        priority INTEGER NOT NULL DEFAULT 3,
        due_at DOUBLE PRECISION,
        deadline_at DOUBLE PRECISION,
        worker TEXT,
        plan TEXT,
        stop TEXT,
        answer TEXT,
        error_type TEXT,
        error TEXT
    )
    """,
    # A session has one open turn; two callers that start one at the same moment cannot both succeed.
    "CREATE UNIQUE INDEX IF NOT EXISTS amplifier_open_turn ON amplifier_turns (session_id) WHERE is_open = 1",
    "CREATE UNIQUE INDEX IF NOT EXISTS amplifier_turn_number ON amplifier_turns (session_id, number)",
    "CREATE INDEX IF NOT EXISTS amplifier_turn_listed ON amplifier_turns (state, started_at)",
    "CREATE INDEX IF NOT EXISTS amplifier_turn_started ON amplifier_turns (started_at)",
    """
    CREATE TABLE IF NOT EXISTS amplifier_steps (
        turn_id TEXT NOT NULL,
        step TEXT NOT NULL,
        what TEXT NOT NULL,
        result TEXT,
        PRIMARY KEY (turn_id, step, what)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS amplifier_questions (
        turn_id TEXT NOT NULL,
        question_id TEXT NOT NULL,
        details TEXT NOT NULL,
        answer TEXT,
        PRIMARY KEY (turn_id, question_id)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS amplifier_events (
        turn_id TEXT NOT NULL,
        last_position INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        events TEXT NOT NULL,
        PRIMARY KEY (turn_id, last_position)
    )
    """,
    "CREATE TABLE IF NOT EXISTS amplifier_conversations (session_id TEXT PRIMARY KEY, messages TEXT NOT NULL)",
    """
    CREATE TABLE IF NOT EXISTS amplifier_schedules (
        name TEXT PRIMARY KEY,
        session_id TEXT NOT NULL,
        prompt TEXT NOT NULL,
        every BIGINT NOT NULL,
        next_at DOUBLE PRECISION NOT NULL
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS amplifier_notices (
        turn_id TEXT PRIMARY KEY,
        url TEXT NOT NULL,
        tries INTEGER NOT NULL,
        next_at DOUBLE PRECISION NOT NULL
    )
    """,
    "CREATE TABLE IF NOT EXISTS amplifier_workers (worker TEXT PRIMARY KEY, beats INTEGER NOT NULL)",
)


def create_tables(run: Run) -> None:
    """Create what is missing.

    Raises:
        DurableError: A newer version wrote the tables.
    """
    run("CREATE TABLE IF NOT EXISTS amplifier_format (id INTEGER PRIMARY KEY, format INTEGER NOT NULL)")
    run(
        "INSERT INTO amplifier_format (id, format) VALUES (1, :format) ON CONFLICT (id) DO NOTHING RETURNING id",
        format=FORMAT,
    )
    [(found,)] = run("SELECT format FROM amplifier_format WHERE id = 1 FOR UPDATE")
    if found > FORMAT:
        raise DurableError(
            f"the tables have format {found}; this version of amplifier knows formats up to {FORMAT}. Nothing was changed: "
            "upgrade amplifier here, or use another database"
        )
    for table in _TABLES:
        run(table)


@asynccontextmanager
async def opened(database: Database) -> AsyncIterator[None]:
    """Connect to a database and create the tables; on leaving, close it.

    Raises:
        EngineUnavailableError: It cannot be reached.
        DurableError: A newer version wrote the tables.
    """
    try:
        await database(create_tables, patience=0)
        yield
    finally:
        with anyio.CancelScope(shield=True):  # closing a connection does not wait for a server
            await anyio.to_thread.run_sync(database.close)
