"""Collects a streamed response: blocks in the order they began, chunks for the stream, the response at the end."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable
from typing import Any, final

import attrs

from amplifier.errors import ContentFilterError, InvalidToolCallError, StreamError
from amplifier.models import (
    ChatResponse,
    ContentBlockUnion,
    Degradation,
    StreamChunk,
    TextBlock,
    ToolCall,
    ToolCallBlock,
    Usage,
)

from .server_sent_events import SseEvent, read_json

_HIGH_SURROGATES = range(0xD800, 0xDC00)


@attrs.define
class TokenCounts:
    """The token counts of a response as the service reports them; ``input_tokens`` includes cached tokens."""

    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    is_reported: bool = False


@final
class ContentBlocks:
    """The content blocks of one response. Any key identifies a block while it is open."""

    def __init__(self, taken_ids: Iterable[str] = ()) -> None:
        self._finished: list[ContentBlockUnion | None] = []
        self._open: dict[Hashable, _OpenBlock] = {}
        self._taken = set(taken_ids)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._open

    @property
    def finished(self) -> list[ContentBlockUnion]:
        """The blocks that are complete, in the order they began."""
        return [block for block in self._finished if block is not None]

    def start(self, key: Hashable, block_type: str, tool_name: str | None = None) -> StreamChunk:
        """Begin a block; one of a tool call with the name of the tool."""
        index = len(self._finished)
        self._finished.append(None)
        self._open[key] = _OpenBlock(index, block_type)
        return StreamChunk(kind="block_start", index=index, block_type=block_type, tool_name=tool_name or None)

    def add(self, key: Hashable, text: str) -> list[StreamChunk]:
        """Add text to a block; half of a surrogate pair waits for the other half."""
        block = self._open[key]
        shown = block.add(text)
        if not shown:
            return []
        return [StreamChunk(kind="block_delta", index=block.index, block_type=block.block_type, text=shown)]

    def text(self, key: Hashable) -> str:
        """Everything added to an open block."""
        return self._open[key].text()

    def end(self, key: Hashable, block: ContentBlockUnion) -> StreamChunk:
        """Complete a block."""
        opened = self._open.pop(key)
        self._finished[opened.index] = block
        return StreamChunk(kind="block_end", index=opened.index, block_type=opened.block_type, block=block)

    def drop(self, key: Hashable) -> None:
        """Discard an open block."""
        del self._open[key]

    def free_id(self, wanted: str | None) -> str:
        """The service's id for a call, or a new one if it is missing or already in use in this conversation."""
        chosen = wanted if wanted and wanted not in self._taken else f"call_{uuid.uuid4().hex}"
        self._taken.add(chosen)
        return chosen


class _OpenBlock:
    def __init__(self, index: int, block_type: str) -> None:
        self.index = index
        self.block_type = block_type
        self._pieces: list[str] = []
        self._half = ""

    def add(self, text: str) -> str:
        text, self._half = self._half + text, ""
        if text and ord(text[-1]) in _HIGH_SURROGATES:
            text, self._half = text[:-1], text[-1]
        text = join_surrogates(text)
        self._pieces.append(text)
        return text

    def text(self) -> str:
        return "".join(self._pieces) + ("\ufffd" if self._half else "")


def join_surrogates(text: str) -> str:
    """Join surrogate pairs, which services that count in UTF-16 may split; a lone half becomes U+FFFD."""
    if text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class ResponseReader(ABC):
    """Reads one response of a service; each wire format has its own subclass.

    Attributes:
        blocks: The content so far.
        token_counts: The tokens it used.
        model: The model that answered, as the service names it.
        finish_reason: Why the response ended, as the service names it; None before.
        metadata: For the response.
    """

    refusals = frozenset({"content_filter", "refusal"})
    cut_short = frozenset({"length", "max_tokens", "max_output_tokens"})

    def __init__(self, taken_ids: Iterable[str] = ()) -> None:
        self.blocks = ContentBlocks(taken_ids)
        self.token_counts = TokenCounts()
        self.model: str | None = None
        self.finish_reason: str | None = None
        self.metadata: dict[str, Any] = {}
        self._unreadable: tuple[str, str] | None = None

    @abstractmethod
    def read_event(self, event: SseEvent) -> list[StreamChunk]:
        """Read one event of a stream.

        Raises:
            ServiceError: The service reports an error in the stream.
        """

    @abstractmethod
    def read_body(self, body: dict[str, Any]) -> list[StreamChunk]:
        """Read a response that was not streamed."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether the response is complete."""

    def end_of_stream(self) -> list[StreamChunk]:
        """Handle the end of the stream.

        Raises:
            StreamError: The response is not complete.
        """
        if self.finish_reason is None:
            raise StreamError("the stream ended before the answer did")
        return []

    def end_call(
        self, key: Hashable, call_id: str | None, name: str, arguments: str | dict[str, Any], **extra: Any
    ) -> list[StreamChunk]:
        """Complete a call.

        Invalid arguments are stored, and `response` raises an error for them: only at the end is it known whether the
        model wrote invalid JSON or was cut off by the token limit.
        """
        given = arguments if isinstance(arguments, dict) else _read_arguments(arguments)
        if given is None:
            self._unreadable = self._unreadable or (name, str(arguments))
            self.blocks.drop(key)
            return []
        block = ToolCallBlock(id=self.blocks.free_id(call_id), name=name, input=given, **extra)
        return [self.blocks.end(key, block)]

    def response(self, usage: Usage, degradation: Degradation | None) -> ChatResponse:
        """The whole response.

        Raises:
            ContentFilterError: The service refused and sent no other content.
            InvalidToolCallError: The arguments of a call are not a JSON object.
        """
        if self._unreadable is not None:
            name, text = self._unreadable
            was_cut = self.finish_reason in self.cut_short
            why = "the answer was cut off; allow more output tokens" if was_cut else "expected a JSON object"
            raise InvalidToolCallError(
                f"the model called {name!r} with arguments that cannot be read ({why}): {text[:200]!r}",
                tool_name=name,
                raw_arguments=text,
                retryable=not was_cut,  # sampling again may succeed; the same token limit will not
            )
        content = self.blocks.finished
        if self.finish_reason in self.refusals and not any(isinstance(b, TextBlock | ToolCallBlock) for b in content):
            raise ContentFilterError(f"the service refused to answer ({self.finish_reason})")
        calls = [
            ToolCall(id=block.id, name=block.name, arguments=block.input)
            for block in content
            if isinstance(block, ToolCallBlock)
        ]
        return ChatResponse(
            content=content,
            tool_calls=calls or None,
            usage=usage,
            degradation=degradation,
            finish_reason=self.finish_reason,
            metadata={**self.metadata, **({"model": self.model} if self.model else {})} or None,
        )


def _read_arguments(text: str) -> dict[str, Any] | None:
    if not text.strip():
        return {}
    try:
        given = read_json(text)
        if isinstance(given, str):  # some small models encode twice
            given = read_json(given)
    except ValueError:
        return None
    return given if isinstance(given, dict) else None


@attrs.define(eq=False)
class ServiceError(Exception):
    """An error that the service reported inside a stream; the provider maps it to the error taxonomy."""

    body: Any
