"""An engine without any server: turns in a file of SQLite, workers in any number of processes of one machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import anyio

from ._database import SqliteDatabase, opened
from ._engine import DurableEngine, Duty, InterruptedWorker
from ._suspects import EngineOptions, Settings
from ._turn_store import TurnStore
from ._worker import Worker


async def _work(store: TurnStore, settings: Settings, duty: Duty) -> None:
    worker = Worker(store, settings, duty)
    slots = anyio.Semaphore(duty.concurrency)
    in_hand: set[str] = set()

    async def run(turn_id: str) -> None:
        try:
            await worker.take(turn_id)
        except KeyboardInterrupt as exc:  # here it would end the whole event loop, and AnyIO's threads would stay
            raise InterruptedWorker from exc
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
            group.start_soon(worker.notify)
            group.start_soon(worker.adopt, begin)
            duty.on_start()
            while not duty.leaving.is_set():
                await slots.acquire()
                turn_id = await store.next_queued(in_hand)
                slots.release()
                if turn_id is not None:
                    await begin(turn_id)
                else:
                    with anyio.move_on_after(settings.poll):
                        await duty.leaving.wait()
            await worker.drain()
            group.cancel_scope.cancel()
    finally:
        await worker.leave()


@asynccontextmanager
async def open_local_engine(path: str | Path, **options: Unpack[EngineOptions]) -> AsyncIterator[DurableEngine]:
    """Open an engine whose turns are in a file: no server, no extra, one machine.

    Args:
        path: The file, made if it is not there. Every process that uses it has to be on this machine.
        options: See `EngineOptions`.

    Raises:
        EngineUnavailableError: The file cannot be used.
        DurableError: A newer version wrote it.
        ValueError: One of the numbers makes no sense.
    """
    options.setdefault("lease", 5.0)
    settings = Settings(**options)
    database = SqliteDatabase(path, settings.patience)
    async with opened(database):
        store = TurnStore(database)  # workers look for turns that are queued; there is no other queue
        yield DurableEngine(store, settings, partial(_work, store, settings))


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
