"""Turns on Temporal: workers on any number of machines, with a Temporal server between them; needs the extra ``temporal``.

A turn is a workflow, and the results of its model calls and tool calls are signals to it. A worker polls for turns in the thread of the SDK.
The session itself lives on the worker that has the turn, inside an activity, on the event loop of the application, asyncio or trio.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import cache
from typing import Any, NoReturn, Unpack

import anyio
from anyio.lowlevel import checkpoint_if_cancelled
from anyio.streams.memory import MemoryObjectSendStream

from amplifier.errors import MissingExtraError

from ._engine import DurableEngine, Duty, SessionFactory, raises_one_error
from ._errors import EngineUnavailableError, TurnLost, closed_error
from ._running_turn import RunningTurn, made, plan_problem
from ._suspects import EngineOptions, Settings
from ._values import StopRequest
from ._worker import LoopWatch, TurnRunner

try:
    from temporalio import activity
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
    from temporalio.client import Client
    from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
    from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
    from temporalio.service import RPCError
    from temporalio.worker import UnsandboxedWorkflowRunner, Worker

    from ._temporal_server import AsyncioThread, Server, WorkflowGone, open_asyncio_thread, unavailable
    from ._temporal_turns import TemporalTurns, TurnRecord
    from ._temporal_workflows import (
        HEAR_NEWS,
        RUN_TURN,
        NoticeWorkflow,
        ScheduledWorkflow,
        SessionWorkflow,
        TurnWorkflow,
    )
except ModuleNotFoundError as _error:
    if _error.name is None or not _error.name.startswith("temporalio"):
        raise
    raise MissingExtraError("amplifier.durable.temporal", extra="temporal", missing=_error.name) from _error

__all__ = ["open_temporal_engine"]

_logger = logging.getLogger("amplifier.durable")

_CONNECT_SECONDS = 10.0
_LEAVING_SECONDS = 15.0
_ENDING_SECONDS = 5.0
_SHUTDOWN_SECONDS = 30.0


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
        host = _Host(self._turns.server, self._turns.queue, self._turns.settings, duty)
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
        async with _polling(thread, lambda: [_workflow_worker(turns)]):
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


# ── a worker ──────────────────────────────────────────────────────────────────────────────────────


class _Visit:
    """A turn that the server has given to this worker: an activity in the asyncio thread, a task on the host.

    Attributes:
        attempt: Of the activity.
        watch: Whether the host runs; without it there is no heartbeat after a while.
        scope: Of the task, until the turn is claimed.
        running: The turn on the host, once it is claimed.
        early_news: What was heard before the reply to the claim was read, with the attempt it is for; the workflow sends it once.
    """

    def __init__(self, turn_id: str, run_number: int, attempt: int, watch: LoopWatch) -> None:
        self.turn_id = turn_id
        self.run_number = run_number
        self.attempt = attempt
        self.watch = watch
        self.scope: anyio.CancelScope | None = None  # made on the host
        self.running: RunningTurn | None = None
        self.early_news: list[tuple[int, dict[str, Any]]] = []
        self.ended: anyio.Event = anyio.Event()  # in the asyncio thread
        self.outcome: dict[str, Any] | None = None

    def start(self, running: RunningTurn) -> None:
        """The turn is claimed."""
        self.running = running
        for attempt, news in self.early_news:
            self.hear(attempt, news)

    def hear(self, attempt: int, news: dict[str, Any]) -> None:
        """Pass news for an attempt to the turn; on the host."""
        if self.running is None:
            self.early_news.append((attempt, news))
        elif self.running.turn.attempt == attempt:
            if "stop" in news:
                self.running.stop(StopRequest(**news["stop"]))
            for question_id, option in news.get("answers", {}).items():
                self.running.answer(question_id, option)

    def lose(self) -> None:
        """Another worker has the turn; on the host."""
        if self.running is not None:
            self.running.lose()
        elif self.scope is not None:
            self.scope.cancel()


class _Host(TurnRunner):
    """One worker.

    Args:
        server: The server.
        queue: Where turns are.
        settings: Of the engine.
        duty: What it does.
    """

    def __init__(self, server: Server, queue: str, settings: Settings, duty: Duty) -> None:
        super().__init__(settings, duty)
        self._server = server
        self._thread = server.thread
        self._lease = settings.lease
        self._queue = queue
        self._own_queue = f"{queue}-{self.name}"
        self._visits: list[_Visit] = []
        self._send: MemoryObjectSendStream[_Visit] | None = None

    async def run(self) -> None:
        """Run turns until cancelled, or until no call runs when it is leaving.

        Raises:
            EngineUnavailableError: The server cannot be reached any more.
        """
        self._send, receive = anyio.create_memory_object_stream[_Visit](math.inf)
        with self._send, receive:
            async with (
                anyio.create_task_group() as group,
                _polling(self._thread, self._workers) as wait_for_end,
            ):
                group.start_soon(self._beat)
                group.start_soon(wait_for_end)
                group.start_soon(self.listen)
                group.start_soon(self._leave, group.cancel_scope)
                self._duty.on_start()
                async for visit in receive:
                    group.start_soon(self._run_turn, visit)

    # ── on the host ──

    async def _leave(self, scope: anyio.CancelScope) -> None:
        await self._duty.leaving.wait()
        await self.drain()
        scope.cancel()

    async def _run_turn(self, visit: _Visit) -> None:
        record = TurnRecord(self._server, self._queue, visit.turn_id)
        self._visits.append(visit)
        try:
            assert visit.scope is not None
            with visit.scope:
                await self._claim_and_run(visit, record)
        except (TurnLost, WorkflowGone):
            _logger.info("another worker has turn %s", visit.turn_id)
        finally:
            with anyio.move_on_after(_ENDING_SECONDS, shield=True):
                await record.close()
            self._visits.remove(visit)
            self._thread.post(visit.ended.set)

    async def _claim_and_run(self, visit: _Visit, record: TurnRecord) -> None:
        deaths = 0
        factory: SessionFactory | None = self._duty.make_session
        if visit.run_number + visit.attempt > 2:
            begun = await record.begun()
            deaths = begun["deaths"]
            factory = await self._factory(record, begun)
        if factory is None:
            return
        async with self._admission.admit(visit.turn_id, deaths, self._settings.pause_after(deaths)):
            turn = await record.claim(visit.run_number, visit.attempt, self.name, self._own_queue)
            if await self.run_turn(record, turn, factory, visit.start):
                visit.outcome = record.outcome

    async def _factory(self, record: TurnRecord, begun: dict[str, Any]) -> SessionFactory | None:
        """How the session of a turn that has begun is made; None if this worker has another plan, so the turn is held for one that has it."""
        if begun["plan"] is None or begun["is_stopped"]:
            return self._duty.make_session
        try:
            session = made(self._duty.make_session, begun["session_id"])
        except Exception:  # noqa: BLE001 — the application's code; the turn is claimed and fails with it
            return self._duty.make_session
        problem = plan_problem(session, begun["plan"])
        if problem is not None:
            await record.hold(begun["attempt"], problem)
            return None
        return lambda session_id: session

    async def _beat(self) -> None:
        while True:
            for visit in self._visits:
                visit.watch.note_life()
            await self._server.check()
            await anyio.sleep(self._lease / 4)

    def _hear_news(self, turn_id: str, attempt: int, news: dict[str, Any]) -> None:
        for visit in self._visits:
            if visit.turn_id == turn_id:
                visit.hear(attempt, news)

    # ── in the asyncio thread ──

    def _workers(self) -> Sequence[Worker]:
        throttle = timedelta(seconds=self._lease / 5)
        return (
            Worker(self._server.client, task_queue=self._own_queue, activities=[self._news_activity]),
            Worker(
                self._server.client,
                task_queue=self._queue,
                activities=[self._turn_activity],
                max_concurrent_activities=self._duty.concurrency,
                max_heartbeat_throttle_interval=throttle,
                default_heartbeat_throttle_interval=throttle,
            ),
        )

    @activity.defn(name=RUN_TURN)
    async def _turn_activity(self, turn_id: str, run_number: int) -> dict[str, Any]:
        visit = _Visit(turn_id, run_number, activity.info().attempt, LoopWatch(self._settings))
        self._thread.post_to_host(lambda: self._accept(visit))
        try:
            while not visit.ended.is_set():
                with anyio.move_on_after(self._lease / 4):
                    await visit.ended.wait()
                if not visit.watch.is_stuck():
                    activity.heartbeat()
        except anyio.get_cancelled_exc_class():
            # No scope of ours: the server has given the turn to another worker, or this one is being shut down. The SDK reports what
            # is raised to the server, and a cancellation would be logged as a failure.
            self._thread.post_to_host(visit.lose)
            with anyio.move_on_after(_ENDING_SECONDS, shield=True):
                await visit.ended.wait()
        if visit.outcome is None:
            raise ApplicationError("the worker has handed the turn over", category=ApplicationErrorCategory.BENIGN)
        return visit.outcome

    def _accept(self, visit: _Visit) -> None:
        assert self._send is not None
        visit.scope = anyio.CancelScope()
        try:
            if self._is_leaving:
                raise anyio.ClosedResourceError
            self._send.send_nowait(visit)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):  # this worker is leaving
            self._thread.post(visit.ended.set)

    @activity.defn(name=HEAR_NEWS)
    async def _news_activity(self, turn_id: str, attempt: int, news: dict[str, Any]) -> None:
        self._thread.post_to_host(lambda: self._hear_news(turn_id, attempt, news))


@asynccontextmanager
async def _polling(
    thread: AsyncioThread, make_workers: Callable[[], Sequence[Worker]]
) -> AsyncIterator[Callable[[], Coroutine[Any, Any, NoReturn]]]:
    """Workers of the SDK in the asyncio thread; on leaving they are shut down and waited for, since what they run has deadlines.

    Yields:
        A function that waits for their end and raises.

    Raises:
        EngineUnavailableError: The server refuses them.
    """
    has_started, has_ended = anyio.Event(), anyio.Event()
    stop: anyio.Event | None = None

    async def serve() -> None:
        nonlocal stop
        stop = anyio.Event()  # in the thread
        stack = AsyncExitStack()
        try:
            for worker in make_workers():
                await stack.enter_async_context(worker)
            thread.post_to_host(has_started.set)
            await stop.wait()
        finally:
            # A worker of the SDK that is cancelled while it shuts down may never end.
            with anyio.move_on_after(_SHUTDOWN_SECONDS, shield=True):
                await stack.__aexit__(*sys.exc_info())

    def end() -> None:
        has_ended.set()
        has_started.set()

    async def wait_for_end() -> NoReturn:
        await has_ended.wait()
        raise EngineUnavailableError(f"the Temporal server does not serve a worker any more: {future.exception()}")

    future = thread.start(serve, end)
    try:
        await has_started.wait()
        if has_ended.is_set():
            await wait_for_end()
        yield wait_for_end
    finally:
        thread.post(lambda: None if stop is None else stop.set())
        with anyio.move_on_after(_SHUTDOWN_SECONDS, shield=True) as scope:
            await has_ended.wait()
        if scope.cancelled_caught:
            _logger.warning("a worker of the Temporal SDK did not end within %g s", _SHUTDOWN_SECONDS)
