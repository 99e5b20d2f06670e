"""Streaming for providers: `StreamingProvider`, and what its ``stream()`` returns, a context manager and an iterator.

    async with provider.stream(request) as chunks:      as in the contract: closed at the end of the block
        async for chunk in chunks: …
    async for chunk in provider.stream(request): …      as in published loops: closes itself

Python does not notify an iterator when its loop ends early. An iterator that is exhausted, fails, or whose reader is cancelled
while it waits for the next chunk closes before the loop continues. One that is left between two chunks (``break``, ``return``, an
exception or a cancellation in the loop's body) is closed when it is garbage-collected: on CPython when the last reference goes,
usually at once. Closing needs await, so a background task of the session does it; streams that cannot be closed that way are
closed with the provider. No async generator is left to the garbage collector.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self, final
from uuid import uuid4

from amplifier.contracts import Coordinator
from amplifier.errors import ContractError
from amplifier.events import (
    LLM_STREAM_ABORTED,
    LLM_STREAM_BLOCK_DELTA,
    LLM_STREAM_BLOCK_END,
    LLM_STREAM_BLOCK_START,
)
from amplifier.models import ChatRequest, ChatResponse, StreamChunk, ToolCall, ToolCallBlock

logger = logging.getLogger("amplifier.modules.provider")

_ANNOUNCED = frozenset({LLM_STREAM_BLOCK_START, LLM_STREAM_BLOCK_DELTA, LLM_STREAM_BLOCK_END})
"""Events whose handlers want the pieces; hooks-redaction waits for the end of a stream that failed in any case."""
_PUBLISHED = {"tool_call": "tool_use", "reasoning": "thinking"}
"""The published names of block types."""

Manager = AbstractAsyncContextManager[AsyncIterator[StreamChunk]]


@final
class AnswerStreams:
    """Makes the streams of one provider and closes unfinished ones.

    Args:
        start_soon: The coordinator's; without it `aclose` closes unfinished streams.
    """

    def __init__(self, start_soon: Callable[..., None] | None = None) -> None:
        self._start_soon = start_soon
        self._open: set[Manager] = set()

    @classmethod
    def of(cls, coordinator: Any) -> Self:
        """With the coordinator's ``start_soon``; test doubles and coordinators of other kernels may have none."""
        found = getattr(coordinator, "start_soon", None)
        return cls(found if callable(found) else None)

    def stream(self, manager: Manager) -> AnswerStream:
        """The stream of one response.

        Args:
            manager: Opens and closes the call. It may be closed in another task than the one that opened it, so it holds no
                cancel scope open between two chunks.
        """
        return AnswerStream(self, manager)

    async def aclose(self) -> None:
        """Close unfinished streams; idempotent."""
        while self._open:
            await self._close(next(iter(self._open)))

    def _opened(self, manager: Manager) -> None:
        self._open.add(manager)

    def _take(self, manager: Manager) -> bool:
        """Whether it was open; the caller that gets True closes it."""
        if manager not in self._open:
            return False
        self._open.discard(manager)
        return True

    def _abandoned(self, manager: Manager) -> None:
        """Close a stream that has no reader. Called by the garbage collector: no await, no exception."""
        if self._start_soon is not None and manager in self._open:
            try:
                self._start_soon(self._close, manager, name="close an unfinished stream")
            except Exception as exc:  # noqa: BLE001 — a coordinator without a task group; `aclose` closes it
                logger.debug("an unfinished stream stays open until the provider is closed: %s", exc)

    async def _close(self, manager: Manager) -> None:
        if self._take(manager):
            try:
                await manager.__aexit__(None, None, None)
            except Exception as exc:  # no caller waits for it
                logger.warning("an unfinished stream could not be closed: %s", exc, exc_info=exc)


@final
class AnswerStream:
    """One streamed response; can be read once, as a context manager or as an iterator."""

    __slots__ = ("__weakref__", "_chunks", "_is_managed", "_is_over", "_manager", "_streams", "_thread")

    def __init__(self, streams: AnswerStreams, manager: Manager) -> None:
        self._streams = streams
        self._manager = manager
        self._chunks: AsyncIterator[StreamChunk] | None = None
        self._is_managed = False
        self._is_over = False
        self._thread = 0

    async def __aenter__(self) -> AsyncIterator[StreamChunk]:
        if self._chunks is not None or self._is_over:
            raise RuntimeError("a stream can be read once; call stream() again for another answer")
        self._is_managed = True
        self._chunks = await self._manager.__aenter__()
        return self._chunks

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        self._is_over = True
        return await self._manager.__aexit__(kind, exc, traceback)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamChunk:
        if self._is_over:
            raise StopAsyncIteration
        if self._is_managed and self._chunks is not None:
            return await anext(self._chunks)
        try:
            if self._chunks is None:
                self._chunks = await self._open()
            return await anext(self._chunks)
        except StopAsyncIteration:
            await self._leave(None)
            raise
        except BaseException as exc:
            await self._leave(exc)
            raise

    async def aclose(self) -> None:
        """Close the stream; idempotent."""
        await self._leave(None)

    def __del__(self) -> None:
        # The garbage collector may run in any thread; only the thread of the event loop may start a task.
        is_left = self._chunks is not None and not self._is_over and not self._is_managed
        if is_left and threading.get_ident() == self._thread:
            self._streams._abandoned(self._manager)

    async def _open(self) -> AsyncIterator[StreamChunk]:
        chunks = await self._manager.__aenter__()
        self._thread = threading.get_ident()
        self._streams._opened(self._manager)
        return chunks

    async def _leave(self, exc: BaseException | None) -> None:
        self._is_over = True
        if self._streams._take(self._manager):
            traceback = None if exc is None else exc.__traceback__
            await self._manager.__aexit__(None if exc is None else type(exc), exc, traceback)


def is_announced(hooks: Any, request: ChatRequest) -> bool:
    """Whether a handler waits for the published events of a stream by their name, and the request does not forbid them."""
    handlers = hooks.list_handlers() if hasattr(hooks, "list_handlers") else {}
    return not _ANNOUNCED.isdisjoint(handlers) and (request.metadata or {}).get("stream") is not False


class AnnouncedStream:
    """A stream that is also emitted as the published events ``llm:stream_*``; it holds no generator between two chunks."""

    def __init__(self, manager: Manager, hooks: Any) -> None:
        self._manager = manager
        self._emit = hooks.emit
        self._about = {"request_id": str(uuid4())}
        self._types: dict[int, str] = {}
        self._counts: Counter[int] = Counter()
        self._chunks: AsyncIterator[StreamChunk]

    async def __aenter__(self) -> Self:
        self._chunks = await self._manager.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> bool | None:
        return await self._manager.__aexit__(*exc)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamChunk:
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            raise
        except Exception as exc:
            if self._counts:
                error = {"type": type(exc).__name__, "msg": str(exc)}
                await self._emit(LLM_STREAM_ABORTED, {**self._about, "error": error})
            raise
        index, kind = chunk.index, _PUBLISHED.get(chunk.block_type or "", chunk.block_type or "")
        about: dict[str, Any] = {**self._about, "block_index": index, "block_type": self._types.get(index, kind)}
        if chunk.kind == "block_start":
            self._types[index] = kind
            name = {} if chunk.tool_name is None else {"name": chunk.tool_name}
            await self._emit(LLM_STREAM_BLOCK_START, {**about, "block_type": kind, **name})
        elif chunk.kind == "block_delta" and chunk.text and about["block_type"] != "tool_use":
            await self._emit(LLM_STREAM_BLOCK_DELTA, {**about, "sequence": self._counts[index], "text": chunk.text})
            self._counts[index] += 1
        elif chunk.kind == "block_end":
            await self._emit(LLM_STREAM_BLOCK_END, about)
        return chunk


class StreamingProvider(ABC):
    """`complete`, `stream` and `parse_tool_calls` over one exchange per request; there is no second path.

    Args:
        coordinator: For events, and for closing unfinished streams.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._hooks = coordinator.hooks
        self._streams = AnswerStreams.of(coordinator)

    @property
    @abstractmethod
    def name(self) -> str:
        """The name it is mounted under."""

    @abstractmethod
    def _exchange(self, request: ChatRequest, kwargs: dict[str, Any]) -> Manager:
        """Open one call, and close it in the end; the request must not be changed."""

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        """Send a request and wait for the whole response.

        Args:
            request: The conversation and its options.
            kwargs: Services take ``model``, ``max_tokens``, ``temperature``, ``top_p``, ``reasoning_effort``, ``tool_choice``
                and ``timeout``, which take precedence over the request; others are ignored.

        Raises:
            LLMError: The call failed.
        """
        async with self.stream(request, **kwargs) as chunks:
            async for chunk in chunks:
                if chunk.response is not None:
                    return chunk.response
        raise ContractError(f"provider {self.name!r} ended its stream without a response", module=self.name)

    def stream(self, request: ChatRequest, **kwargs: Any) -> AnswerStream:
        """Send a request and stream the response; the last chunk has the whole of it, leaving early closes the call.

        Args:
            request: As for `complete`.
            kwargs: As for `complete`.

        Raises:
            LLMError: The call failed, on entering or while reading chunks.
        """
        exchange = self._exchange(request, kwargs)
        if is_announced(self._hooks, request):
            exchange = AnnouncedStream(exchange, self._hooks)
        return self._streams.stream(exchange)

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        """The tool calls of a response; if it lists none, those among its content blocks."""
        return list(response.tool_calls) if response.tool_calls is not None else calls_among(response.content)

    async def aclose(self) -> None:
        """Close unfinished streams; idempotent."""
        await self._streams.aclose()


def calls_among(blocks: Iterable[Any]) -> list[ToolCall]:
    """The tool calls among content blocks."""
    return [
        ToolCall(id=block.id, name=block.name, arguments=block.input)
        for block in blocks
        if isinstance(block, ToolCallBlock)
    ]
