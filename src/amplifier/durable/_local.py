"""An engine without any server: turns in a file of SQLite, workers in any number of processes of one machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, final

import anyio

from ._engine import DurableEngine, SessionFactory
from ._suspects import MOST_DEATHS, CallLimits, WorkerOptions
from ._tables._database import SqliteDatabase
from ._tables._schema import open_store
from ._tables._turn_store import TurnStore
from ._worker import Worker


@final
class LocalEngine(DurableEngine):
    """See `open_local_engine`."""

    def __init__(self, store: TurnStore, options: WorkerOptions) -> None:
        super().__init__(store, options.poll, options.lease)
        self._store = store
        self._options = options

    async def _work(
        self,
        make_session: SessionFactory,
        concurrency: int,
        limits: CallLimits,
        leaving: anyio.Event,
        on_start: Callable[[], None],
    ) -> None:
        worker = Worker(self._store, make_session, self._options, limits)
        slots = anyio.Semaphore(concurrency)
        in_hand: set[str] = set()

        async def run(turn_id: str) -> None:
            try:
                await worker.take(turn_id)
            finally:
                in_hand.remove(turn_id)
                slots.release()

        async def begin(turn_id: str) -> None:
            await slots.acquire()
            in_hand.add(turn_id)
            group.start_soon(run, turn_id)

        try:
            await worker.register()
            async with anyio.create_task_group() as group:
                group.start_soon(worker.beat)
                group.start_soon(worker.listen)
                group.start_soon(worker.adopt, begin)
                on_start()
                while not leaving.is_set():
                    await slots.acquire()
                    turn_id = await self._store.next_queued(in_hand)
                    slots.release()
                    if turn_id is not None:
                        await begin(turn_id)
                    else:
                        with anyio.move_on_after(self._poll):
                            await leaving.wait()
                await worker.drain()
                group.cancel_scope.cancel()
        finally:
            await worker.leave()


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
    async with open_store(SqliteDatabase(path), patience) as transactions:
        yield LocalEngine(
            TurnStore(transactions), options
        )  # workers look for turns that are queued; there is no other queue


def open_engine(url: str, **options: Any) -> AbstractAsyncContextManager[DurableEngine]:
    """Open the engine that a text names, for example of a setting.

    Args:
        url: A file for `open_local_engine`; ``postgresql://…`` or ``sqlite:///…`` for DBOS; or
            ``temporal://host:port/namespace/task-queue``, of which the last two parts may be missing.
        options: Of the engine's own function.

    Raises:
        ValueError: It names no engine.
    """
    kind, has_kind, rest = url.partition("://")
    if not has_kind:
        return open_local_engine(url, **options)
    if kind == "temporal":
        from .temporal import open_temporal_engine  # noqa: PLC0415 — an extra

        address, namespace, queue = (*rest.split("/"), "", "")[:3]
        places = {"namespace": namespace or "default", "task_queue": queue or "amplifier"}
        return open_temporal_engine(address, **{**places, **options})
    from .dbos import open_dbos_engine  # noqa: PLC0415 — an extra

    return open_dbos_engine(url, **options)
