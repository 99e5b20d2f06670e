"""Turns on DBOS: workers on any number of machines that share a Postgres database, or on one machine a file of SQLite; needs the extra ``dbos``.

DBOS has the queue, gives each turn to one worker, and gives it to another one when the first has died. A turn is one DBOS workflow. What
happens inside it is in tables of our own beside those of DBOS, with keys: DBOS numbers the steps of a workflow in the order in which
they are made, and tools that run at the same time have no such order. For its pages and tools every step is one of the workflow's as well.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeAlias, TypeVar, Unpack

import anyio
import anyio.to_thread
from anyio.from_thread import BlockingPortal

from amplifier.errors import MissingExtraError, SessionStateError

from ._database import (
    FOR_UPDATE,
    Database,
    DatabaseBusy,
    DatabaseDown,
    Row,
    Run,
    is_busy,
    opened,
    storable_values,
    unstorable,
)
from ._engine import DurableEngine, Duty
from ._errors import EngineUnavailableError, closed_error
from ._suspects import EngineOptions, Settings
from ._turn_store import TurnStore
from ._values import StepName
from ._worker import Worker

try:
    import sqlalchemy as sa
    from dbos import DBOS, DBOSClient, DBOSConfig
except ImportError as _error:
    raise MissingExtraError("amplifier.durable.dbos", extra="dbos", missing=_error.name) from _error

__all__ = ["open_dbos_engine"]

_T = TypeVar("_T")

_APPLICATION = "amplifier"
_QUEUE = "amplifier-turns"
_WORKFLOW = "amplifier-turn"
_VERSION = "amplifier-durable-1"
"""What DBOS takes for the version of the code. Fixed: whether a turn may go on with other code is decided by its plan."""

_ENDING_SECONDS = 5.0
_ONLY_READS = "amplifier_only_reads"
_LIMITS = "54"
"""The class of Postgres' errors about values that are too large or too complex."""

_Dispatch: TypeAlias = Callable[[str], None]

_dispatch: _Dispatch | None = None
"""Runs a turn in the worker of this process; DBOS has one instance per process."""


_workflows: dict[str, str] = {}
"""The latest workflow of each turn that this process has run."""


class _HandedOver(BaseException):
    """Leaves the workflow of a turn that goes on elsewhere. No Exception: DBOS would record that as the workflow's end."""


@DBOS.workflow(name=_WORKFLOW, max_recovery_attempts=None)
def _run_turn(turn_id: str) -> None:
    if _dispatch is None:
        raise _HandedOver
    _workflows[turn_id] = str(DBOS.workflow_id)
    _dispatch(turn_id)


class _SqlRun:
    """Runs statements on one connection, which DBOS can use in the same transaction."""

    def __init__(self, connection: sa.Connection, *, is_sqlite: bool) -> None:
        self.connection = connection
        self._is_sqlite = is_sqlite

    def __call__(self, statement: str, /, **values: Any) -> list[Row]:
        safe = storable_values(values, allows_nul=self._is_sqlite)
        if self._is_sqlite:
            statement = statement.replace(FOR_UPDATE, "")
        result = self.connection.execute(sa.text(statement), safe)
        return [tuple(row) for row in result] if result.returns_rows else []


class _SqlDatabase(Database):
    """A database through SQLAlchemy, which DBOS brings."""

    def __init__(self, url: sa.URL, settings: Settings) -> None:
        super().__init__(url.render_as_string(hide_password=True), settings.patience)
        self._is_closed = False
        self._is_sqlite = url.get_backend_name() == "sqlite"
        if self._is_sqlite:
            self._engine = sa.create_engine(url, hide_parameters=True, connect_args={"timeout": 2})
            sa.event.listen(self._engine, "connect", _prepare_sqlite)
            sa.event.listen(self._engine, "begin", _begin_sqlite)
        else:
            self._engine = sa.create_engine(
                url,
                hide_parameters=True,
                pool_size=8,
                max_overflow=2,  # no pings: work is done again after a connection that was lost
                connect_args={"connect_timeout": 5},
            )
            sa.event.listen(self._engine, "connect", partial(_prepare_postgres, _transaction_seconds(settings)))

    def transaction(self, work: Callable[[Run], _T], *, only_reads: bool = False) -> _T:
        if self._is_closed:
            raise closed_error(self.name)
        try:
            with (
                self._engine.connect().execution_options(**{_ONLY_READS: only_reads}) as connection,
                connection.begin(),
            ):
                return work(_SqlRun(connection, is_sqlite=self._is_sqlite))
        except sa.exc.IntegrityError as error:  # another process creates the tables at the same moment
            raise DatabaseBusy(str(error)) from error
        except sa.exc.DataError as error:
            raise unstorable(self.name, error.orig) from error
        except (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError) as error:
            cause = getattr(error, "orig", None)
            if (getattr(cause, "sqlstate", None) or "").startswith(_LIMITS):
                raise unstorable(self.name, cause) from error
            raise (DatabaseBusy if is_busy(cause) else DatabaseDown)(str(cause or error).strip()) from error
        except sa.exc.DatabaseError as error:
            # The others are errors of a statement, unless the server has ended the connection (`_transaction_seconds`).
            if type(error) is not sa.exc.DatabaseError and not error.connection_invalidated:
                raise
            raise DatabaseDown(str(error.orig).strip()) from error  # or a file that is damaged or something else

    def close(self) -> None:
        self._is_closed = True
        self._engine.dispose()


def _begin_sqlite(connection: sa.Connection) -> None:
    only_reads = connection.get_execution_options().get(_ONLY_READS)
    connection.exec_driver_sql("BEGIN" if only_reads else "BEGIN IMMEDIATE")


def _prepare_sqlite(connection: Any, record: Any) -> None:
    connection.isolation_level = None  # `_begin_sqlite` begins transactions
    connection.execute("PRAGMA journal_mode = WAL")


def _prepare_postgres(seconds: float, connection: Any, record: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET idle_in_transaction_session_timeout = '{round(seconds * 1000)}ms'")
    connection.commit()


def _transaction_seconds(settings: Settings) -> float:
    """After which the transaction of a process that was suspended in it, or cannot be reached, is undone: the others wait for its locks.

    Less than a lease, or a worker that waits would be taken for dead.
    """
    return settings.lease / 2


class _Workers:
    """The workers of one engine."""

    def __init__(self, store: TurnStore, settings: Settings, url: str, client: DBOSClient) -> None:
        self._store = store
        self._settings = settings
        self._url = url
        self._client = client
        self._dead = (
            f"SELECT DISTINCT executor_id FROM {_table(url, 'workflow_status')} WHERE status = 'PENDING' AND name = :name "
            "AND executor_id NOT IN (SELECT worker FROM amplifier_workers)"
        )

    async def work(self, duty: Duty) -> None:
        """Run turns. DBOS keeps ``concurrency`` with the queue: the worker that was started last sets it for all.

        Raises:
            SessionStateError: This process has a worker, or uses DBOS itself: DBOS has one instance per process.
        """
        worker = Worker(self._store, self._settings, duty, self._recover)
        failures: list[Exception] = []

        async def run(turn_id: str) -> bool:
            try:
                return await worker.take(turn_id)
            except Exception as error:
                # DBOS takes the workflow for running as long as this worker lives, so it must not.
                failures.append(error)
                group.cancel_scope.cancel()
                raise

        def dispatch(turn_id: str) -> None:
            try:
                is_over = portal.call(run, turn_id)
            except BaseException as error:
                raise _HandedOver from error
            if not is_over:
                raise _HandedOver

        async def begin(turn_id: str) -> None:
            await anyio.to_thread.run_sync(DBOS.start_workflow, _run_turn, turn_id)

        try:
            await worker.register()  # first: DBOS would connect again for an engine that was closed
            async with anyio.create_task_group() as group, BlockingPortal() as portal:
                try:
                    async with self._launched(dispatch, worker, duty.concurrency):
                        group.start_soon(worker.beat)
                        group.start_soon(worker.listen)
                        group.start_soon(worker.notify)
                        group.start_soon(worker.adopt, begin)
                        duty.on_start()
                        await duty.leaving.wait()
                        await worker.drain()
                        group.cancel_scope.cancel()
                finally:
                    await portal.stop(cancel_remaining=True)
        finally:
            await worker.leave()
        for error in failures:
            raise error

    @asynccontextmanager
    async def _launched(self, dispatch: _Dispatch, worker: Worker, concurrency: int) -> AsyncIterator[None]:
        """DBOS in this process, with the worker's name as its executor id; it gives turns to the function."""
        global _dispatch  # noqa: PLW0603 — DBOS calls a function of this module, and has one instance per process
        config: DBOSConfig = {
            "name": _APPLICATION,
            "system_database_url": self._url,
            "executor_id": worker.name,
            "application_version": _VERSION,
            "log_level": "WARNING",
            # Messages and events of DBOS are not used. Its listener would keep a connection that may be left open when it ends.
            "use_listen_notify": False,
            "notification_listener_polling_interval_sec": 0.5,  # its thread sleeps that long before it ends
            "sys_db_idle_transaction_timeout_sec": _transaction_seconds(self._settings),
        }

        def end() -> None:
            """Let DBOS note that turns have ended, then end it; turns that were running are being cancelled now."""
            patience = time.monotonic() + _ENDING_SECONDS
            while DBOS(config=config)._active_workflows_set.activeList() and time.monotonic() < patience:
                time.sleep(0.01)
            DBOS.destroy()

        def launch() -> None:
            if DBOS(config=config)._launched:
                raise _in_use("for the application itself")
            self._client.register_queue(
                _QUEUE, worker_concurrency=concurrency, polling_interval_sec=self._settings.poll
            )
            DBOS.launch()

        if _dispatch is not None:
            raise _in_use("with a worker of amplifier")
        _dispatch = dispatch  # before it is launched, because a turn that no one takes would stay with this process
        try:
            await anyio.to_thread.run_sync(launch)
            try:
                yield
            finally:
                with anyio.CancelScope(shield=True):  # bounded there, and by DBOS: it waits 10 seconds for each thread
                    await anyio.to_thread.run_sync(end)
        finally:
            _dispatch = None

    def _recover(self) -> None:
        """Let DBOS give workflows to others that it has given to workers that are not there any more.

        Turns that such a worker had claimed have new workflows; one whose turn does not wait ends at once.
        """
        if dead := [str(name) for (name,) in self._store.read(self._dead, name=_WORKFLOW)]:
            DBOS._recover_pending_workflows(dead)  # what DBOS's own recovery service calls


def _in_use(how: str) -> SessionStateError:
    return SessionStateError(
        f"DBOS runs in this process already, {how}, and it has one instance per process; run this worker in a process of its own"
    )


@asynccontextmanager
async def open_dbos_engine(
    url: str = "sqlite:///amplifier-turns.sqlite", **options: Unpack[EngineOptions]
) -> AsyncIterator[DurableEngine]:
    """Open an engine on DBOS.

    Args:
        url: A Postgres database, ``postgresql://user:password@host/database``, or a file, ``sqlite:///path``.
        options: See `EngineOptions`.

    Raises:
        EngineUnavailableError: The database cannot be reached.
        DurableError: A newer version wrote its tables.
        ValueError: The URL is wrong, or one of the numbers makes no sense.
    """
    settings = Settings(**options)
    parsed = _parsed(url)
    logging.getLogger("dbos").setLevel(logging.WARNING)

    def enqueue(run: Run, turn_id: str, priority: int, due_at: float | None) -> None:
        assert isinstance(run, _SqlRun)
        queued: Any = {"queue_name": _QUEUE, "workflow_name": _WORKFLOW, "app_version": _VERSION, "priority": priority}
        if due_at is not None and due_at > time.time():
            queued["delay_seconds"] = due_at - time.time()
        client.enqueue_in_transaction(run.connection, queued, turn_id)

    text = parsed.render_as_string(hide_password=False)
    steps = _table(text, "operation_outputs")
    noted = (
        f"INSERT INTO {steps} (workflow_uuid, function_id, function_name, output, serialization, started_at_epoch_ms, "
        "completed_at_epoch_ms, application_name, retention_timestamp) SELECT CAST(:workflow AS TEXT), "
        "COALESCE(MAX(function_id), 0) + 1, CAST(:name AS TEXT), CAST(:output AS TEXT), 'portable_json', CAST(:since AS BIGINT), "
        f"CAST(:now AS BIGINT), CAST(:app AS TEXT), CAST(:now AS BIGINT) FROM {steps} WHERE workflow_uuid = :workflow RETURNING 1"
    )

    def note_step(run: Run, turn_id: str, step: StepName, result: str) -> None:
        """Show a step as one of the turn's workflow; DBOS numbers the steps that it makes itself, and the workflow makes none."""
        if turn_id in _workflows:
            since, now = round(step.since * 1000), round(time.time() * 1000)
            name = f"{step.kind} {step.name} {step.key}".replace("  ", " ")
            workflow = _workflows[turn_id]
            run(noted, workflow=workflow, name=name, output=result, since=since, now=now, app=_APPLICATION)

    database = _SqlDatabase(parsed, settings)
    async with opened(database):
        client = await anyio.to_thread.run_sync(_open_client, text, database.name, _transaction_seconds(settings))
        try:
            store = TurnStore(database, enqueue, note_step)
            yield DurableEngine(store, settings, _Workers(store, settings, text, client).work)
        finally:
            with anyio.CancelScope(shield=True):  # closes connections, which waits for no one
                await anyio.to_thread.run_sync(client.destroy)


def _table(url: str, name: str) -> str:
    """A table of DBOS; SQLite has no schemas."""
    return name if url.startswith("sqlite") else f"dbos.{name}"


def _parsed(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        parsed = sa.URL.create("unknown")
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        return parsed
    if parsed.get_backend_name() in ("postgresql", "postgres") and parsed.database:
        return parsed.set(drivername="postgresql+psycopg")
    raise ValueError(
        f"the URL of a DBOS engine must be postgresql://user:password@host/database or sqlite:///path, got a URL with driver "
        f"{parsed.drivername!r} and database {parsed.database!r}"
    )


def _open_client(url: str, name: str, transaction_seconds: float) -> DBOSClient:
    """A client of DBOS, with the tables of DBOS in place; two processes may be doing this at the same time.

    Raises:
        EngineUnavailableError: The tables cannot be created.
    """
    for attempt in range(3):
        try:
            DBOS.migrate(url)
            break
        except sa.exc.DBAPIError as error:
            if attempt == 2:
                raise EngineUnavailableError(
                    f"DBOS cannot create its tables in {name} ({str(error.orig).strip()}); check that the user may do so, and that the "
                    "tables are those of DBOS",
                    engine=name,
                ) from error
    return DBOSClient(
        system_database_url=url,
        application_name=_APPLICATION,
        retry_connection_errors=False,
        sys_db_idle_transaction_timeout_sec=transaction_seconds,
    )
