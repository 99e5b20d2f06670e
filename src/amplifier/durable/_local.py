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
from ._tables._database import Database, DatabaseConflict, Run, SqliteDatabase, Transactions
from ._tables._schema import create_tables
from ._tables._turn_store import TurnStore
from ._turn_rows import ClaimedTurn
from ._worker import Worker


@final
class LocalEngine(StoredTurns):
    """See `open_local_engine`."""

    def __init__(self, store: TurnStore, poll: float, lease: float) -> None:
        super().__init__(store, poll)
        self._store = store
        self._lease = lease

    async def work(
        self,
        make_session: SessionFactory,
        *,
        concurrency: int = 10,
        task_status: TaskStatus[None] = TASK_STATUS_IGNORED,
    ) -> None:
        """See `DurableEngine.work`."""
        check_concurrency(concurrency)

        async def take_over(name: str) -> None:
            await self._store.requeue_turns_of(name)

        worker = Worker(self._store, make_session, self._poll, self._lease, take_over)
        slots = anyio.Semaphore(concurrency)

        async def run(turn: ClaimedTurn) -> None:
            try:
                await worker.run_turn(turn)
            finally:
                slots.release()

        try:
            async with raises_one_error(), anyio.create_task_group() as group:
                await worker.beat_once()
                group.start_soon(worker.beat)
                group.start_soon(worker.listen)
                task_status.started()
                while True:
                    await slots.acquire()
                    turn = await self._store.claim_next(worker.name)
                    if turn is not None:
                        group.start_soon(run, turn)
                    else:
                        slots.release()
                        await anyio.sleep(self._poll)
        finally:
            await worker.leave()


def check_concurrency(concurrency: int) -> None:
    """Refuse a number of turns that no worker can run.

    Raises:
        ValueError: It is less than 1.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency must be at least 1, got {concurrency}: it is the number of turns run at a time")


@asynccontextmanager
async def raises_one_error() -> AsyncIterator[None]:
    """Let the one error that ends a worker leave as itself, and not as a group of the tasks that met it."""
    try:
        yield
    except BaseExceptionGroup as group:
        errors, rest = group.split(Exception)
        if rest is not None or errors is None:
            raise
        error: BaseException = errors
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
    path: str | Path, *, poll: float = 0.2, lease: float = 5.0, patience: float = 30.0
) -> AsyncIterator[DurableEngine]:
    """Open an engine whose turns are in a file: no server, no extra, one machine.

    Args:
        path: The file, made if it is not there. Every process that uses it has to be on this machine.
        poll: Seconds between two looks at the file: how long a stop, an answer or an event may take to arrive.
        lease: Seconds without a sign of life after which a worker counts as dead.
        patience: Seconds for which a file that cannot be used (a full disk) is tried again.

    Raises:
        EngineUnavailableError: The file cannot be used.
        NewerFormatError: A newer version wrote it.
    """

    def enqueue(run: Run, turn_id: str) -> None:
        """Workers look for turns that are queued; there is no other queue."""

    async with open_store(SqliteDatabase(path), patience) as transactions:
        yield LocalEngine(TurnStore(transactions, enqueue), poll, lease)
