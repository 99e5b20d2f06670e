"""The options of HTTP providers, and the interface of wire formats.

A wire format encodes requests as a service's JSON, and reads its responses.
"""

from __future__ import annotations

import json
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, ClassVar, NoReturn, TypeAlias, final

import attrs

from amplifier._internal.json import JSON
from amplifier.errors import ContentFilterError, InvalidToolCallError, StreamError
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    ContentBlockUnion,
    Degradation,
    ModelInfo,
    ResponseFormatJsonSchema,
    StreamChunk,
    TextBlock,
    ToolCallBlock,
    Usage,
)

from .._shared.configuration import (
    choice,
    flag,
    mapping,
    mapping_of_secrets,
    no_limit_or_seconds,
    number,
    option,
    optional,
    seconds,
    secret,
    text,
    url,
    whole_number,
)
from ._conversation import Conversation
from ._streams import calls_among

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


@attrs.frozen(kw_only=True)
class ProviderOptions:
    """The common configuration of HTTP providers. The reference page of each module explains it.

    Attributes:
        timeout: Seconds for one call, from its beginning to its last byte. None for no limit.
        idle_timeout: Seconds without a byte while a response is streamed. None for no limit.
        connect_timeout: Seconds to reach the server.
    """

    api_key: str | None = option(optional(secret), default=None)
    base_url: str | None = option(optional(url), default=None)
    default_model: str = option(text, aliases=("model",))
    max_tokens: int | None = option(
        optional(whole_number(1)), default=None, aliases=("max_output_tokens",)
    )
    context_window: int | None = option(optional(whole_number(1)), default=None)
    temperature: float | None = option(optional(number(0, 2)), default=None)
    top_p: float | None = option(optional(number(0, 1)), default=None)
    reasoning_effort: str | None = option(
        optional(choice(*EFFORTS)), default=None, aliases=("effort",)
    )
    timeout: float | None = option(no_limit_or_seconds, default=1800.0)
    idle_timeout: float | None = option(no_limit_or_seconds, default=120.0)
    connect_timeout: float = option(seconds, default=10.0)
    priority: float = option(number(), default=100)
    raw: bool = option(flag, default=False)
    extra_headers: Mapping[str, str] = option(
        mapping_of_secrets("an object of texts"), default=attrs.Factory(dict)
    )
    extra_request_params: Mapping[str, JSON] = option(mapping, default=attrs.Factory(dict))


ToolChoice: TypeAlias = str | tuple[str]
"""``"auto"``, ``"none"``, ``"required"``, or a tuple with the name of the only tool to call."""


@attrs.frozen(kw_only=True)
class CallOptions:
    """The options of one call, from its keywords, its request and the configuration.

    Attributes:
        max_tokens: The limit on output tokens. None leaves it to the service.
    """

    model: str
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    reasoning_effort: str | None
    tool_choice: ToolChoice | None
    timeout: float | None


@attrs.define
class EncodedRequest:
    """A request in a service's JSON format, and the parts that the service doesn't support."""

    body: dict[str, JSON]
    degradations: list[Degradation] = attrs.field(factory=list)

    @property
    def degradation(self) -> Degradation | None:
        """All degradations joined into the single one of a response."""
        if len(self.degradations) < 2:
            return self.degradations[0] if self.degradations else None
        joined = {
            name: "; ".join(getattr(item, name) for item in self.degradations)
            for name in ("requested", "actual", "reason")
        }
        return Degradation(**joined)


class WireFormat(ABC):
    """One API of a service.

    Attributes:
        path: The path of requests below the base URL.
        count_path: The path at which the service counts tokens, or None if it can't count them.
        always_limits: Whether the service requires a limit on output tokens.
        reader: Reads one response. Its argument is the tool-call ids of the conversation.
    """

    path: ClassVar[str]
    count_path: ClassVar[str | None] = None
    always_limits: ClassVar[bool] = False
    reader: ClassVar[type[ResponseReader]]

    @abstractmethod
    def encode(
        self, conversation: Conversation, request: ChatRequest, call: CallOptions
    ) -> EncodedRequest:
        """Encode a request as JSON."""


class ModelCatalogue(ABC):
    """Describes a service's models by name, and reads the service's list of models.

    Attributes:
        path: The path of the list below the base URL.
    """

    path: str = "/models"

    @abstractmethod
    def look_up(self, model: str) -> ModelInfo:
        """Return the properties of a model, derived from its name."""

    def read(self, body: JSON) -> list[ModelInfo]:
        """Read the service's list of models."""
        return [self.listed(item) for item in body["data"]]

    def listed(self, item: dict[str, JSON]) -> ModelInfo:
        """Read an item of the service's list."""
        return self.look_up(item["id"])


def resolve_call_options(
    options: ProviderOptions,
    request: ChatRequest,
    keywords: Mapping[str, JSON],
    default_max: int | None,
) -> CallOptions:
    """Resolve the options of a call.

    Keywords take precedence over the request, and the request over the configuration.
    """

    def first(*values: Any) -> Any:
        return next((value for value in values if value is not None), None)

    limit = first(
        keywords.get("max_tokens"), keywords.get("max_output_tokens"), request.max_output_tokens
    )
    effort = first(
        keywords.get("reasoning_effort"), request.reasoning_effort, options.reasoning_effort
    )
    return CallOptions(
        model=first(keywords.get("model"), request.model, options.default_model),
        max_tokens=first(limit, options.max_tokens, default_max),
        temperature=first(keywords.get("temperature"), request.temperature, options.temperature),
        top_p=first(keywords.get("top_p"), request.top_p, options.top_p),
        reasoning_effort=effort if effort in EFFORTS else None,
        tool_choice=read_tool_choice(first(keywords.get("tool_choice"), request.tool_choice)),
        timeout=first(keywords.get("timeout"), request.timeout, options.timeout),
    )


def read_tool_choice(value: object) -> ToolChoice | None:
    """Read a tool choice in any service's form. A text that isn't a mode is the name of a tool."""
    if value is None:
        return None
    if isinstance(value, dict):
        function = value.get("function")
        name = value.get("name") or (function.get("name") if isinstance(function, dict) else None)
        if isinstance(name, str) and name:
            return (name,)
        value = value.get("type") or value.get("mode")
    if not isinstance(value, str):
        return None
    if value == "any":
        return "required"
    return value if value in ("auto", "none", "required") else (value,)


def read_json_schema(format_: ResponseFormatJsonSchema) -> tuple[str, dict[str, JSON], bool | None]:
    """Return the name, schema and strictness of a response format.

    The schema may be bare or in OpenAI's envelope.
    """
    schema = format_.json_schema
    inner = schema.get("schema")
    if isinstance(inner, dict):
        strict = schema.get("strict") if format_.strict is None else format_.strict
        return str(schema.get("name") or "answer"), inner, strict
    return str(schema.get("title") or "answer").replace(" ", "_"), schema, format_.strict


def merge_params(body: dict[str, JSON], extra: Mapping[str, JSON]) -> dict[str, JSON]:
    """Merge configured parameters into a request body.

    Null removes a parameter, an object is merged into it, and any other value replaces it. Tools
    are added to the agent's tools, because they are the service's own, such as its web search.
    """
    merged = dict(body)
    for name, value in extra.items():
        before = merged.get(name)
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping) and isinstance(before, dict):
            merged[name] = merge_params(before, value)
        elif name == "tools" and isinstance(before, list):
            merged[name] = [*before, *value]
        else:
            merged[name] = value
    return merged


# ── reading ──────────────────────────────────────────────────────────────────────────────────────

# The parser does no I/O and isn't a generator. An unfinished async generator would emit warnings on
# trio, and leave a stray task on asyncio.

MAX_EVENT_BYTES = 16 * 2**20
"""The limit on one event, so that a server cannot fill the memory with an endless line."""

_LINE_END = re.compile(rb"[\r\n]")


@attrs.frozen
class SseEvent:
    """One event, with its name or None, and its data as text."""

    name: str | None
    data: str


@final
class SseParser:
    """Collects bytes and returns complete events. It does not matter how the bytes are split."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[str] = []
        self._size = 0
        self._name: str | None = None
        self._after_cr = False
        self._first = True

    def feed(self, received: bytes) -> list[SseEvent]:
        """Add received bytes and return the events that are now complete.

        Raises:
            ValueError: The bytes are not UTF-8, or an event is larger than `MAX_EVENT_BYTES`.
        """
        events: list[SseEvent] = []
        start = 0
        for match in _LINE_END.finditer(received):
            end = match.start()
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
        """End the stream, and return the last event if it lacks the closing blank line."""
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


# With an option, `json.loads` would create a decoder for every call.
_DECODER = json.JSONDecoder(parse_constant=_refuse)


def read_json(text: str | bytes) -> JSON:
    """Parse JSON with integers of any size and without NaN.

    Raises:
        ValueError: The text isn't JSON, or is nested too deeply.
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
        """The complete blocks, in the order in which they started."""
        return [block for block in self._finished if block is not None]

    def start(self, key: Hashable, block_type: str, tool_name: str | None = None) -> StreamChunk:
        """Start a block."""
        index = len(self._finished)
        self._finished.append(None)
        self._open[key] = _OpenBlock(index, block_type)
        return StreamChunk(
            kind="block_start", index=index, block_type=block_type, tool_name=tool_name or None
        )

    def add(self, key: Hashable, text: str) -> list[StreamChunk]:
        """Add text to a block. Half of a surrogate pair waits for the other half."""
        block = self._open[key]
        added = block.add(text)
        if not added:
            return []
        return [
            StreamChunk(
                kind="block_delta", index=block.index, block_type=block.block_type, text=added
            )
        ]

    def text(self, key: Hashable) -> str:
        """Return the text of an open block."""
        return self._open[key].text()

    def end(self, key: Hashable, block: ContentBlockUnion) -> StreamChunk:
        """Complete a block."""
        opened = self._open.pop(key)
        self._finished[opened.index] = block
        return StreamChunk(
            kind="block_end", index=opened.index, block_type=opened.block_type, block=block
        )

    def drop(self, key: Hashable) -> None:
        """Discard an open block."""
        del self._open[key]

    def free_id(self, wanted: str | None) -> str:
        """Return the service's id for a call, or a new one if it is missing or in use."""
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
    """Join surrogate pairs, which services that count in UTF-16 may split.

    A lone surrogate becomes U+FFFD.
    """
    if text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class ResponseReader(ABC):
    """Reads one response of a service. Each wire format has a subclass.

    Attributes:
        blocks: The content so far.
        counted: The token counts that the service reports, under the names of `Usage`. Empty if it
            reports none.
        model: The service's name of the model that answered.
        finish_reason: The service's reason for ending the response. None until it ends.
        metadata: The metadata of the response.
        is_over: True once the response is complete.
    """

    refusals: ClassVar[frozenset[str]] = frozenset({"content_filter", "refusal"})
    cut_short: ClassVar[frozenset[str]] = frozenset({"length", "max_tokens", "max_output_tokens"})

    def __init__(self, taken_ids: Iterable[str] = ()) -> None:
        self.blocks: ContentBlocks = ContentBlocks(taken_ids)
        self.counted: dict[str, int | None] = {}
        self.model: str | None = None
        self.finish_reason: str | None = None
        self.metadata: dict[str, JSON] = {}
        self.is_over: bool = False
        self._unreadable: tuple[str, str] | None = None

    @abstractmethod
    def read_event(self, event: SseEvent) -> list[StreamChunk]:
        """Read one event of a stream.

        Raises:
            ServiceError: The service reports an error in the stream.
        """

    @abstractmethod
    def read_body(self, body: dict[str, JSON]) -> list[StreamChunk]:
        """Read a response that was not streamed."""

    def end_of_stream(self) -> list[StreamChunk]:
        """Handle the end of the stream.

        Raises:
            StreamError: The response is not complete.
        """
        if self.finish_reason is None:
            raise StreamError("the stream ended before the response was complete")
        return []

    def end_call(
        self,
        key: Hashable,
        call_id: str | None,
        name: str,
        arguments: str | dict[str, JSON],
        **extra: Any,
    ) -> list[StreamChunk]:
        """Complete a call.

        Invalid arguments are stored, and `response` raises an error for them. Only the end of the
        response shows whether the model wrote invalid JSON or reached the token limit.
        """
        values = _without_halves(
            arguments if isinstance(arguments, dict) else _read_arguments(arguments)
        )
        if values is None:
            self._unreadable = self._unreadable or (name, str(arguments))
            self.blocks.drop(key)
            return []
        block = ToolCallBlock(id=self.blocks.free_id(call_id), name=name, input=values, **extra)
        return [self.blocks.end(key, block)]

    def response(self, usage: Usage, degradation: Degradation | None) -> ChatResponse:
        """Return the whole response.

        Raises:
            ContentFilterError: The service refused and sent no other content.
            InvalidToolCallError: The arguments of a call are not a JSON object.
        """
        if self._unreadable is not None:
            name, text = self._unreadable
            was_cut = self.finish_reason in self.cut_short
            reason = (
                "the response reached the token limit; allow more output tokens"
                if was_cut
                else "expected a JSON object"
            )
            raise InvalidToolCallError(
                f"the model called {name!r} with arguments that cannot be read ({reason}): "
                f"{text[:200]!r}",
                tool_name=name,
                raw_arguments=text,
                # Another sample may be valid, but not with the same token limit.
                retryable=not was_cut,
            )
        content = self.blocks.finished
        if self.finish_reason in self.refusals and not any(
            isinstance(block, TextBlock | ToolCallBlock) for block in content
        ):
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


def _read_arguments(text: str) -> dict[str, JSON] | None:
    if not text.strip():
        return {}
    try:
        arguments = read_json(text)
        # Some small models encode their arguments twice.
        if isinstance(arguments, str):
            arguments = read_json(arguments)
    except ValueError:
        return None
    return arguments if isinstance(arguments, dict) else None


def _without_halves(arguments: dict[str, JSON] | None) -> dict[str, JSON] | None:
    """Replace lone surrogates in arguments with U+FFFD, or return None if they nest too deeply.

    JSON can express a lone surrogate as an escape, but it can't be stored.
    """
    try:
        written = json.dumps(arguments, ensure_ascii=False)
    except RecursionError:
        return None
    joined = join_surrogates(written)
    return arguments if joined is written else _DECODER.decode(joined)


@attrs.define(eq=False)
class ServiceError(Exception):
    """An error that the service reported inside a stream. The provider maps it to an `LLMError`.

    Attributes:
        body: The error as the service sent it.
    """

    body: Any
