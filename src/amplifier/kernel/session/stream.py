"""A turn as a stream of typed events, and as a stream of text."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, final

import anyio
import anyio.lowlevel

from amplifier.contracts.cancellation import (
    cancel_scope,
    is_cancellation_type,
    is_real_cancellation,
)
from amplifier.errors import SessionStateError
from amplifier.events import LLM_STREAM_BLOCK_DELTA
from amplifier.models import TurnEvent
from amplifier.models.turns import TEXT_EVENTS, TEXT_FIELDS, TurnEvents, TurnText

from ..coordinator.coordinator import ModuleCoordinator
from ..runtime.child import is_native, pending_cancels, run_in_child
from ..runtime.loop import current_raw_task, exit_details, task_name
from ..runtime.task_host import ROUNDS_TO_BEGIN
from .turn import cancelled_error

if TYPE_CHECKING:  # saves a twentieth of the import time
    from anyio.abc import TaskGroup

    from amplifier.models.answers import AnswerFormat, PartialAnswer

T = TypeVar("T")
Spawn = Callable[[Callable[[], Coroutine[Any, Any, None]]], object]

MAX_BUFFERED = 256
"""Maximum number of unread events. Above it, an emitter in the turn waits for room.

Terminal events aren't counted and never wait. Neither do events that code outside the turn emits:
the consumer may be that code, and would wait for itself.
"""

# This holds buffers, not streams, because a task left behind by a turn keeps its context alive.
_inside_streamed: ContextVar[tuple[anyio.Semaphore, ...]] = ContextVar(
    "amplifier_inside_streamed", default=()
)
"""Buffers of the streamed turns in which the current task runs."""


# After all handlers have run, the registry appends an event to a deque. The reader takes all
# pending events from it without another round of the event loop, and constructs the typed events.
# An emitter waits only if the buffer is full, and the reader only if it is empty. A handler instead
# would cost a dispatch. A memory object stream of AnyIO would cost two more rounds, and an event
# for each wait.
#
# A stream is a context manager, not an asynchronous generator. Nothing is ever yielded inside a
# task group, so exiting the block early is safe. It cancels the turn and returns when the turn has
# unwound. The turn claims the session in its own task, and entering the block waits until it has
# done so. Thus the next caller finds the session busy.


@final
class TurnStream(Generic[T]):
    """The events of one turn, from ``session.stream`` and ``session.stream_resumed_turn``.

    The turn runs while the block of ``async with`` does. ``async for event in events`` inside it
    yields each event as a `TurnEvent`: text as `TextDelta`, thinking as `ThinkingDelta`, tool calls
    as `ToolStarted` and `ToolFinished`, the part of a typed answer received so far as
    `ResultDelta`, and the events of a sub-agent as `SubAgentEvent`. `AnswerReset` retracts the
    streamed text of an answer that broke off and starts over.

    The iteration ends with the turn, and raises the turn's error. Exiting the block before that
    cancels the turn. An error of the block propagates unchanged, even if a scope around the block
    is cancelled. A stream can be entered once.

    Args:
        run: A function that claims the session, runs the turn and releases the session.
        coordinator: The coordinator of the session.
        answer_format: The format of a typed answer, or None for text.
        text_only: True to read only events with text, and only the fields that the text needs.

    Attributes:
        result: The text of the turn, or its value if a type was given. Set once the turn has ended.
        has_turn: Set when the turn has claimed the session, or has ended.
        is_over: True once the turn has fully ended.
        is_left: True once the stream has lost its reader.
        is_read: True while a reader waits for the next part.
    """

    def __init__(
        self,
        run: Callable[[TurnStream[Any]], Awaitable[T]],
        coordinator: ModuleCoordinator,
        *,
        answer_format: AnswerFormat[T] | None = None,
        text_only: bool = False,
    ) -> None:
        self._run_turn = run
        self._coordinator = coordinator
        self._group: TaskGroup | None = None
        self._entered_in: object = None
        self._is_entered = self._has_begun = self._has_claimed = self._is_abandoned = False
        self._is_text_only = text_only
        self._thread = 0
        self._over: anyio.Event | None = None
        self._ready: deque[tuple[str, dict[str, Any], bool]] = deque()
        self._news = anyio.Semaphore(0)
        self._needs_news = False
        self._room = anyio.Semaphore(MAX_BUFFERED)
        self._error: BaseException | None = None
        self._stop_asking: Callable[[], None] | None = None
        reader = None if answer_format is None else _reader_of(answer_format)
        self._typed = TurnEvents() if reader is None else TurnEvents(reader)
        self.has_turn: anyio.Event = anyio.Event()
        self.is_over: bool = False
        self.is_left: bool = False
        self.is_read: bool = False
        self.result: T | None = None

    async def __aenter__(self) -> Self:
        if self._is_entered:
            raise SessionStateError(
                "a stream can be entered once; call session.stream(...) again for another turn"
            )
        group, task = anyio.create_task_group(), current_raw_task()
        self._prepare()
        self._entered_in = task
        try:
            await group.__aenter__()
            self._group = group
            await self.start(partial(group.start_soon, name=self.task_name))
        except BaseException as exc:
            await self.__aexit__(*exit_details(exc))
            raise
        return self

    def _prepare(self) -> None:
        self._turn_scope, self._thread = cancel_scope(), threading.get_ident()
        self._is_entered = True

    @property
    def task_name(self) -> str:
        """The name of the turn's task."""
        return f"amplifier turn {self._coordinator.session_id}"

    async def start(self, spawn: Spawn) -> None:
        """Start the turn in a task, and wait until it has claimed the session."""
        if self.is_over:
            return
        if not self._is_entered:
            self._prepare()
        spawn(self._run)
        # On asyncio a task that is cancelled before its first step never takes it.
        for _ in range(ROUNDS_TO_BEGIN):
            if not self._has_begun:
                await anyio.lowlevel.checkpoint()
        if not self._has_begun:
            self._end(cancelled_error(self._coordinator, "its task was cancelled before it began"))
        await self.has_turn.wait()

    def leave(self) -> None:
        """Stop the turn unless it is over, because it no longer has a reader."""
        self.is_left = self._is_abandoned = True
        self._hand_over_interrupt()
        if not self._is_entered:
            self.is_over = True
            return
        self._drop_unread()
        self._turn_scope.cancel()
        if not self._has_begun:
            self._end()

    def _hand_over_interrupt(self) -> None:
        """End the session with a KeyboardInterrupt that no reader will raise."""
        error = self._error
        if self._is_abandoned and isinstance(error, KeyboardInterrupt):
            self._error = None
            self._coordinator.hosting.end_session(error)

    async def wait_over(self) -> None:
        """Wait until the turn has unwound."""
        if not self.is_over:
            self._over = self._over or anyio.Event()
            await self._over.wait()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        swallowed = False
        try:
            if self._group is not None:
                self.is_left = True
                self._drop_unread()
                self._require_own_task(exc)
                if not self.is_over:
                    self._group.cancel_scope.cancel()
                swallowed = await self._leave_group(self._group, exc)
            if isinstance(self._error, KeyboardInterrupt):
                self._raise_error()
            if exc is None and self._error is not None:
                # If the caller was cancelled too, that comes first.
                await anyio.lowlevel.checkpoint_if_cancelled()
                self._raise_error()
        finally:
            # On asyncio a task that is cancelled before its first step doesn't run at all.
            self._end()
            # Break the reference cycle with the traceback.
            exc = self._error = self._entered_in = None
        return swallowed

    def _require_own_task(self, exc: BaseException | None) -> None:
        if self._entered_in is not current_raw_task():
            self._group = None
            # Don't cancel the scope of the group, because the task that entered the group is inside
            # it.
            self._turn_scope.cancel()
            here, there = task_name(current_raw_task()), task_name(self._entered_in)
            raise SessionStateError(
                f"a stream was entered in task {there!r} and left in task {here!r}; its turn has "
                "been cancelled, but `async with` must be left in the task that entered it: keep "
                "both in one function"
            ) from exc

    async def _leave_group(self, group: TaskGroup, exc: BaseException | None) -> bool:
        """Exit the task group and return whether ``exc`` was only its own cancellation."""
        # Pass only a cancellation to the group, which would wrap any other error.
        own = exc if exc is not None and is_cancellation_type(exc) else None
        self._group = None
        cancels = pending_cancels()
        try:
            swallowed = await group.__aexit__(*exit_details(own))
            return own is not None and bool(swallowed)
        except BaseExceptionGroup as wrapped:  # a KeyboardInterrupt that hit the turn's task
            raise wrapped.exceptions[0] from None
        except BaseException as stop:
            if exc is None or own is not None or not is_cancellation_type(stop):
                raise
            if is_native(stop, cancels):
                raise stop from exc
            # The error of the block propagates. The scope delivers its cancellation again.
            return False
        finally:
            del exc, own

    def _end(self, error: BaseException | None = None) -> None:
        """End the iteration, because the turn is gone."""
        if error is not None:
            self._error = error
        self.is_over = True
        self._wake_reader()
        self._wake_emitters()
        self.has_turn.set()
        if self._over is not None:
            self._over.set()

    @property
    def is_around_caller(self) -> bool:
        """True if the calling code is part of the turn."""
        return self._room in _inside_streamed.get()

    @property
    def has_ready(self) -> bool:
        """True if the next event has already been emitted, so that reading it doesn't wait."""
        return bool(self._ready)

    def _drop_unread(self) -> None:
        """Discard unread events, because the reader has gone."""
        self._ready.clear()
        self._wake_emitters()

    def _wake_reader(self) -> None:
        if self._needs_news:
            self._needs_news = False
            self._news.release()

    def _wake_emitters(self) -> None:
        """Wake the emitters that wait for room, because no reader may free any."""
        for _ in range(self._room.statistics().tasks_waiting):
            self._room.release()

    def __aiter__(self) -> AsyncIterator[TurnEvent]:
        return self

    async def __anext__(self) -> TurnEvent:
        if not self._is_entered:
            raise SessionStateError(
                "enter the stream first: `async with session.stream(...) as events:`"
            )
        self.require_reader()
        if self.is_left:
            raise SessionStateError(
                "a stream is read inside its `async with` block; this one has been left"
            )
        if self._ready:
            await anyio.lowlevel.checkpoint_if_cancelled()
        else:
            await self._wait_for_news()
        if self._ready:
            event, data, took_room = self._ready.popleft()
            if took_room:
                self._room.release()
            return self._typed(event, data)
        # If the reader was cancelled too, that comes first.
        await anyio.lowlevel.checkpoint_if_cancelled()
        self._raise_error()
        raise StopAsyncIteration

    async def _wait_for_news(self) -> None:
        """Wait until something is ready, or the turn is over."""
        self.is_read = True
        try:
            while not (self._ready or self.is_over):
                self._needs_news = True
                await self._news.acquire()
        finally:
            self.is_read = self._needs_news = False

    def require_reader(self) -> None:
        """Check that there is only one reader, and that it runs on the turn's loop."""
        if self.is_read:
            rule = "a stream has one reader"
            raise SessionStateError(
                f"{rule}, and another task is waiting for its next part; read it there only"
            )
        self.require_loop()

    def require_loop(self) -> None:
        """Check that the caller runs on the turn's loop."""
        if self._is_entered and self._thread != threading.get_ident():
            rule = "a stream is read on the event loop on which its turn runs"
            raise SessionStateError(f"{rule}; this is another thread")

    def _raise_error(self) -> None:
        """Raise the turn's error, once."""
        if self._error is not None:
            error, self._error = self._error, None
            try:
                raise error
            finally:
                # Break the reference cycle with the traceback.
                del error

    async def _run(self) -> None:
        """Run the turn. This is the body of its task."""
        self._has_begun = True
        if self.is_over:
            return
        try:
            with self._turn_scope:
                self.result = await self._run_turn(self)
        except BaseException as exc:  # noqa: BLE001 — raised by the iteration
            if not is_real_cancellation(exc):
                self._error = exc
            elif not self.is_left:
                # If only this task was cancelled, the consumer wouldn't receive the cancellation.
                self._error = cancelled_error(self._coordinator, "its task was cancelled")
            self._hand_over_interrupt()
        finally:
            self.is_over = True
            # Otherwise the events belong to the other turn, which keeps the session busy.
            if self._has_claimed:
                self._coordinator.hooks.stream_into(None)
            if self._stop_asking is not None:
                self._stop_asking()
            self._end()

    def begin(self) -> None:
        """Start receiving events, because the turn's task has claimed the session."""
        hooks = self._coordinator.hooks
        loop = self._coordinator.get("orchestrator")
        if getattr(loop, "reports_pieces", False) is not True:
            # The bundled providers emit pieces only if a handler requests this event by name.
            self._stop_asking = hooks.register(
                LLM_STREAM_BLOCK_DELTA, _ask_for, name="session.stream"
            )
        if self._is_text_only:
            hooks.stream_into(
                self._pass_on, self._wake_emitters, events=TEXT_EVENTS, fields=TEXT_FIELDS
            )
        else:
            hooks.stream_into(self._pass_on, self._wake_emitters)
        # Set the variable without resetting it, because the task has its own context.
        _inside_streamed.set((*_inside_streamed.get(), self._room))
        self._has_claimed = True
        self.has_turn.set()

    def _pass_on(
        self, event: str, data: dict[str, Any], *, may_wait: bool
    ) -> Awaitable[None] | None:
        """Pass an event to the reader. Its emitter waits only if the buffer is full."""
        takes_room = may_wait and self.is_around_caller
        if self.is_left:
            # The turn is being cancelled. This checkpoint ends it unless the emitter is shielded.
            return anyio.lowlevel.checkpoint() if takes_room else None
        if takes_room:
            if not self._room.value:
                return self._pass_on_later(event, data)
            self._room.acquire_nowait()
        self._hand_over(event, data, takes_room)
        return None

    async def _pass_on_later(self, event: str, data: dict[str, Any]) -> None:
        await self._room.acquire()
        if self.is_left:
            await anyio.lowlevel.checkpoint()
        else:
            self._hand_over(event, data, True)

    def _hand_over(self, event: str, data: dict[str, Any], took_room: bool) -> None:
        # An emitter that waited for room may continue after the turn.
        if not self.is_over:
            self._ready.append((event, data, took_room))
            self._wake_reader()


# ── text ──────────────────────────────────────────────────────────────────────────────────────


@final
class TextStream:
    """The text of one turn, piece by piece, from ``session.stream_text``.

    The turn starts when the first piece is read, and the iteration raises its error. Three things
    stop the turn and wait until it has unwound: cancelling a reader that waits for a piece, exiting
    ``async with session.stream_text("prompt") as pieces``, and `aclose`. If a loop exits with
    ``break`` or an exception, the turn stops when the stream is garbage-collected. On CPython this
    happens at once unless there is another reference, and the next turn waits for the end of this
    one. While a reference exists, the next turn raises a `SessionBusyError` that explains this.
    Closing the session ends the turn in any case.

    Attributes:
        result: The text of the turn. Set once the turn has ended.
    """

    # The text can be read without a block, and Python doesn't notify an iterator when its loop
    # exits. So the turn runs in a task of the session.

    def __init__(self, events: TurnStream[str], start: Callable[[], Awaitable[None]]) -> None:
        self._events = events
        self._start = start
        self._text = TurnText()
        self._thread = 0
        self._is_over = False
        self.result: str | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        self._events.require_reader()
        try:
            if not self._thread and not self._is_over:
                await self._begin()
            while not self._is_over:
                try:
                    event = await anext(self._events)
                except (StopAsyncIteration, SessionStateError) as end:
                    # A handler of the turn, or another task, has closed the stream.
                    if self._events.is_left:
                        break
                    if isinstance(end, SessionStateError):
                        raise
                    self.result = self._events.result
                    await self.aclose()
                    text = self._text.rest(self.result)
                else:
                    text = self._text.add(event)
                if text:
                    return text
        except BaseException:
            await self.aclose()
            raise
        raise StopAsyncIteration

    async def _begin(self) -> None:
        self._thread = threading.get_ident()
        self._events.is_read = True
        try:
            await self._start()
        finally:
            self._events.is_read = False

    async def aclose(self) -> None:
        """Stop the turn, unless it is over, and wait until it has unwound. Idempotent.

        A call from inside the turn, such as in a handler of one of its events, doesn't wait.

        Raises:
            SessionStateError: The turn runs on another event loop.
        """
        self._events.require_loop()
        self._is_over = True
        if self._thread:
            self._events.leave()
            if not self._events.is_over and not self._events.is_around_caller:
                name = "amplifier end of a text stream"
                await run_in_child(self._events.wait_over, name=name, shield=True)

    def __del__(self) -> None:
        # The garbage collector may run in any thread. Only the event loop's thread may cancel.
        if self._thread == threading.get_ident():
            with suppress(Exception):  # if the event loop has ended, the turn has too
                self._events.leave()


async def _ask_for(event: str, data: dict[str, Any]) -> None:
    """Receive an event without doing anything, so that providers emit it."""


def _reader_of(answer_format: AnswerFormat[Any]) -> Callable[[], PartialAnswer]:
    from amplifier.models.answers import PartialAnswer  # noqa: PLC0415 — only typed answers need it

    return partial(PartialAnswer, answer_format)
