"""Turns on Temporal: workers on any number of machines, with a Temporal server between them; needs the extra ``temporal``.

A turn is a workflow, and its model calls and tool calls are activities of it. The session itself lives on the worker that has the turn,
inside one more activity, on asyncio or trio.
"""

from __future__ import annotations

from ._temporal import sdk_runtime  # first: it reports that the SDK is not installed

# isort: split
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, final

import anyio
from anyio.lowlevel import checkpoint_if_cancelled
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from ._engine import DurableEngine, SessionFactory, raises_one_error
from ._suspects import MOST_DEATHS, CallLimits, WorkerOptions
from ._temporal._asyncio_thread import closed, open_asyncio_thread
from ._temporal._client import TemporalTurns
from ._temporal._hosting import Host, polling
from ._temporal._server import Server, unavailable
from ._temporal._workflows import SessionWorkflow, TurnWorkflow

__all__ = ["open_temporal_engine"]

_logger = logging.getLogger("amplifier.durable")

_CONNECT_SECONDS = 10.0
_LEAVING_SECONDS = 15.0


@final
class _TemporalEngine(DurableEngine):
    """See `open_temporal_engine`."""

    def __init__(self, server: Server, queue: str, options: WorkerOptions) -> None:
        turns = TemporalTurns(server, queue, options.lease, options.poll)
        super().__init__(turns, options.poll, options.lease)
        self._server = server
        self._queue = queue
        self._options = options
        self._workers: dict[anyio.CancelScope, anyio.Event] = {}
        self._is_closing = False

    async def _work(
        self,
        make_session: SessionFactory,
        concurrency: int,
        limits: CallLimits,
        leaving: anyio.Event,
        on_start: Callable[[], None],
    ) -> None:
        if self._is_closing:
            raise closed()
        host = Host(self._server, self._queue, make_session, self._options, limits)
        ended = anyio.Event()
        async with raises_one_error():
            with anyio.CancelScope() as scope:  # inside, so that on trio its own cancellation is no further error
                self._workers[scope] = ended
                try:
                    await host.run(concurrency, leaving, on_start)
                    return
                finally:
                    del self._workers[scope]
                    ended.set()
        await checkpoint_if_cancelled()  # a cancellation from outside comes first
        raise closed()

    async def end_workers(self) -> None:
        """Let the workers hand over their turns while the SDK, which they need for it, still runs."""
        self._is_closing = True
        workers = dict(self._workers)
        for scope in workers:
            scope.cancel()
        with anyio.move_on_after(_LEAVING_SECONDS, shield=True) as bound:
            for ended in workers.values():
                await ended.wait()
        if bound.cancelled_caught:
            _logger.warning("a worker did not end within %g s; its turns go on elsewhere", _LEAVING_SECONDS)


@asynccontextmanager
async def open_temporal_engine(
    address: str = "localhost:7233",
    *,
    namespace: str = "default",
    task_queue: str = "amplifier",
    tls: Any = None,
    api_key: str | None = None,
    poll: float = 0.5,
    lease: float = 10.0,
    patience: float = 30.0,
    attempts: int = MOST_DEATHS,
    stuck: float = 300.0,
) -> AsyncIterator[DurableEngine]:
    """Open an engine on a Temporal server.

    Every process that opens it also runs the workflows, which are small and have no code of the application; so a turn can be started
    and asked for its status while there is no worker.

    Args:
        address: The server, ``host:port``.
        namespace: Of the server; it has to exist.
        task_queue: Also part of the workflows' ids; engines with different ones have nothing in common.
        tls: ``True``, or a ``temporalio.service.TLSConfig``; see ``temporalio.client.Client.connect``.
        api_key: Of the server.
        poll: Seconds between two batches of events, and between two looks at a turn that is waited for.
        lease: Seconds without a heartbeat after which a worker counts as dead.
        patience: Seconds for which a server that went away is asked again before a worker gives up.
        attempts: Workers that may die while they run a turn; then the turn fails.
        stuck: Seconds for which a worker keeps its turns while code of theirs blocks its event loop.

    Raises:
        EngineUnavailableError: The server cannot be reached, or has no such namespace.
        ValueError: One of the numbers makes no sense.
    """
    options = WorkerOptions(poll=poll, lease=lease, attempts=attempts, stuck=stuck)
    name = f"{address} (namespace {namespace!r})"

    async def connect() -> Client:
        with anyio.fail_after(_CONNECT_SECONDS):
            client = await Client.connect(address, namespace=namespace, tls=tls, api_key=api_key, runtime=sdk_runtime())
            await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=namespace))
            return client

    async with open_asyncio_thread() as thread:
        try:
            client = await thread.call(connect)
        except (RPCError, RuntimeError, TimeoutError) as error:
            raise unavailable(name, error) from error
        server = Server(thread, client, name, patience)
        async with polling(thread, lambda: [_workflow_worker(client, task_queue, lease)]):
            engine = _TemporalEngine(server, task_queue, options)
            try:
                yield engine
            finally:
                await engine.end_workers()


def _workflow_worker(client: Client, task_queue: str, lease: float) -> Worker:
    """Runs the workflows of the queue."""
    return Worker(
        client,
        task_queue=task_queue,
        workflows=[SessionWorkflow, TurnWorkflow],
        workflow_runner=UnsandboxedWorkflowRunner(),  # the workflows import nothing that is not deterministic
        # A process that dies is waited for as long as that with the workflows that it has in memory.
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=min(max(lease / 4, 0.5), 10.0)),
    )
