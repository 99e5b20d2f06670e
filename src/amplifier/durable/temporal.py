"""Turns on Temporal: workers on any number of machines, with a Temporal server between them; needs the extra ``temporal``.

A turn is a workflow, and the results of its model calls and tool calls are signals to it. The session itself lives on the worker that has
the turn, inside an activity, on asyncio or trio.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache
from typing import Any, Unpack

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from amplifier.errors import MissingExtraError

from ._engine import DurableEngine, Duty, raises_one_error
from ._errors import closed_error
from ._suspects import EngineOptions, Settings

try:
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
    from temporalio.client import Client
    from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
    from temporalio.service import RPCError
    from temporalio.worker import UnsandboxedWorkflowRunner, Worker

    from ._temporal._asyncio_thread import open_asyncio_thread
    from ._temporal._client import TemporalTurns
    from ._temporal._hosting import Host, polling
    from ._temporal._server import Server, unavailable
    from ._temporal._workflows import NoticeWorkflow, ScheduledWorkflow, SessionWorkflow, TurnWorkflow
except ModuleNotFoundError as _error:
    if _error.name is None or not _error.name.startswith("temporalio"):
        raise
    raise MissingExtraError("amplifier.durable.temporal", extra="temporal", missing=_error.name) from _error

__all__ = ["open_temporal_engine"]

_logger = logging.getLogger("amplifier.durable")

_CONNECT_SECONDS = 10.0
_LEAVING_SECONDS = 15.0


@cache
def _sdk_runtime() -> Runtime:
    """The threads of the SDK, one set per process; what it logs goes to our logger, by default it is printed."""
    log = LoggingConfig(
        filter=TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding=LogForwardingConfig(logger=_logger)
    )
    return Runtime(telemetry=TelemetryConfig(logging=log))


class _Workers:
    """The workers of one engine in this process."""

    def __init__(self, turns: TemporalTurns) -> None:
        self._turns = turns
        self._workers: dict[anyio.CancelScope, anyio.Event] = {}
        self._is_closing = False

    async def work(self, duty: Duty) -> None:
        """Run turns until cancelled."""
        if self._is_closing:
            raise closed_error("Temporal")
        host = Host(self._turns.server, self._turns.queue, self._turns.settings, duty)
        ended = anyio.Event()
        async with raises_one_error():
            with anyio.CancelScope() as scope:  # inside, so that on trio its own cancellation is no further error
                self._workers[scope] = ended
                try:
                    await host.run()
                    return
                finally:
                    del self._workers[scope]
                    ended.set()
        await checkpoint_if_cancelled()  # a cancellation from outside comes first
        raise closed_error("Temporal")

    async def end(self) -> None:
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
    **options: Unpack[EngineOptions],
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
        options: See `EngineOptions`.

    Raises:
        EngineUnavailableError: The server cannot be reached, or has no such namespace.
        ValueError: One of the numbers makes no sense.
    """
    options.setdefault("poll", 0.5)
    settings = Settings(**options)
    name = f"{address} (namespace {namespace!r})"

    async def connect() -> Client:
        with anyio.fail_after(_CONNECT_SECONDS):
            client = await Client.connect(
                address, namespace=namespace, tls=tls, api_key=api_key, runtime=_sdk_runtime()
            )
            await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=namespace))
            return client

    async with open_asyncio_thread() as thread:
        try:
            client = await thread.call(connect)
        except (RPCError, RuntimeError, TimeoutError) as error:
            raise unavailable(name, error) from error
        server = Server(thread, client, name, settings.patience)
        turns = TemporalTurns(server, task_queue, settings)
        async with polling(thread, lambda: [_workflow_worker(turns)]):
            workers = _Workers(turns)
            try:
                yield DurableEngine(turns, settings, workers.work)
            finally:
                await workers.end()


def _workflow_worker(turns: TemporalTurns) -> Worker:
    """Runs the workflows of the queue."""
    return Worker(
        turns.server.client,
        task_queue=turns.queue,
        workflows=[NoticeWorkflow, ScheduledWorkflow, SessionWorkflow, TurnWorkflow],
        activities=[turns.start_scheduled, turns.notify],
        no_remote_activities=True,  # turns are for those who work
        workflow_runner=UnsandboxedWorkflowRunner(),  # the workflows import nothing that is not deterministic
        # A process that dies is waited for as long as that with the workflows that it has in memory.
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=min(max(turns.settings.lease / 4, 0.5), 10.0)),
    )
