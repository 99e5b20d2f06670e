"""The base of providers that make their answers in this process, and stream them in pieces."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import attrs

from amplifier._internal.json import JSON, canonical_dumps
from amplifier.errors import LLMError
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    ModelInfo,
    ProviderInfo,
    ReasoningBlock,
    StreamChunk,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    Usage,
    to_dict,
)

from ..context import count_tokens
from ._streams import Chunks, StreamingProvider


@attrs.frozen(kw_only=True)
class Answer:
    """The answer to one request.

    Attributes:
        response: The whole answer.
        pieces: The pieces of blocks, by block index. Other blocks are split between words.
        pause: Seconds before each piece.
        error: The error that replaces the response after the last piece, or None.
        chunks: The recorded stream without the response. None to make the stream from the response.
    """

    response: ChatResponse
    pieces: dict[int, list[str]] = attrs.field(factory=dict)
    pause: float = 0.0
    error: LLMError | None = None
    chunks: Sequence[StreamChunk] | None = None


class LocalAnswerProvider(StreamingProvider):
    """Streams answers, and emits the events of each request. Subclasses make the answers.

    Args:
        coordinator: Receives the events.
        raw: Whether events contain the whole request and response.
    """

    _name: str
    _title: ClassVar[str]
    _model: str
    _context_window: ClassVar[int] = 200_000
    _max_output_tokens: ClassVar[int] = 8_192
    _capabilities: ClassVar[tuple[str, ...]] = ("tools", "streaming")

    @property
    def name(self) -> str:
        """The name under which the provider is mounted."""
        return self._name

    def get_info(self) -> ProviderInfo:
        """Describe the provider, which needs no credentials."""
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
        info = self.get_info()
        return [
            ModelInfo(
                id=self._model,
                display_name=info.display_name,
                context_window=info.defaults.get("context_window", self._context_window),
                max_output_tokens=info.defaults.get("max_output_tokens", self._max_output_tokens),
                capabilities=info.capabilities,
            )
        ]

    def estimate_cost(self, request: ChatRequest, **kwargs: Any) -> Decimal | None:
        """Return 0, because local answers are free."""
        return Decimal(0)

    @abstractmethod
    async def _answer(self, request: ChatRequest) -> Answer:
        """Make the answer to a request, without changing the request.

        Raises:
            LLMError: There is no answer.
        """

    async def _chunks(self, request: ChatRequest, kwargs: dict[str, JSON]) -> Chunks:
        model = request.model or self._model
        began = anyio.current_time()
        await self._emit_request(model, request, lambda: to_dict(request))
        try:
            answer = await self._answer(request)
            for chunk in _chunks_of(answer) if answer.chunks is None else answer.chunks:
                if chunk.kind == "block_delta":
                    # A long answer must be cancellable between two words, even without a pause.
                    await (
                        anyio.sleep(answer.pause) if answer.pause else anyio.lowlevel.checkpoint()
                    )
                yield chunk
            if answer.error is not None:
                raise answer.error
        except LLMError as error:
            await self._emit_response(model, began, None, error=error)
            raise
        response = answer.response
        await self._emit_response(
            model, began, to_dict(response) if self._raw else None, usage=response.usage
        )
        yield StreamChunk(kind="response", response=response)


def _chunks_of(answer: Answer) -> Iterator[StreamChunk]:
    """Yield the chunks of an answer, without its response. An error leaves the last block open."""
    last = len(answer.response.content) - 1
    for index, block in enumerate(answer.response.content):
        tool = block.name if isinstance(block, ToolCallBlock) else None
        yield StreamChunk(kind="block_start", index=index, block_type=block.type, tool_name=tool)
        for piece in answer.pieces.get(index) or pieces_of(_text_of(block)):
            yield StreamChunk(kind="block_delta", index=index, block_type=block.type, text=piece)
        if answer.error is None or index < last:
            yield StreamChunk(kind="block_end", index=index, block_type=block.type, block=block)


def _text_of(block: Any) -> str:
    """Return the text of a block that is streamed."""
    if isinstance(block, TextBlock):
        return block.text
    if isinstance(block, ThinkingBlock):
        return block.thinking
    if isinstance(block, ToolCallBlock):
        return canonical_dumps(block.input)
    if isinstance(block, ReasoningBlock):
        return "".join(
            part["text"] for part in block.summary if isinstance(part, dict) and "text" in part
        )
    return ""


_MAX_PIECES = 200
_WORD = re.compile(r"\S+\s*|\s+")


def pieces_of(text: str) -> list[str]:
    """Split a text into pieces of one word each, or of several words if the text is long."""
    words = _WORD.findall(text)
    size = -(-len(words) // _MAX_PIECES) or 1
    return ["".join(words[at : at + size]) for at in range(0, len(words), size)]


_BYTES_PER_TOKEN = 4


def estimated_usage(request: ChatRequest, content: Iterable[Any]) -> Usage:
    """Estimate the usage of a request and its answer in the way contexts do. The cost is 0."""
    message_tokens = sum(_tokens(message.content) for message in request.messages)
    input_tokens = message_tokens + _tokens(request.tools or [])
    output_tokens = _tokens(list(content))
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        total_tokens=input_tokens + output_tokens,
        cost_usd=Decimal(0),
    )


def _tokens(content: Any) -> int:
    if not content:
        return 0
    if isinstance(content, str):
        return count_tokens(content, _BYTES_PER_TOKEN)
    return count_tokens({"content": [to_dict(part) for part in content]}, _BYTES_PER_TOKEN)


def fresh_id(wanted: str, taken: Collection[str]) -> str:
    """Return an id, with a number appended if it is taken."""
    if wanted not in taken:
        return wanted
    number = 2
    while f"{wanted}_{number}" in taken:
        number += 1
    return f"{wanted}_{number}"
