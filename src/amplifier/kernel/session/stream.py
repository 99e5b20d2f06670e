"""A turn as a stream of typed events, for embedders, and as a stream of text.

    async with session.stream("prompt") as events:
        async for event in events:
            ...
    events.result

    async for piece in session.stream_text("prompt"):
        ...

A context manager, not an async generator: nothing is ever yielded inside a task group, so leaving early is safe. It cancels the turn
and returns when the turn has unwound. An exception of the block leaves as it is, also when the block is cancelled meanwhile; that
cancellation is delivered at the next await.

The text can be read without a block; Python does not notify an iterator when its loop ends early, so its turn runs in a task of the
session.
"""

from __future__ import annotations

import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, final

import anyio
import anyio.lowlevel

from amplifier.contracts._cancellation import (
    cancel_scope,
    is_cancellation_type,
    is_real_cancellation,
    running_asyncio_loop,
)
from amplifier.errors import ExecutionCancelled, SessionStateError
from amplifier.events import LLM_STREAM_BLOCK_DELTA, TERMINAL_EVENTS
from amplifier.models import TurnEvent
from amplifier.turns import TurnEvents, TurnText

from ..hooks.registry import EVERY_EVENT, HookRegistry
from ..runtime.backend import (
    current_raw_task,
    deliver_later,
    exit_details,
    interrupts,
    pending_cancellations,
    release,
    task_name,
)
from ..runtime.tasks import ROUNDS_TO_BEGIN
from ..runtime.uninterrupted import run_section
from .turn import TurnRunner

if TYPE_CHECKING:  # a twentieth of importing the package, for types only
    from anyio.abc import TaskGroup

    from amplifier.answers import AnswerFormat, PartialAnswer

T = TypeVar("T")
Spawn = Callable[[Callable[[], Coroutine[Any, Any, None]]], object]

BUFFERED = 256
"""Events a consumer may lag behind before the turn waits for it.

Terminal events never wait and are not counted. Neither are those that the turn did not emit: whoever emits them, the consumer first
of all, may be the one whom the turn waits for.
"""

LAST = 2**31
"""The stream listens after every other handler, so it sees payloads as they finally are."""

# The buffer of each streamed turn that the running code is part of. Not the streams: a task that a turn leaves behind keeps its context.
_inside_streamed: ContextVar[tuple[anyio.Semaphore, ...]] = ContextVar("amplifier_inside_streamed", default=())


@final
class TurnStream(Generic[T]):
    """The events of one turn; made by ``session.stream`` and ``session.stream_resumed_turn``.

    The turn runs while the block of ``async with`` does. ``async for event in events`` in it gives every event as a `TurnEvent`: text
    as `TextDelta`, thinking as `ThinkingDelta`, tool calls as `ToolStarted` and `ToolFinished`, a typed answer as far as it has arrived
    as `ResultDelta`, and what a sub-agent does as `SubAgentEvent`. `AnswerReset` takes back what was streamed of an answer that was cut and
    came differently the second time. The iteration ends with the turn, and raises what the turn raised. Leaving the block before that cancels
    the turn.
    A stream can be entered once.

    Attributes:
        result: The turn's text, or its value if a type was asked for, once it has ended.
    """

    def __init__(
        self,
        claim: Callable[[TurnStream[Any]], Awaitable[Callable[[], Awaitable[T]]]],
        turns: TurnRunner,
        hooks: HookRegistry,
        *,
        answer_format: AnswerFormat[T] | None = None,
    ) -> None:
        # Claims the session for the turn; returns what runs it and gives the session back.
        self._claim = claim
        self._turns = turns
        self._hooks = hooks
        self._group: TaskGroup | None = None
        self._entered_in: Any = None
        self._is_entered = self._has_begun = self._is_read = False
        self._thread = 0
        self._over: anyio.Event | None = None
        self._room = anyio.Semaphore(BUFFERED)
        self._error: BaseException | None = None
        self._typed = TurnEvents() if answer_format is None else TurnEvents(_reader_of(answer_format))
        self.holds_session: bool = False
        """Whether the session is claimed and the turn has not begun."""
        self.is_over: bool = False
        """Whether nothing of the turn is left."""
        self.is_left: bool = False
        """Whether no one reads it any more."""
        self.result: T | None = None

    async def __aenter__(self) -> Self:
        if self._is_entered:
            raise SessionStateError("a stream can be entered once; call session.stream(...) again for another turn")
        group, task = anyio.create_task_group(), current_raw_task()
        self._prepare()
        self._entered_in = task
        try:
            await group.__aenter__()
            self._group = group
            await self.start(group.start_soon)
            return self
        except BaseException as exc:
            await self.__aexit__(*exit_details(exc))
            raise

    def _prepare(self) -> None:
        self._turn_scope, self._thread = cancel_scope(), threading.get_ident()
        self._send, self._receive = anyio.create_memory_object_stream[tuple[TurnEvent, bool]](math.inf)
        self._is_entered = True

    async def start(self, spawn: Spawn) -> None:
        """Begin the turn; without a block, in a task that is not the reader's, `leave` ends it."""
        if not self._is_entered:
            self._prepare()
        try:  # in the caller's own step: whoever comes next must see that the session is taken
            run = await self._claim(self)
        except Exception as exc:  # noqa: BLE001 — raised from the iteration, as what the turn raises
            self._end(exc)
        else:
            spawn(partial(self._run, run))

    def leave(self) -> None:
        """Stop the turn, unless it is over: no one reads it any more."""
        self.is_left = True
        self._receive.close()
        self._turn_scope.cancel()
        if not self._has_begun:
            self._end(None)

    async def wait_over(self) -> None:
        """Wait until the turn has unwound."""
        if not self.is_over:
            self._over = self._over or anyio.Event()
            await self._over.wait()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        interrupt: BaseException | None = None
        before = None
        swallowed = False
        try:
            while self._group is not None:
                try:
                    self.is_left = True
                    self._receive.close()
                    self._require_own_task(exc)
                    if not self.is_over:
                        self._group.cancel_scope.cancel()
                    swallowed = await self._leave(exc)
                except KeyboardInterrupt as caught:  # at a line of ours: the group must be left all the same
                    before = before or interrupts.hold()
                    interrupt = interrupt or caught
            if interrupt is not None:
                raise interrupt
            if exc is None and self._error is not None:
                await (
                    anyio.lowlevel.checkpoint_if_cancelled()
                )  # before a report that the turn was: we may have been, too
                self._raise_error()
        finally:
            self._end(None)  # on asyncio a task that is cancelled before its first step does not run at all
            release(before)
            interrupt = exc = self._error = self._entered_in = (
                None  # an exception that names its own frame is a reference cycle
            )
        return swallowed

    def _require_own_task(self, exc: BaseException | None) -> None:
        if self._entered_in is not current_raw_task():
            self._group = None
            self._turn_scope.cancel()  # not the group's, which is around the task that entered
            here, there = task_name(current_raw_task()), task_name(self._entered_in)
            raise SessionStateError(
                f"a stream was entered in task {there!r} and left in task {here!r}; its turn has been cancelled, but `async with` must "
                "be left in the task that entered it: keep both in one function"
            ) from exc

    def _end(self, error: BaseException | None) -> None:
        """There is no turn any more: give the session back, if the turn has not begun, and end the iteration."""
        if error is not None:
            self._error = error
        if self.holds_session:
            self.holds_session = False
            self._turns.end_turn()
        self.is_over = True
        self._send.close()
        if self._over is not None:
            self._over.set()

    def withdraw(self, reason: ExecutionCancelled) -> None:
        """The turn has not begun and must not any more."""
        self._end(reason)

    async def _leave(self, exc: BaseException | None) -> bool:
        assert self._group is not None
        # Errors of the block leave as they are by returning False; the group would wrap them.
        own = exc if exc is not None and is_cancellation_type(exc) else None
        task = current_raw_task()
        requests_before = 0 if running_asyncio_loop() is None else pending_cancellations(task)
        leaving = self._group.__aexit__(*exit_details(own))
        self._group = None  # now: interrupted before, it is left again
        try:
            swallowed = await leaving
            return own is not None and bool(swallowed)
        except BaseExceptionGroup as wrapped:  # Ctrl-C that hit the turn's task
            raise wrapped.exceptions[0] from None
        except BaseException as stopped:
            if exc is None or own is not None or not is_cancellation_type(stopped):
                raise
            is_native = anyio.current_effective_deadline() > -math.inf
            if is_native:  # a cancelled scope comes again by itself
                deliver_later(task, stopped, requests_before)
            return False
        finally:
            del exc, own

    def __aiter__(self) -> AsyncIterator[TurnEvent]:
        return self

    async def __anext__(self) -> TurnEvent:
        if not self._is_entered:
            raise SessionStateError("enter the stream first: `async with session.stream(...) as events:`")
        self.require_reader()
        self._is_read = True
        try:
            await self._begins()
            event, took_room = await self._receive.receive()
        except anyio.ClosedResourceError:
            raise SessionStateError("a stream is read inside its `async with` block; this one has been left") from None
        except anyio.EndOfStream:
            await anyio.lowlevel.checkpoint_if_cancelled()  # before a report that the turn was: we may have been, too
        else:
            if took_room:
                self._room.release()
            return event
        finally:
            self._is_read = False
        self._raise_error()
        raise StopAsyncIteration

    def require_reader(self) -> None:
        """Refuse a second reader, and one on another event loop."""
        if self._is_read:
            raise SessionStateError(
                "a stream has one reader, and another task is waiting for its next part; read it there only"
            )
        if self._is_entered and self._thread != threading.get_ident():
            raise SessionStateError("a stream is read on the event loop on which its turn runs; this is another thread")

    async def _begins(self) -> None:
        """On asyncio a task that is cancelled before its first step never makes it; waiting for its events would not end."""
        for _ in range(ROUNDS_TO_BEGIN):
            if not self._has_begun and not self.is_over:
                await anyio.lowlevel.checkpoint()
        if not self._has_begun and not self.is_over:
            self._end(self._turns.cancelled("its task was cancelled before it began"))

    def _raise_error(self) -> None:
        """Raise what the turn raised, once."""
        if self._error is not None:
            error, self._error = self._error, None
            try:
                raise error
            finally:
                del error  # an exception whose traceback has a frame that names it is a reference cycle

    async def _run(self, run: Callable[[], Awaitable[T]]) -> None:
        self._has_begun = True
        if self.is_over:  # it was withdrawn
            return
        send, unregister = self._send, list[Callable[[], None]]()

        async def pass_on(event: str, data: dict[str, Any]) -> None:
            # Terminal events are cut off after seconds, and must be emitted all the same.
            takes_room = event not in TERMINAL_EVENTS and self._room in _inside_streamed.get()
            if takes_room:
                await self._room.acquire()
            try:
                send.send_nowait((self._typed(event, data), takes_room))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return  # the consumer has left; the turn is being cancelled

        try:
            register = partial(self._hooks.register, name="session.stream", timeout=None)
            unregister.append(register(EVERY_EVENT, pass_on, priority=LAST))
            if not self._turns.loop_reports_pieces():  # providers of ours do so for those who ask for it by name
                unregister.append(register(LLM_STREAM_BLOCK_DELTA, _ask_for))
            _inside_streamed.set((*_inside_streamed.get(), self._room))  # in this task's own context
            with self._turn_scope:
                self.result = await run()
        except BaseException as exc:  # noqa: BLE001 — raised by the iteration
            if not is_real_cancellation(exc):
                self._error = exc
            elif (
                not self.is_left
            ):  # it ends with this task; if it was for this task alone, the consumer does not know of it
                self._error = self._turns.cancelled("its task was cancelled")
        finally:
            self.is_over = True
            for remove in unregister:
                remove()
            self._end(None)


# ── text ─────────────────────────────────────────────────────────────────────────────────────────


@final
class TextStream:
    """The text of one turn, piece by piece; made by ``session.stream_text``.

    The turn begins with the first piece that is asked for, and the iteration raises what it raises. A reader that is cancelled while
    it waits for a piece, the end of ``async with session.stream_text("prompt") as pieces``, and `aclose` stop it and return when it
    has unwound. A loop that is left with ``break`` or by an exception stops it when the stream is collected, on CPython at once
    unless there is another reference; the next turn waits for its end. As long as a reference is kept, the next turn is refused
    with a `SessionBusyError` that says so. With the session everything ends.

    Attributes:
        result: The turn's text, once it has ended.
    """

    def __init__(self, events: TurnStream[str], spawn: Spawn) -> None:
        self._events = events
        self._spawn = spawn
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
                self._thread = threading.get_ident()
                await self._events.start(self._spawn)
            while not self._is_over:
                try:
                    event = await anext(self._events)
                except StopAsyncIteration:
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

    async def aclose(self) -> None:
        """Stop the turn, unless it is over, and wait until it has unwound; idempotent."""
        self._is_over = True
        if self._thread:
            self._events.leave()
            if not self._events.is_over:
                await run_section(self._events.wait_over, name="amplifier end of a text stream", shield=True)

    def __del__(self) -> None:
        # The garbage collector may run in any thread; only the thread of the event loop may cancel.
        if self._thread == threading.get_ident():
            with suppress(Exception):  # if the event loop has ended, the turn has as well
                self._events.leave()


async def _ask_for(event: str, data: dict[str, Any]) -> None:
    pass


def _reader_of(answer_format: AnswerFormat[Any]) -> Callable[[], PartialAnswer]:
    from amplifier.answers import PartialAnswer  # noqa: PLC0415 — only typed answers need it

    return partial(PartialAnswer, answer_format)
