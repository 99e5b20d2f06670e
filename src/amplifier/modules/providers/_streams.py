"""Streaming for providers: `StreamingProvider`, and what its ``stream()`` returns, a context manager and an iterator.

    async with provider.stream(request) as chunks:      as in the contract: closed at the end of the block
        async for chunk in chunks: …
    async for chunk in provider.stream(request): …      as in published loops: closes itself

Each call is one async generator, which holds no cancel scope between two chunks, so that another task may close it. It closes itself
when it is exhausted, fails, or its reader is cancelled while it waits for the next chunk. Python does not notify an iterator when its
loop ends early, so one that is left between two chunks (``break``, or a cancellation in the loop's body) is closed when the iterator is
garbage-collected, on CPython at once: by a background task of the session, or else with the provider.
"""

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

from amplifier.contracts import Coordinator
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

_ANNOUNCED = frozenset({LLM_STREAM_BLOCK_START, LLM_STREAM_BLOCK_DELTA, LLM_STREAM_BLOCK_END})
"""Events whose handlers want the pieces; hooks-redaction waits for the end of a stream that failed in any case."""
_PUBLISHED = {"tool_call": "tool_use", "reasoning": "thinking"}
"""The published names of block types."""

Chunks: TypeAlias = AsyncGenerator[StreamChunk, None]
Manager: TypeAlias = AbstractAsyncContextManager[AsyncIterator[StreamChunk]]


@final
class Unfinished:
    """The streams of one provider that are read without a block around them.

    Args:
        coordinator: Its ``start_soon`` closes those that were left; coordinators of other kernels may have none, then `aclose` does.
    """

    def __init__(self, coordinator: Any = None) -> None:
        self._start_soon: Callable[..., None] | None = getattr(coordinator, "start_soon", None)
        self._open: set[Manager] = set()

    def add(self, manager: Manager) -> None:
        """Its reader has begun."""
        self._open.add(manager)

    async def close(self, manager: Manager, *details: Any) -> None:
        """Close a stream, unless another caller has."""
        if manager in self._open:
            self._open.discard(manager)
            await manager.__aexit__(*(details or (None, None, None)))

    def abandon(self, manager: Manager) -> None:
        """It has no reader any more. Called by the garbage collector: no await, no exception."""
        if self._start_soon is not None and manager in self._open:
            try:
                self._start_soon(self._close_left, manager, name="close an unfinished stream")
            except Exception as exc:  # noqa: BLE001 — a coordinator without a task group; `aclose` closes it
                logger.debug("an unfinished stream stays open until the provider is closed: %s", exc)

    async def aclose(self) -> None:
        """Close all; idempotent."""
        while self._open:
            await self._close_left(next(iter(self._open)))

    async def _close_left(self, manager: Manager) -> None:
        try:
            await self.close(manager)
        except Exception as exc:  # no caller waits for it
            logger.warning("an unfinished stream could not be closed: %s", exc, exc_info=exc)


@final
class AnswerStream:
    """One streamed response; can be read once, as a context manager or as an iterator.

    Args:
        call: A generator of its chunks, or a context manager, entered and left by the block around the stream.
        unfinished: Where it is as long as it is read without a block.
    """

    def __init__(self, call: Chunks | Manager, unfinished: Unfinished) -> None:
        self._manager: Manager = aclosing(call) if isinstance(call, AsyncGenerator) else call
        self._unfinished = unfinished
        self._chunks: AsyncIterator[StreamChunk] | None = None
        self._is_managed = self._is_cut_off = self._is_over = False
        self._thread = 0  # that of an iterator

    async def __aenter__(self) -> Self:
        if self._chunks is not None or self._is_over:
            raise RuntimeError("a stream can be read once; call stream() again for another answer")
        self._is_managed = True
        self._chunks = await self._manager.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> bool | None:
        self._is_over = True
        return await self._manager.__aexit__(*details)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamChunk:
        if self._is_over:
            raise StopAsyncIteration
        if self._is_cut_off:  # which has closed the generator
            raise StreamError("the stream ended before the answer did: a read of it was cancelled")
        try:
            if self._chunks is None:
                self._chunks = await self._manager.__aenter__()
                self._thread = threading.get_ident()
                self._unfinished.add(self._manager)
            return await anext(self._chunks)
        except BaseException as exc:
            self._is_cut_off = not isinstance(exc, Exception)
            if not self._is_managed:
                is_end = isinstance(exc, StopAsyncIteration)
                await self._leave(*(() if is_end else (type(exc), exc, exc.__traceback__)))
            raise

    async def aclose(self) -> None:
        """Close the stream; idempotent."""
        await self._leave()

    async def _leave(self, *details: Any) -> None:
        self._is_over = True
        await self._unfinished.close(self._manager, *details)

    def __del__(self) -> None:
        # The garbage collector may run in any thread; only the thread of the event loop may start a task.
        if not self._is_over and threading.get_ident() == self._thread:
            self._unfinished.abandon(self._manager)


def is_announced(hooks: Any, request: ChatRequest) -> bool:
    """Whether a handler waits for the published events of a stream by their name, and the request does not forbid them."""
    handlers = hooks.list_handlers() if hasattr(hooks, "list_handlers") else {}
    return not _ANNOUNCED.isdisjoint(handlers) and (request.metadata or {}).get("stream") is not False


async def announced(chunks: Chunks, hooks: Any) -> Chunks:
    """The same stream, which is also emitted as the published events ``llm:stream_*``."""
    request = {"request_id": str(uuid4())}
    types: dict[int, str] = {}
    counts: Counter[int] = Counter()
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                index, kind = chunk.index, _PUBLISHED.get(chunk.block_type or "", chunk.block_type or "")
                about: dict[str, Any] = {**request, "block_index": index, "block_type": types.get(index, kind)}
                if chunk.kind == "block_start":
                    types[index] = kind
                    name = {} if chunk.tool_name is None else {"name": chunk.tool_name}
                    await hooks.emit(LLM_STREAM_BLOCK_START, {**about, "block_type": kind, **name})
                elif chunk.kind == "block_delta" and chunk.text and about["block_type"] != "tool_use":
                    await hooks.emit(LLM_STREAM_BLOCK_DELTA, {**about, "sequence": counts[index], "text": chunk.text})
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
    """`complete`, `stream` and `parse_tool_calls` over one generator of chunks per request; there is no second path.

    Args:
        coordinator: For events, and for closing unfinished streams.
        raw: Whether events carry the whole request and response.
    """

    def __init__(self, coordinator: Coordinator, *, raw: bool = False) -> None:
        self._hooks = coordinator.hooks
        self._unfinished = Unfinished(coordinator)
        self._raw = raw

    @property
    @abstractmethod
    def name(self) -> str:
        """The name it is mounted under."""

    @abstractmethod
    def _chunks(self, request: ChatRequest, kwargs: dict[str, Any]) -> Chunks:
        """Make one call; the last chunk has the response. The request must not be changed."""

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
            LLMError: The call failed, while reading chunks.
        """
        chunks = self._chunks(request, kwargs)
        if is_announced(self._hooks, request):
            chunks = announced(chunks, self._hooks)
        return AnswerStream(chunks, self._unfinished)

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        """The tool calls of a response; if it lists none, those among its content blocks."""
        return list(response.tool_calls) if response.tool_calls is not None else calls_among(response.content)

    async def aclose(self) -> None:
        """Close unfinished streams; idempotent."""
        await self._unfinished.aclose()

    async def _emit_request(self, model: str, request: ChatRequest, sent: Callable[[], Any]) -> None:
        about: dict[str, Any] = {"provider": self.name, "model": model, "message_count": len(request.messages)}
        await self._hooks.emit(LLM_REQUEST, {**about, "raw": sent()} if self._raw else about)

    async def _emit_response(
        self, model: str, began: float, received: Any, *, usage: Usage | None = None, error: LLMError | None = None
    ) -> None:
        about: dict[str, Any] = {
            "provider": self.name,
            "model": model,
            "duration_ms": round((anyio.current_time() - began) * 1000),
            "status": "ok" if error is None else "error",
        }
        if usage is not None:
            names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
            counted = {name: count for name in names if (count := getattr(usage, name)) is not None}
            about["usage"] = {**counted, "cost_usd": None if usage.cost_usd is None else str(usage.cost_usd)}
        if error is not None:
            about["error"] = {"type": type(error).__name__, "message": str(error), "retryable": error.retryable}
        await self._hooks.emit(LLM_RESPONSE, {**about, "raw": received} if self._raw else about)


def calls_among(blocks: Iterable[Any]) -> list[ToolCall]:
    """The tool calls among content blocks."""
    return [
        ToolCall(id=block.id, name=block.name, arguments=block.input)
        for block in blocks
        if isinstance(block, ToolCallBlock)
    ]
