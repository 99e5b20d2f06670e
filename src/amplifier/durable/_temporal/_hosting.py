"""A worker: polls for turns in the asyncio thread, and runs them on the event loop of the application, asyncio or trio."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any, NoReturn

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import Worker

from .._engine import Duty, SessionFactory
from .._errors import EngineUnavailableError, TurnLost
from .._running_turn import RunningTurn, made, plan_problem
from .._suspects import Settings
from .._turn_rows import StopRequest
from .._worker import LoopWatch, TurnRunner
from ._asyncio_thread import AsyncioThread
from ._record import TurnRecord
from ._server import Server, WorkflowGone
from ._workflows import HEAR_NEWS, RUN_TURN

logger = logging.getLogger("amplifier.durable")

_ENDING_SECONDS = 5.0
_SHUTDOWN_SECONDS = 30.0


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


class Host(TurnRunner):
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
                polling(self._thread, self._workers) as wait_for_end,
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
            logger.info("another worker has turn %s", visit.turn_id)
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
async def polling(
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
            logger.warning("a worker of the Temporal SDK did not end within %g s", _SHUTDOWN_SECONDS)
