"""An engine without any server: turns in a file of SQLite, workers in any number of processes of one machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import final

import anyio
import anyio.to_thread
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

from ._engine import DurableEngine, SessionFactory
from ._stored_turns import StoredTurns
from ._suspects import WorkerOptions
from ._tables._database import Database, DatabaseConflict, Run, SqliteDatabase, Transactions
from ._tables._schema import create_tables
from ._tables._turn_store import TurnStore
from ._turn_rows import MOST_DEATHS
from ._worker import Worker


@final
class LocalEngine(StoredTurns):
    """See `open_local_engine`."""

    def __init__(self, store: TurnStore, options: WorkerOptions) -> None:
        super().__init__(store, options.poll)
        self._store = store
        self._options = options

    async def work(
        self,
        make_session: SessionFactory,
        *,
        concurrency: int = 10,
        task_status: TaskStatus[None] = TASK_STATUS_IGNORED,
    ) -> None:
        """See `DurableEngine.work`."""
        check_work(make_session, concurrency)
        worker = Worker(self._store, make_session, self._options)
        slots = anyio.Semaphore(concurrency)
        in_hand: set[str] = set()

        async def run(turn_id: str) -> None:
            try:
                await worker.take(turn_id)
            finally:
                in_hand.remove(turn_id)
                slots.release()

        try:
            await worker.register()
            async with raises_one_error(), anyio.create_task_group() as group:
                group.start_soon(worker.beat)
                group.start_soon(worker.listen)
                task_status.started()
                while True:
                    await slots.acquire()
                    turn_id = await self._store.next_queued(in_hand)
                    if turn_id is not None:
                        in_hand.add(turn_id)
                        group.start_soon(run, turn_id)
                    else:
                        slots.release()
                        await anyio.sleep(self._poll)
        finally:
            await worker.leave()


def check_work(make_session: object, concurrency: int) -> None:
    """Refuse what no worker can work with.

    Raises:
        TypeError: The first is a plan or a session, which would belong to one process, and no function that makes one.
        ValueError: The number of turns is less than 1.
    """
    if not callable(make_session):
        example = "lambda session_id: AmplifierSession(plan, session_id=session_id)"
        raise TypeError(
            "expected a function that makes the session of a turn, because every worker process makes its own, got "
            f"{type(make_session).__name__}; write {example}"
        )
    if concurrency < 1:
        raise ValueError(f"concurrency must be at least 1, got {concurrency}: it is the number of turns run at a time")


@asynccontextmanager
async def raises_one_error() -> AsyncIterator[None]:
    """Let the one error that ends a worker leave as itself, and not as a group of the tasks that met it."""
    try:
        yield
    except BaseExceptionGroup as group:
        errors, rest = group.split((Exception, KeyboardInterrupt))
        if rest is not None or errors is None:
            raise
        error: BaseException = errors.subgroup(KeyboardInterrupt) or errors
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from error.__cause__


@asynccontextmanager
async def open_store(database: Database, patience: float) -> AsyncIterator[Transactions]:
    """Connect to a database and create the tables; on leaving, close it.

    Raises:
        EngineUnavailableError: It cannot be reached.
        NewerFormatError: A newer version wrote the tables.
    """
    transactions = Transactions(database, patience)
    try:
        try:
            await transactions(create_tables, patience=0)
        except DatabaseConflict:  # another process was creating them at the same moment
            await transactions(create_tables, patience=0)
        yield transactions
    finally:
        with anyio.CancelScope(shield=True):  # closing a connection does not wait for a server
            await anyio.to_thread.run_sync(database.close)


@asynccontextmanager
async def open_local_engine(
    path: str | Path,
    *,
    poll: float = 0.2,
    lease: float = 5.0,
    patience: float = 30.0,
    attempts: int = MOST_DEATHS,
    stuck: float = 300.0,
) -> AsyncIterator[DurableEngine]:
    """Open an engine whose turns are in a file: no server, no extra, one machine.

    Args:
        path: The file, made if it is not there. Every process that uses it has to be on this machine.
        poll: Seconds between two looks at the file: how long a stop, an answer or an event may take to arrive.
        lease: Seconds without a sign of life after which a worker counts as dead.
        patience: Seconds for which a file that cannot be used (a full disk) is tried again.
        attempts: Workers that may die while they run a turn; then the turn fails.
        stuck: Seconds for which a worker keeps its turns while code of theirs blocks its event loop.

    Raises:
        EngineUnavailableError: The file cannot be used.
        NewerFormatError: A newer version wrote it.
        ValueError: One of the numbers makes no sense.
    """
    options = WorkerOptions(poll=poll, lease=lease, attempts=attempts, stuck=stuck)

    def enqueue(run: Run, turn_id: str) -> None:
        """Workers look for turns that are queued; there is no other queue."""

    async with open_store(SqliteDatabase(path), patience) as transactions:
        yield LocalEngine(TurnStore(transactions, enqueue), options)
