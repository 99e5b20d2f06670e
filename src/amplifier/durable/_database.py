"""The database of an engine: DBOS's tables and one of our own, through one connection pool."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import orjson

from amplifier.errors import MissingExtraError

from ._errors import DurableError, EngineUnavailableError, closed_error
from ._suspects import Settings
from ._values import as_json

try:
    import sqlalchemy as sa
    from cryptography.fernet import Fernet, InvalidToken
    from dbos import DBOS, DBOSClient, Serializer
    from dbos import error as dbos_error
except ImportError as _error:
    raise MissingExtraError("amplifier.durable", extra="durable", missing=_error.name) from _error

T = TypeVar("T")

APPLICATION = "amplifier"
"""The application name under which DBOS stores the turns."""

_LIMITS = "54"
"""The class of Postgres errors for values that are too large or too complex."""

_CONVERSATIONS = """
    CREATE TABLE IF NOT EXISTS amplifier_conversations (
        session_id TEXT PRIMARY KEY,
        turns INTEGER NOT NULL DEFAULT 0,
        turn_id TEXT,
        outcome TEXT,
        messages TEXT
    )
"""


class DatabaseDown(Exception):
    """The database doesn't answer, so the outcome of the work is unknown.

    Stays inside the package.
    """


class JsonSerializer(Serializer):
    """Writes the values that DBOS stores as JSON, encrypted if the application has a key."""

    def __init__(self, key: str | bytes | None = None) -> None:
        """Read the key.

        Raises:
            ValueError: The key isn't a valid Fernet key.
        """
        try:
            self._fernet = None if key is None else Fernet(key)
        except (TypeError, ValueError) as error:
            raise ValueError(
                "encryption_key must be a key that cryptography.fernet.Fernet.generate_key() has "
                f"made, got one of {len(key or '')} characters ({error})"
            ) from None

    def name(self) -> str:
        """Return the name that DBOS stores next to a value. Other serializers refuse the value."""
        return "amplifier_json" if self._fernet is None else "amplifier_encrypted_json"

    def serialize(self, data: object) -> str:
        """Write a value. Objects without a JSON form become text."""
        text = as_json(data)
        return text if self._fernet is None else self._fernet.encrypt(text.encode()).decode()

    def deserialize(self, serialized_data: str) -> Any:
        """Read a value.

        Raises:
            DurableError: The value was encrypted with another key, or isn't encrypted.
        """
        if self._fernet is None:
            return orjson.loads(serialized_data)
        try:
            return orjson.loads(self._fernet.decrypt(serialized_data.encode()))
        except InvalidToken:
            raise DurableError(
                "a stored value was encrypted with another key, or not at all; open the engine "
                "with the key of the workers"
            ) from None


class Database:
    """A database of DBOS.

    Calling the database with a function runs the function in a worker thread, and retries while the
    database is unreachable. The function must be safe to repeat, because after a connection is lost
    during a commit, it is unknown whether the commit happened.

    Attributes:
        name: The URL for messages, without credentials.
        url: The URL with credentials.
        serializer: Writes and reads the stored values.
        is_sqlite: True if the database is a file, which allows only one worker process.
        engine: SQLAlchemy's pool of connections, which DBOS uses as well.
        client: The client of DBOS.
    """

    def __init__(self, url: sa.URL, settings: Settings) -> None:
        self.name: str = url.render_as_string(hide_password=True)
        self.url: str = url.render_as_string(hide_password=False)
        self.is_sqlite: bool = url.get_backend_name() == "sqlite"
        self.serializer: JsonSerializer = JsonSerializer(settings.encryption_key)
        self.engine: sa.Engine
        self.client: Any = None
        self._patience = settings.patience
        self._is_closed = False
        self._has_worker = False
        # A separate limiter, so that busy tools don't keep results from being stored.
        self._threads = anyio.CapacityLimiter(16)
        self._file = Path(url.database or "").absolute() if self.is_sqlite else None
        if self._file is not None:
            seconds = min(settings.patience, 30.0)
            url = url.set(database=str(self._file))
            self.url = url.render_as_string(hide_password=False)
            self.engine = sa.create_engine(url, hide_parameters=True, pool_size=20, max_overflow=20)
            sa.event.listen(self.engine, "connect", _sqlite_preparation(seconds))
        else:
            self.engine = sa.create_engine(
                url,
                hide_parameters=True,
                pool_size=20,
                max_overflow=20,
                pool_pre_ping=True,
                connect_args={"connect_timeout": 5},
            )
            sa.event.listen(self.engine, "connect", _postgres_preparation(settings.lease / 2))

    @property
    def file(self) -> Path:
        """The file of a SQLite database."""
        assert self._file is not None
        return self._file

    def open(self) -> None:
        """Connect, and create missing tables.

        Raises:
            EngineUnavailableError: The database can't be reached, or the file isn't a database.
        """
        try:
            if self._file is not None:
                # Create the file with its final mode, so that only its owner can ever read it.
                os.close(os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self.run(self._create)
        except (OSError, DatabaseDown) as error:
            raise self.unavailable(error) from error

    def _create(self) -> None:
        with self.engine.connect():
            pass
        for attempt in range(3):
            try:
                DBOS.migrate(self.url)
                break
            # Another process may be creating the tables at the same time.
            except (sa.exc.DBAPIError, dbos_error.DBOSInitializationError) as error:
                if attempt == 2:
                    raise EngineUnavailableError(
                        f"DBOS cannot create its tables in {self.name} ({_reason(error)}); check "
                        "that the user may do so, and that the tables are those of DBOS",
                        engine=self.name,
                    ) from error
        with self.engine.begin() as connection:
            connection.execute(sa.text(_CONVERSATIONS))
        self.client = DBOSClient(
            system_database_engine=self.engine,
            application_name=APPLICATION,
            serializer=self.serializer,
            retry_connection_errors=False,
        )

    def close(self) -> None:
        """Close all connections and refuse further work."""
        self._is_closed = True
        if self.client is not None:
            self.client.destroy()
        if not self._has_worker:
            self.engine.dispose()

    def begin_use(self) -> None:
        """Keep the connections open for a worker, even if the engine is closed first."""
        self._has_worker = True

    def end_use(self) -> None:
        """Close the connections if the engine was closed in the meantime."""
        self._has_worker = False
        if self._is_closed:
            self.engine.dispose()

    async def __call__(self, work: Callable[[], T]) -> T:
        """Run a function in a thread, and retry while the database is unreachable.

        Raises:
            EngineUnavailableError: The database didn't answer in time.
            EngineClosedError: The engine was closed.
        """
        began = time.monotonic()
        pause = 0.05
        while True:
            try:
                return await anyio.to_thread.run_sync(self.run, work, limiter=self._threads)
            except DatabaseDown as error:
                if time.monotonic() + pause > began + self._patience:
                    raise self.unavailable(error) from error
            await anyio.sleep(pause)
            pause = min(pause * 2, 2.0)

    def insist(self, work: Callable[[], T]) -> T:
        """Run a function in this thread, and retry while the database is unreachable.

        Raises:
            EngineUnavailableError: The database didn't answer in time.
        """
        began = time.monotonic()
        pause = 0.05
        while True:
            try:
                return self.run(work)
            except DatabaseDown as error:
                if time.monotonic() + pause > began + self._patience:
                    raise self.unavailable(error) from error
            time.sleep(pause)
            pause = min(pause * 2, 2.0)

    def run(self, work: Callable[[], T]) -> T:
        """Run a function in this thread, once.

        Raises:
            DatabaseDown: There is no connection.
            EngineClosedError: The engine was closed.
            DurableError: The database refuses a value, for example because it is too large.
        """
        if self._is_closed:
            raise closed_error(self.name)
        try:
            return work()
        except sa.exc.DataError as error:
            raise self._unstorable(error.orig) from error
        except (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError) as error:
            cause = getattr(error, "orig", None)
            if (getattr(cause, "sqlstate", None) or "").startswith(_LIMITS):
                raise self._unstorable(cause) from error
            raise DatabaseDown(str(cause or error).strip()) from error
        except sa.exc.DatabaseError as error:
            # Subclasses of DatabaseError are errors of a statement, unless the connection was lost.
            if type(error) is not sa.exc.DatabaseError and not error.connection_invalidated:
                raise
            raise DatabaseDown(str(error.orig).strip()) from error

    def _unstorable(self, error: object) -> DurableError:
        return DurableError(
            f"the database {self.name} does not store a value: {str(error).strip()}; expected a "
            "smaller one"
        )

    def unavailable(self, error: Exception) -> EngineUnavailableError:
        """Return the error about a database that didn't answer in time."""
        return EngineUnavailableError(
            f"the database {self.name} does not answer ({error}); what was stored before is kept: "
            "check that it runs and can be reached from here, then try again",
            engine=self.name,
        )

    def check_patience(self, error: DatabaseDown, since: float) -> None:
        """Check that the database hasn't been unreachable for too long.

        Raises:
            EngineUnavailableError: It has been unreachable for too long.
        """
        if time.monotonic() - since >= self._patience:
            raise self.unavailable(error) from error


def _reason(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).strip()


def _sqlite_preparation(seconds: float) -> Callable[[Any, object], None]:
    def prepare(connection: Any, _: object) -> None:
        # Take the lock before the first read, as DBOS does on its own connections.
        connection.isolation_level = "IMMEDIATE"
        connection.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA journal_mode = WAL")

    return prepare


def _postgres_preparation(seconds: float) -> Callable[[Any, object], None]:
    """Roll back transactions of a suspended process, since other processes wait for its locks.

    The limit is less than a lease. Otherwise a waiting worker would count as dead.
    """

    def prepare(connection: Any, _: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET idle_in_transaction_session_timeout = '{round(seconds * 1000)}ms'")
        connection.commit()

    return prepare


def parsed_url(text: str) -> sa.URL:
    """Parse the name of a database: a file, ``sqlite:///file`` or ``postgresql://…``.

    Raises:
        ValueError: The text doesn't name a database.
    """
    if "://" not in text and text:
        return sa.URL.create("sqlite", database=text)
    try:
        parsed = sa.make_url(text)
    except sa.exc.ArgumentError:
        parsed = sa.URL.create("unknown")
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        return parsed
    if parsed.get_backend_name() in ("postgresql", "postgres") and parsed.database:
        return parsed.set(drivername="postgresql+psycopg")
    raise ValueError(
        "an engine must be named by a file, sqlite:///path or "
        "postgresql://user:password@host/database, got a URL with driver "
        f"{parsed.drivername!r} and database {parsed.database!r}"
    )


@asynccontextmanager
async def opened_database(text: str, settings: Settings) -> AsyncIterator[Database]:
    """Open a database until the block exits.

    Raises:
        EngineUnavailableError: The database can't be reached.
        ValueError: The text doesn't name a database.
    """
    logging.getLogger("dbos").setLevel(logging.ERROR)
    database = Database(parsed_url(text), settings)
    try:
        await anyio.to_thread.run_sync(database.open)
        yield database
    finally:
        # Closing a connection doesn't wait for a server.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(database.close)
