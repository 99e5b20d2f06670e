"""A turn as a stream of typed events, for embedders.

    async with session.stream("prompt") as events:
        async for event in events:
            ...
    events.result

A context manager, not an async generator: nothing is ever yielded inside a task group, so leaving early is safe. It cancels the turn
and returns when the turn has unwound. An exception of the block leaves as it is, also when the block is cancelled meanwhile; that
cancellation is delivered at the next await.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, final

import anyio

from amplifier.contracts._containment import is_cancellation_type, is_real_cancellation, running_asyncio_loop
from amplifier.errors import ExecutionCancelled, SessionStateError
from amplifier.events import (
    CONTENT_BLOCK_DELTA,
    CONTENT_BLOCK_START,
    PROVIDER_REQUEST,
    TERMINAL_EVENTS,
    THINKING_DELTA,
    TOOL_ERROR,
    TOOL_POST,
    TOOL_PRE,
)
from amplifier.models import ResultDelta, TextDelta, ThinkingDelta, ToolFinished, ToolStarted, TurnEvent

from ..hooks.registry import EVERY_EVENT, HookRegistry
from ..runtime.backend import current_raw_task
from ..runtime.sections import deliver_later, pending_cancellations

if TYPE_CHECKING:  # a twentieth of importing the package, for types only
    from anyio.abc import TaskGroup
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from amplifier.answers import AnswerFormat, PartialAnswer

T = TypeVar("T")

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
    as `ResultDelta`. The iteration ends with the turn, and raises what the turn raised. Leaving the block before that cancels the turn.
    A stream can be entered once.

    Attributes:
        result: The turn's text, or its value if a type was asked for, once it has ended.
    """

    def __init__(
        self,
        claim: Callable[[Callable[[ExecutionCancelled], None]], Callable[[], Awaitable[T]]],
        release: Callable[[], None],
        hooks: HookRegistry,
        *,
        answer_format: AnswerFormat[T] | None = None,
    ) -> None:
        # Claims the session for the turn, which can be withdrawn until it begins; returns what runs it and gives the session back.
        self._claim = claim
        self._release = release
        self._hooks = hooks
        self._group: TaskGroup | None = None
        self._receive: MemoryObjectReceiveStream[tuple[TurnEvent, bool]] | None = None
        # While the session is claimed and the turn not begun.
        self._send: MemoryObjectSendStream[tuple[TurnEvent, bool]] | None = None
        self._room = anyio.Semaphore(BUFFERED)
        self._error: BaseException | None = None
        self._finished = False
        self._typed = _typed if answer_format is None else _TypedAnswerEvents(answer_format)
        self.result: T | None = None

    async def __aenter__(self) -> Self:
        if self._group is not None:
            raise SessionStateError("a stream can be entered once; call session.stream(...) again for another turn")
        send, self._receive = anyio.create_memory_object_stream[tuple[TurnEvent, bool]](math.inf)
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        try:
            run = self._claim(
                self._withdraw
            )  # in the caller's own step: whoever comes next must see that the session is taken
        except Exception as exc:  # noqa: BLE001 — raised from the iteration, as what the turn raises
            self._error = exc
            self._finished = True
            send.close()
            return self
        self._send = send
        self._group.start_soon(self._run, run, send)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        assert self._group is not None
        assert self._receive is not None
        self._receive.close()
        if not self._finished:
            self._group.cancel_scope.cancel()
        try:
            swallowed = await self._leave(exc)
            if exc is None:
                self._raise_error()
        finally:
            exc = self._error = None  # an exception that names its own frame is a reference cycle
            self._give_back()  # on asyncio a task that is cancelled before its first step does not run at all
        return swallowed

    def _give_back(self) -> None:
        """Give the session back, if the turn has not begun."""
        if self._send is not None:
            self._send.close()
            self._send = None
            self._release()

    def _withdraw(self, reason: ExecutionCancelled) -> None:
        """The turn has not begun and must not any more."""
        self._error = reason
        self._finished = True
        self._give_back()

    async def _leave(self, exc: BaseException | None) -> bool:
        assert self._group is not None
        if isinstance(exc, anyio.get_cancelled_exc_class()):
            try:
                return bool(await self._group.__aexit__(type(exc), exc, exc.__traceback__))
            finally:
                del exc
        # The group would wrap the body's error; it is re-raised as it is by returning False.
        task = current_raw_task()
        requests_before = 0 if running_asyncio_loop() is None else pending_cancellations(task)
        try:
            await self._group.__aexit__(None, None, None)
        except BaseException as stopped:
            if exc is None or not is_cancellation_type(stopped):
                raise
            is_native = anyio.current_effective_deadline() > -math.inf
            if is_native:  # a cancelled scope comes again by itself
                deliver_later(task, stopped, requests_before)
        return False

    def __aiter__(self) -> AsyncIterator[TurnEvent]:
        return self

    async def __anext__(self) -> TurnEvent:
        if self._receive is None:
            raise SessionStateError("enter the stream first: `async with session.stream(...) as events:`")
        try:
            event, took_room = await self._receive.receive()
        except anyio.ClosedResourceError:
            raise SessionStateError("a stream is read inside its `async with` block; this one has been left") from None
        except anyio.EndOfStream:
            pass
        else:
            if took_room:
                self._room.release()
            return event
        self._raise_error()
        raise StopAsyncIteration

    def _raise_error(self) -> None:
        """Raise what the turn raised, once."""
        if self._error is not None:
            error, self._error = self._error, None
            try:
                raise error
            finally:
                del error  # an exception whose traceback has a frame that names it is a reference cycle

    async def _run(self, run: Callable[[], Awaitable[T]], send: MemoryObjectSendStream[tuple[TurnEvent, bool]]) -> None:
        if self._finished:  # it was withdrawn
            return

        async def pass_on(event: str, data: dict[str, Any]) -> None:
            # Terminal events are cut off after seconds, and must be in the story all the same.
            takes_room = event not in TERMINAL_EVENTS and self._room in _inside_streamed.get()
            if takes_room:
                await self._room.acquire()
            try:
                send.send_nowait((self._typed(event, data), takes_room))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return  # the consumer has left; the turn is being cancelled

        unregister = self._hooks.register(EVERY_EVENT, pass_on, priority=LAST, name="session.stream", timeout=None)
        _inside_streamed.set((*_inside_streamed.get(), self._room))  # in this task's own context
        try:
            self._send = None  # the turn gives the session back
            self.result = await run()
        except BaseException as exc:  # noqa: BLE001 — raised by the iteration
            # A cancellation ends with this task, for which it was. Raised from here it would be a reference cycle with the group.
            if not is_real_cancellation(exc):
                self._error = exc
        finally:
            self._finished = True
            unregister()
            send.close()


def _typed(event: str, data: dict[str, Any]) -> TurnEvent:
    """The event as its own class where embedders look for it, else as a plain one."""
    if event == CONTENT_BLOCK_DELTA and data.get("block_type") == "text":
        return TextDelta(name=event, data=data, text=str(data.get("delta") or ""))
    if event == THINKING_DELTA:
        return ThinkingDelta(name=event, data=data, text=str(data.get("delta") or ""))
    if event == TOOL_PRE:
        return ToolStarted(name=event, data=data, **_call(data), tool_input=_as_dict(data.get("tool_input")))
    if event in (TOOL_POST, TOOL_ERROR):
        result = _as_dict(data.get("result"))
        success = event == TOOL_POST and bool(result.get("success", True))
        return ToolFinished(name=event, data=data, **_call(data), success=success)
    return TurnEvent(name=event, data=data)


class _TypedAnswerEvents:
    """Makes typed events of a turn with a typed answer, which is read as far as it has arrived.

    The answer is the model's text, or the input of a tool call whose ``content_block:start`` has ``is_answer`` in its metadata.
    """

    def __init__(self, answer_format: AnswerFormat[Any]) -> None:
        self._format = answer_format
        self._answer: PartialAnswer | None = None
        self._block: Any = None  # the index of the tool call

    def __call__(self, event: str, data: dict[str, Any]) -> TurnEvent:
        made = _typed(event, data)
        if event == PROVIDER_REQUEST:
            self._answer = self._block = None  # the next model call answers anew
        elif event == CONTENT_BLOCK_START and _as_dict(data.get("metadata")).get("is_answer") is True:
            self._answer, self._block = None, data.get("block_index")
        elif event == CONTENT_BLOCK_DELTA:
            is_text = isinstance(made, TextDelta)
            if is_text if self._block is None else data.get("block_index") == self._block:
                return self._read(made, str(data.get("delta") or ""))
        return made

    def _read(self, made: TurnEvent, text: str) -> TurnEvent:
        if self._answer is None:
            from amplifier.answers import PartialAnswer  # noqa: PLC0415 — only typed answers need it

            self._answer = PartialAnswer(self._format)
        if self._answer.add(text):
            return ResultDelta(name=made.name, data=made.data, text=text, value=self._answer.value)
        return made


def _call(data: dict[str, Any]) -> dict[str, str]:
    return {"tool_name": str(data.get("tool_name") or ""), "tool_call_id": str(data.get("tool_call_id") or "")}


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
