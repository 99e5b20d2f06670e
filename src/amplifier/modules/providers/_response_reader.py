"""Reads the response of a service: server-sent events from bytes, blocks in the order they began, the response at the end.

Any split of the bytes gives the same events. The parser does no I/O and is no generator: an unfinished async generator emits
warnings on trio and leaves a stray task on asyncio.
"""

from __future__ import annotations

import json
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable
from typing import Any, ClassVar, NoReturn, final

import attrs

from amplifier.errors import ContentFilterError, InvalidToolCallError, StreamError
from amplifier.models import (
    ChatResponse,
    ContentBlockUnion,
    Degradation,
    StreamChunk,
    TextBlock,
    ToolCallBlock,
    Usage,
)

from ._streams import calls_among

MAX_EVENT_BYTES = 16 * 2**20
"""The limit on one event, so that a server cannot fill the memory with one endless line."""

_LINE_END = re.compile(rb"[\r\n]")


@attrs.frozen
class SseEvent:
    """One event: its name, if it has one, and its data as text."""

    name: str | None
    data: str


@final
class SseParser:
    """Collects bytes and returns complete events."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[str] = []
        self._size = 0
        self._name: str | None = None
        self._after_cr = False
        self._first = True

    def feed(self, received: bytes) -> list[SseEvent]:
        """Add received bytes and return the events they complete.

        Raises:
            ValueError: The bytes are not UTF-8, or an event is larger than `MAX_EVENT_BYTES`.
        """
        events: list[SseEvent] = []
        start = 0
        for found in _LINE_END.finditer(received):
            end = found.start()
            is_second_half = self._after_cr and end == start and received[end] == 0x0A
            self._after_cr = received[end] == 0x0D
            if not is_second_half:
                self._line += received[start:end]
                self._take_line(events)
            start = end + 1
        if start < len(received):
            self._after_cr = False
            self._line += received[start:]
            self._check_size()
        return events

    def end(self) -> list[SseEvent]:
        """End the stream; an event without its closing blank line counts."""
        events: list[SseEvent] = []
        if self._line:
            self._take_line(events)
        self._dispatch(events)
        return events

    def _take_line(self, events: list[SseEvent]) -> None:
        self._check_size()
        line = self._line.decode("utf-8")
        self._line.clear()
        if self._first:
            line, self._first = line.removeprefix("\ufeff"), False
        if not line:
            self._dispatch(events)
            return
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
            self._size += len(value)
        elif field == "event":
            self._name = value

    def _dispatch(self, events: list[SseEvent]) -> None:
        if self._data:
            events.append(SseEvent(self._name, "\n".join(self._data)))
        self._data, self._size, self._name = [], 0, None

    def _check_size(self) -> None:
        if self._size + len(self._line) > MAX_EVENT_BYTES:
            raise ValueError(f"an event is larger than {MAX_EVENT_BYTES} bytes")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)  # made once: with an option, `json.loads` makes one per call


def read_json(text: str | bytes) -> Any:
    """Parse JSON exactly: integers of any size, and no NaN.

    Raises:
        ValueError: It is not JSON, or is nested too deeply.
    """
    try:
        return _DECODER.decode(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


_HIGH_SURROGATES = range(0xD800, 0xDC00)


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
        counted: The tokens it used, by the names of `Usage`, as the service reports them; empty if it does not.
        model: The model that answered, as the service names it.
        finish_reason: Why the response ended, as the service names it; None before.
        metadata: For the response.
        is_over: The response is complete.
    """

    refusals: ClassVar[frozenset[str]] = frozenset({"content_filter", "refusal"})
    cut_short: ClassVar[frozenset[str]] = frozenset({"length", "max_tokens", "max_output_tokens"})

    def __init__(self, taken_ids: Iterable[str] = ()) -> None:
        self.blocks: ContentBlocks = ContentBlocks(taken_ids)
        self.counted: dict[str, int | None] = {}
        self.model: str | None = None
        self.finish_reason: str | None = None
        self.metadata: dict[str, Any] = {}
        self.is_over: bool = False
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
        given = _without_halves(arguments if isinstance(arguments, dict) else _read_arguments(arguments))
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
        calls = calls_among(content)
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


def _without_halves(given: dict[str, Any] | None) -> dict[str, Any] | None:
    """The arguments with U+FFFD for half a surrogate pair, as in texts: JSON may escape one, and nothing can store it."""
    try:
        written = json.dumps(given, ensure_ascii=False)
    except RecursionError:  # nested too deeply
        return None
    joined = join_surrogates(written)
    return given if joined is written else _DECODER.decode(joined)


@attrs.define(eq=False)
class ServiceError(Exception):
    """An error that the service reported inside a stream; the provider maps it to the error taxonomy."""

    body: Any
