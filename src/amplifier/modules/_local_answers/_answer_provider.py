"""Base class of providers that know the whole answer at once and stream it in pieces.

`complete` collects `stream`; there is no second path. Nothing of a request is kept.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from decimal import Decimal
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import attrs

from amplifier._json import canonical_dumps
from amplifier.contracts import Coordinator
from amplifier.errors import ContractError, LLMError
from amplifier.events import LLM_REQUEST, LLM_RESPONSE
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    ModelInfo,
    ProviderInfo,
    ReasoningBlock,
    StreamChunk,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolCallBlock,
    to_dict,
)

from .._llm_provider import AnswerStream, AnswerStreams, start_soon_of
from ._text_pieces import pieces_of

logger = logging.getLogger("amplifier.modules.providers")


@attrs.frozen(kw_only=True)
class Answer:
    """The answer to one request.

    Attributes:
        response: The whole answer.
        pieces: The pieces of each block, by its index; a block without an entry is split at words.
        pause: Seconds before each piece.
        error: Raised after the last piece, in place of the response, for a stream that breaks off.
        chunks: The stream without the response, if it was recorded; None to make it from the response.
    """

    response: ChatResponse
    pieces: dict[int, list[str]] = attrs.field(factory=dict)
    pause: float = 0.0
    error: LLMError | None = None
    chunks: Sequence[StreamChunk] | None = None


class LocalAnswerProvider(ABC):
    """Streams answers and emits the events of each request; subclasses make the answers.

    Args:
        coordinator: For events.
        raw: Whether events carry the whole request and response.
    """

    _name: str
    _title: ClassVar[str]
    _model: str
    _context_window: ClassVar[int] = 200_000
    _max_output_tokens: ClassVar[int] = 8_192
    _capabilities: ClassVar[tuple[str, ...]] = ("tools", "streaming")

    def __init__(self, coordinator: Coordinator, *, raw: bool = False) -> None:
        self._coordinator = coordinator
        self._raw = raw
        self._streams = AnswerStreams(start_soon_of(coordinator))

    @property
    def name(self) -> str:
        """The name that it is mounted under."""
        return self._name

    def get_info(self) -> ProviderInfo:
        """Describe the provider; it needs no credentials."""
        return ProviderInfo(
            id=self._name,
            display_name=self._title,
            capabilities=list(self._capabilities),
            defaults={
                "model": self._model,
                "context_window": self._context_window,
                "max_output_tokens": self._max_output_tokens,
            },
        )

    async def list_models(self) -> list[ModelInfo]:
        """List the only model."""
        return [
            ModelInfo(
                id=self._model,
                display_name=self._title,
                context_window=self._context_window,
                max_output_tokens=self._max_output_tokens,
                capabilities=list(self._capabilities),
            )
        ]

    def estimate_cost(self, request: ChatRequest, **kwargs: Any) -> Decimal | None:
        """Answers that are made in this process cost nothing."""
        return Decimal(0)

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        """Collect the stream.

        Raises:
            LLMError: The answer is an error.
        """
        async with self.stream(request, **kwargs) as chunks:
            async for chunk in chunks:
                if chunk.response is not None:
                    return chunk.response
        raise ContractError(f"{self._name} ended its stream without a response", module=self._name)

    def stream(self, request: ChatRequest, **kwargs: Any) -> AnswerStream:
        """Stream the answer in pieces; the last chunk has the whole response.

        Raises:
            LLMError: The answer is an error, while the chunks are read.
        """
        return self._streams.stream(self._stream(request))

    async def aclose(self) -> None:
        """Close unfinished streams; a second call does nothing."""
        await self._streams.aclose()

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        """Return the calls of a response; for one without `tool_calls`, those in its blocks."""
        if response.tool_calls is not None:
            return list(response.tool_calls)
        blocks = [block for block in response.content if isinstance(block, ToolCallBlock)]
        return [ToolCall(id=block.id, name=block.name, arguments=block.input) for block in blocks]

    @abstractmethod
    async def _answer(self, request: ChatRequest) -> Answer:
        """Make the answer to a request, which must not be changed.

        Raises:
            LLMError: There is no answer.
        """

    @asynccontextmanager
    async def _stream(self, request: ChatRequest) -> AsyncGenerator[AsyncIterator[StreamChunk], None]:
        async with aclosing(self._chunks(request)) as chunks:
            yield chunks

    async def _chunks(self, request: ChatRequest) -> AsyncGenerator[StreamChunk, None]:
        model = request.model or self._model
        started = anyio.current_time()
        asked: dict[str, Any] = {"provider": self._name, "model": model, "message_count": len(request.messages)}
        if self._raw:
            asked["raw"] = to_dict(request)
        await self._coordinator.hooks.emit(LLM_REQUEST, asked)
        about = {"provider": self._name, "model": model}
        try:
            answer = await self._answer(request)
            for chunk in _chunks_of(answer) if answer.chunks is None else answer.chunks:
                if chunk.kind == "block_delta":
                    # A checkpoint even without a pause: a long answer must be cancellable between two words.
                    await (anyio.sleep(answer.pause) if answer.pause else anyio.lowlevel.checkpoint())
                yield chunk
            if answer.error is not None:
                raise answer.error
        except LLMError as error:
            failed = {"type": type(error).__name__, "message": str(error)}
            details = {**about, "status": "error", "error": failed, "duration_ms": _milliseconds(started)}
            await self._coordinator.hooks.emit(LLM_RESPONSE, details)
            raise
        await self._emit_response(about, answer.response, started)
        yield StreamChunk(kind="response", response=answer.response)

    async def _emit_response(self, about: dict[str, Any], response: ChatResponse, started: float) -> None:
        usage = response.usage
        details: dict[str, Any] = {**about, "status": "ok", "duration_ms": _milliseconds(started)}
        if usage is not None:
            shown = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
            for key in ("cache_read_tokens", "cache_write_tokens"):
                if (value := getattr(usage, key)) is not None:
                    shown[key] = value
            details["usage"] = shown
        if self._raw:
            details["raw"] = to_dict(response)
        await self._coordinator.hooks.emit(LLM_RESPONSE, details)


def _chunks_of(answer: Answer) -> Iterator[StreamChunk]:
    for index, block in enumerate(answer.response.content):
        tool = block.name if isinstance(block, ToolCallBlock) else None
        yield StreamChunk(kind="block_start", index=index, block_type=block.type, tool_name=tool)
        for piece in answer.pieces.get(index) or pieces_of(_text_of(block)):
            yield StreamChunk(kind="block_delta", index=index, block_type=block.type, text=piece)
        yield StreamChunk(kind="block_end", index=index, block_type=block.type, block=block)


def _milliseconds(started: float) -> int:
    return round((anyio.current_time() - started) * 1000)


def _text_of(block: Any) -> str:
    """The text of a block that arrives in pieces."""
    if isinstance(block, TextBlock):
        return block.text
    if isinstance(block, ThinkingBlock):
        return block.thinking
    if isinstance(block, ToolCallBlock):
        return canonical_dumps(block.input)
    if isinstance(block, ReasoningBlock):
        return "".join(part["text"] for part in block.summary if isinstance(part, dict) and "text" in part)
    return ""
