"""Streaming for providers: the base class, and the streams that its ``stream()`` returns."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, Self, TypeAlias, final
from uuid import uuid4

import anyio
import attrs

from amplifier._internal.json import JSON
from amplifier.contracts import Coordinator, Hooks
from amplifier.errors import ContractError, LLMError, StreamError
from amplifier.events import (
    LLM_REQUEST,
    LLM_RESPONSE,
    LLM_STREAM_ABORTED,
    LLM_STREAM_BLOCK_DELTA,
    LLM_STREAM_BLOCK_END,
    LLM_STREAM_BLOCK_START,
)
from amplifier.models import ChatRequest, ChatResponse, StreamChunk, ToolCall, ToolCallBlock, Usage

logger = logging.getLogger("amplifier.modules.provider")

# `LLM_STREAM_ABORTED` is missing, because a handler for it alone does not need the pieces.
_PIECE_EVENTS = frozenset({LLM_STREAM_BLOCK_START, LLM_STREAM_BLOCK_DELTA, LLM_STREAM_BLOCK_END})
# The names of block types in events, where they differ from ours.
_PUBLISHED = {"tool_call": "tool_use", "reasoning": "thinking"}

Chunks: TypeAlias = AsyncGenerator[StreamChunk, None]
Manager: TypeAlias = AbstractAsyncContextManager[AsyncIterator[StreamChunk]]

# A stream is a context manager and an iterator:
#
#     async with provider.stream(request) as chunks:    # The contract: the block closes it.
#         async for chunk in chunks: …
#     async for chunk in provider.stream(request): …    # Published loops: it closes itself.
#
# Each call is one async generator. It holds no cancel scope between two chunks, so that another
# task may close it. An iterator closes itself at its end, when it fails, and when its reader is
# cancelled while waiting for the next chunk.
#
# Python does not notify an iterator when its loop ends early, by ``break``, ``return``, an
# exception or a cancellation in the loop's body. Such an iterator is closed when it is collected,
# which CPython does when the last reference disappears. Closing has to await, so a background task
# of the session closes the stream. If no task can be started, the stream is closed with the
# provider. So no async generator is left to the garbage collector.


@attrs.define(eq=False)
class _Call:
    """One call, and the wait of a task that reads its next chunk.

    Attributes:
        manager: Its exit closes the call.
        waiting: The scope of the wait, or None while no task waits.
        left: Set when the wait has ended, for another task that closes the call.
    """

    manager: Manager
    waiting: anyio.CancelScope | None = None
    left: anyio.Event | None = None

    async def aclose(self, *details: Any) -> None:
        """Close the call, after ending the wait of any task for its next chunk."""
        while self.waiting is not None:
            self.left = self.left or anyio.Event()
            self.waiting.cancel()
            await self.left.wait()
        await self.manager.__aexit__(*(details or (None, None, None)))


@final
class AnswerStreams:
    """Makes the streams of one provider and closes unfinished ones.

    Args:
        coordinator: Its ``start_soon`` closes streams in the background. Without that method, as in
            test doubles and other kernels, only `aclose` closes them.
    """

    def __init__(self, coordinator: Any = None) -> None:
        self._start_soon: Callable[..., None] | None = getattr(coordinator, "start_soon", None)
        self._open: set[_Call] = set()

    def stream(self, call: Chunks | Manager) -> AnswerStream:
        """Return the stream of one response.

        Args:
            call: A generator of chunks that holds no cancel scope between two of them, so that
                another task may close it. Alternatively, a context manager that the block around
                the stream enters and exits.
        """
        return AnswerStream(self, aclosing(call) if isinstance(call, AsyncGenerator) else call)

    async def aclose(self) -> None:
        """Close unfinished streams. Repeated calls are allowed."""
        while self._open:
            await self._close(next(iter(self._open)))

    def _take(self, call: _Call) -> bool:
        """Remove a call, and return True if it was open. In that case the caller must close it."""
        if call not in self._open:
            return False
        self._open.discard(call)
        return True

    def _abandoned(self, call: _Call) -> None:
        """Close a stream without a reader.

        The garbage collector calls this, so it must not await or raise.
        """
        if self._start_soon is not None and call in self._open:
            try:
                self._start_soon(self._close, call, name="close an unfinished stream")
            # The coordinator may have no task group. Then `aclose` closes the stream.
            except Exception as exc:  # noqa: BLE001
                logger.debug(
                    "an unfinished stream stays open until the provider is closed: %s", exc
                )

    async def _close(self, call: _Call) -> None:
        if self._take(call):
            try:
                await call.aclose()
            # No caller would receive the failure.
            except Exception as exc:
                logger.warning("an unfinished stream could not be closed: %s", exc, exc_info=exc)


@final
class AnswerStream:
    """A streamed response. It can be read once, as a context manager or as an iterator."""

    __slots__ = (
        "__weakref__",
        "_call",
        "_chunks",
        "_is_cancelled",
        "_is_managed",
        "_is_over",
        "_streams",
        "_thread",
    )

    def __init__(self, streams: AnswerStreams, manager: Manager) -> None:
        self._streams = streams
        self._call = _Call(manager)
        self._chunks: AsyncIterator[StreamChunk] | None = None
        self._is_managed = False
        self._is_cancelled = False
        self._is_over = False
        # The thread of the event loop that reads this stream as an iterator.
        self._thread = 0

    async def __aenter__(self) -> Self:
        if self._chunks is not None or self._is_over:
            raise RuntimeError("a stream can be read once; call stream() again for another answer")
        self._is_managed = True
        self._chunks = await self._call.manager.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> bool | None:
        self._is_over = True
        return await self._call.manager.__aexit__(*details)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamChunk:
        if self._is_over:
            raise StopAsyncIteration
        if not self._is_managed or self._chunks is None:
            return await self._read()
        # The cancellation has already closed the generator.
        if self._is_cancelled:
            raise StreamError("the stream ended early, because a read of it was cancelled")
        try:
            return await anext(self._chunks)
        except Exception:
            raise
        except BaseException:
            self._is_cancelled = True
            raise

    async def _read(self) -> StreamChunk:
        """Return the next chunk of a stream that closes itself, without a block around it."""
        call = self._call
        try:
            if self._chunks is None:
                self._chunks = await call.manager.__aenter__()
                self._thread = threading.get_ident()
                self._streams._open.add(call)
            call.waiting = anyio.CancelScope()
            try:
                with call.waiting:
                    return await anext(self._chunks)
            finally:
                call.waiting = None
                if call.left is not None:
                    call.left.set()
            raise StreamError("the stream was closed while it was being read")
        except StopAsyncIteration:
            await self._leave()
            raise
        except BaseException as exc:
            await self._leave(type(exc), exc, exc.__traceback__)
            raise

    async def aclose(self) -> None:
        """Close the stream, even while another task reads it. Repeated calls are allowed."""
        await self._leave()

    async def _leave(self, *details: Any) -> None:
        self._is_over = True
        if self._streams._take(self._call):
            await self._call.aclose(*details)

    def __del__(self) -> None:
        # The garbage collector may run in any thread, but only the thread of the event loop may
        # start a task.
        is_left = self._chunks is not None and not self._is_over and not self._is_managed
        if is_left and threading.get_ident() == self._thread:
            self._streams._abandoned(self._call)


def is_announced(hooks: Hooks, request: ChatRequest) -> bool:
    """Check whether a handler needs the events of a stream, and the request allows them.

    A handler that is registered for all events does not count.
    """
    handlers = hooks.list_handlers() if hasattr(hooks, "list_handlers") else {}
    is_allowed = (request.metadata or {}).get("stream") is not False
    return is_allowed and not _PIECE_EVENTS.isdisjoint(handlers)


async def announced(chunks: Chunks, hooks: Hooks) -> Chunks:
    """Yield the chunks of a stream, and emit them as the events ``llm:stream_*``."""
    request = {"request_id": str(uuid4())}
    types: dict[int, str] = {}
    counts: Counter[int] = Counter()
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                index, kind = (
                    chunk.index,
                    _PUBLISHED.get(chunk.block_type or "", chunk.block_type or ""),
                )
                about: dict[str, JSON] = {
                    **request,
                    "block_index": index,
                    "block_type": types.get(index, kind),
                }
                if chunk.kind == "block_start":
                    types[index] = kind
                    name = {} if chunk.tool_name is None else {"name": chunk.tool_name}
                    await hooks.emit(LLM_STREAM_BLOCK_START, {**about, "block_type": kind, **name})
                elif (
                    chunk.kind == "block_delta" and chunk.text and about["block_type"] != "tool_use"
                ):
                    await hooks.emit(
                        LLM_STREAM_BLOCK_DELTA,
                        {**about, "sequence": counts[index], "text": chunk.text},
                    )
                    counts[index] += 1
                elif chunk.kind == "block_end":
                    await hooks.emit(LLM_STREAM_BLOCK_END, about)
                yield chunk
    except Exception as exc:
        if counts:
            error = {"type": type(exc).__name__, "msg": str(exc)}
            await hooks.emit(LLM_STREAM_ABORTED, {**request, "error": error})
        raise


class StreamingProvider(ABC):
    """The base of providers. Subclasses implement a generator of chunks for a request.

    Args:
        coordinator: Receives the events, and closes unfinished streams.
        raw: Whether events contain the whole request and response.
    """

    def __init__(self, coordinator: Coordinator, *, raw: bool = False) -> None:
        self._hooks = coordinator.hooks
        self._streams = AnswerStreams(coordinator)
        self._raw = raw

    @property
    @abstractmethod
    def name(self) -> str:
        """The name under which the provider is mounted."""

    @abstractmethod
    def _chunks(self, request: ChatRequest, kwargs: dict[str, JSON]) -> Chunks:
        """Make one call without changing the request. The last chunk contains the response."""

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        """Send a request and wait for the whole response.

        Args:
            request: The conversation and its options.
            kwargs: Services accept ``model``, ``max_tokens``, ``temperature``, ``top_p``,
                ``reasoning_effort``, ``tool_choice`` and ``timeout``, which take precedence over
                the request. Other keywords are ignored.

        Raises:
            LLMError: The call failed.
        """
        async with self.stream(request, **kwargs) as chunks:
            async for chunk in chunks:
                if chunk.response is not None:
                    return chunk.response
        raise ContractError(
            f"provider {self.name!r} ended its stream without a response", module=self.name
        )

    def stream(self, request: ChatRequest, **kwargs: Any) -> AnswerStream:
        """Send a request and stream the response.

        The last chunk contains the whole response. Exiting the stream early closes the call.

        Args:
            request: As for `complete`.
            kwargs: As for `complete`.

        Raises:
            LLMError: The call failed. This is raised while the chunks are read.
        """
        chunks = self._chunks(request, kwargs)
        return self._streams.stream(
            announced(chunks, self._hooks) if is_announced(self._hooks, request) else chunks
        )

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        """Return the tool calls of a response, from its list or else its content blocks."""
        return (
            list(response.tool_calls)
            if response.tool_calls is not None
            else calls_among(response.content)
        )

    async def aclose(self) -> None:
        """Close unfinished streams. Repeated calls are allowed."""
        await self._streams.aclose()

    async def _emit_request(
        self, model: str, request: ChatRequest, sent: Callable[[], Any]
    ) -> None:
        about: dict[str, JSON] = {
            "provider": self.name,
            "model": model,
            "message_count": len(request.messages),
        }
        await self._hooks.emit(LLM_REQUEST, {**about, "raw": sent()} if self._raw else about)

    async def _emit_response(
        self,
        model: str,
        began: float,
        received: Any,
        *,
        usage: Usage | None = None,
        error: LLMError | None = None,
    ) -> None:
        about: dict[str, JSON] = {
            "provider": self.name,
            "model": model,
            "duration_ms": round((anyio.current_time() - began) * 1000),
            "status": "ok" if error is None else "error",
        }
        if usage is not None:
            names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
            counted = {name: count for name in names if (count := getattr(usage, name)) is not None}
            about["usage"] = {
                **counted,
                "cost_usd": None if usage.cost_usd is None else str(usage.cost_usd),
            }
        if error is not None:
            about["error"] = {
                "type": type(error).__name__,
                "message": str(error),
                "retryable": error.retryable,
            }
        await self._hooks.emit(LLM_RESPONSE, {**about, "raw": received} if self._raw else about)


def calls_among(blocks: Iterable[Any]) -> list[ToolCall]:
    """Return the tool calls among content blocks."""
    return [
        ToolCall(id=block.id, name=block.name, arguments=block.input)
        for block in blocks
        if isinstance(block, ToolCallBlock)
    ]
