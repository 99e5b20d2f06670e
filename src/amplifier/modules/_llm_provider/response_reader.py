"""An answer as it grows: blocks in the order they began, chunks for whoever streams, the response at the end.

A wire_format's reader turns what a service sends into calls of these methods. No I/O. Above: `_provider`.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable
from typing import Any, NoReturn, final

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
    """What an answer used, as the service counted; ``input_tokens`` includes what came from a cache."""

    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    is_reported: bool = False


@final
class ContentBlocks:
    """The content of one answer. A block is known by any key while it is open."""

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

    def open_keys(self) -> list[Hashable]:
        """The keys of open blocks, in the order they began."""
        return list(self._open)

    def start(self, key: Hashable, block_type: str) -> StreamChunk:
        """Begin a block."""
        index = len(self._finished)
        self._finished.append(None)
        self._open[key] = _OpenBlock(index, block_type)
        return StreamChunk(kind="block_start", index=index, block_type=block_type)

    def add(self, key: Hashable, text: str) -> list[StreamChunk]:
        """New text of a block; none comes of half a character, which waits for its other half."""
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
        """Give up a block that came to nothing."""
        del self._open[key]

    def whole(self, block: ContentBlockUnion) -> list[StreamChunk]:
        """A block that came in one piece."""
        key = object()
        return [self.start(key, block.type), self.end(key, block)]

    def free_id(self, wanted: str | None) -> str:
        """The service's id for a call, or a new one where it gave none or one that is taken in this conversation."""
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
    """Join surrogate halves, as services that count in UTF-16 may send them; a lone half becomes a replacement mark."""
    if text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class ResponseReader(ABC):
    """Reads what a service sends about one answer; each wire_format has its own.

    Attributes:
        blocks: The content so far.
        token_counts: What it used.
        model: The model that answered, as the service names it.
        finish_reason: Why the answer ended, in the service's word; None while it goes on.
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
        """Take one event of a stream.

        Raises:
            ServiceError: The service reports an error in the stream.
        """

    @abstractmethod
    def read_body(self, body: dict[str, Any]) -> list[StreamChunk]:
        """Take an answer that came whole."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether nothing of interest follows."""

    def end_of_stream(self) -> list[StreamChunk]:
        """The connection is at its end.

        Raises:
            StreamError: The answer is not.
        """
        if self.finish_reason is None:
            raise StreamError("the stream ended before the answer did")
        return []

    def end_call(
        self, key: Hashable, call_id: str | None, name: str, arguments: str | dict[str, Any], **extra: Any
    ) -> list[StreamChunk]:
        """Complete a call.

        Arguments that cannot be read are remembered, and `response` raises them: only at the end is it known whether
        the model wrote nonsense or was cut short.
        """
        given = arguments if isinstance(arguments, dict) else _read_arguments(arguments)
        if given is None:
            self._unreadable = self._unreadable or (name, str(arguments))
            self.blocks.drop(key)
            return []
        block = ToolCallBlock(id=self.blocks.free_id(call_id), name=name, input=given, **extra)
        return [self.blocks.end(key, block)]

    def response(self, usage: Usage, degradation: Degradation | None) -> ChatResponse:
        """The whole answer.

        Raises:
            ContentFilterError: The service refused and gave nothing else.
            InvalidToolCallError: The arguments of a call are no JSON object.
        """
        if self._unreadable is not None:
            self._refuse_call(*self._unreadable)
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

    def _refuse_call(self, name: str, text: str) -> NoReturn:
        was_cut = self.finish_reason in self.cut_short
        why = "the answer was cut off; allow more output tokens" if was_cut else "expected a JSON object"
        raise InvalidToolCallError(
            f"the model called {name!r} with arguments that cannot be read ({why}): {text[:200]!r}",
            tool_name=name,
            raw_arguments=text,
            retryable=not was_cut,  # the same sampling may go well; the same limit will not
        )


def _read_arguments(text: str) -> dict[str, Any] | None:
    if not text.strip():
        return {}
    try:
        given = read_json(text)
        if isinstance(given, str):  # small models encode twice
            given = read_json(given)
    except ValueError:
        return None
    return given if isinstance(given, dict) else None


@attrs.define(eq=False)
class ServiceError(Exception):
    """An error the service put into a stream that had begun well; the provider makes it one of ours."""

    body: Any
