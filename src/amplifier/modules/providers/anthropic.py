"""provider-anthropic: Claude models through Anthropic's Messages API."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, ClassVar, final

import attrs

from amplifier._internal.json import JSON
from amplifier.contracts import Coordinator
from amplifier.models import (
    ChatRequest,
    ContentBlockUnion,
    Degradation,
    ImageBlock,
    ModelInfo,
    ReasoningBlock,
    RedactedThinkingBlock,
    ResponseFormatJson,
    ResponseFormatJsonSchema,
    StreamChunk,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSpec,
    UnknownBlock,
    from_dict,
    to_dict,
)

from .._shared.configuration import choice, flag, option, optional, read_options, whole_number
from ._conversation import Conversation, Entry, MessageEntry, ToolResultEntry
from ._http_provider import Prices, Service, mount_provider
from ._wire_format import (
    CallOptions,
    EncodedRequest,
    ModelCatalogue,
    ProviderOptions,
    ResponseReader,
    ServiceError,
    SseEvent,
    WireFormat,
    read_json,
    read_json_schema,
)

__all__ = [
    "DEFAULT_MODEL",
    "AnthropicOptions",
    "ClaudeModels",
    "MessagesApi",
    "MessagesApiReader",
    "mount",
    "thinks_adaptively",
    "tool_use_id",
    "version_of",
]

__amplifier_module_type__ = "provider"

_MODULE = "provider-anthropic"
_KEY, _URL = "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"
_VERSION_HEADER = "2023-06-01"

_GOOD_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_CACHE_MARK = {"type": "ephemeral"}
_UNMARKABLE = ("thinking", "redacted_thinking")
_BUDGETS = {
    "minimal": 1024,
    "low": 4096,
    "medium": 10_000,
    "high": 16_000,
    "xhigh": 24_000,
    "max": 28_000,
}
_MIN_BUDGET = 1024
_CONTINUED = "[the conversation continues]"
_JSON_ONLY = "Answer with one JSON value and nothing else: no words around it, no code fence."
DEFAULT_MODEL = "claude-sonnet-5"

_VERSION = re.compile(r"claude-(?:[a-z]+-)?(\d+)(?:-(\d)(?!\d))?")
_CAPABILITIES = ["tools", "streaming", "thinking", "vision", "json_mode"]

# The default limit on output tokens. Newer models allow four times as many.
_USUAL_OUTPUT = 32_000


@attrs.frozen(kw_only=True)
class AnthropicOptions(ProviderOptions):
    """The common options, and the options for thinking and caching.

    Attributes:
        extended_thinking: Whether the model thinks. None leaves it to the requested effort.
        thinking_budget_tokens: The token budget of models that need one.
        thinking_display: The form in which other models return their thinking.
        enable_prompt_caching: Whether requests mark their stable beginning for the service's cache.
    """

    extended_thinking: bool | None = option(optional(flag), default=None)
    thinking_budget_tokens: int | None = option(optional(whole_number(1024)), default=None)
    thinking_display: str = option(choice("summarized", "omitted"), default="summarized")
    enable_prompt_caching: bool = option(flag, default=True)


async def mount(
    coordinator: Coordinator, config: dict[str, Any] | None = None
) -> Callable[[], Awaitable[None]] | None:
    """Mount the provider, or log a warning if there is no key.

    Raises:
        PlanError: The configuration is invalid.
        MissingExtraError: The HTTP library is not installed.
        ModuleLoadError: There is no key, and the session is strict.
    """
    environment = {"api_key": _KEY, "base_url": _URL}
    options = read_options(
        AnthropicOptions, _MODULE, config, environment=environment, default_model=DEFAULT_MODEL
    )
    service = Service(
        module=_MODULE,
        extra="anthropic",
        name="anthropic",
        display_name="Anthropic",
        variables=(_KEY, _URL),
        default_model=DEFAULT_MODEL,
        base_url="https://api.anthropic.com",
        headers={"X-Api-Key": options.api_key or "", "Anthropic-Version": _VERSION_HEADER},
        capabilities=("structured_output",),
        wire_format=MessagesApi(options),
        catalogue=ClaudeModels(),
        prices=Prices("anthropic"),
    )
    return await mount_provider(coordinator, service, options)


def version_of(model: str) -> tuple[int, int]:
    """Return the version in a model's name. A name without one counts as new."""
    match = _VERSION.search(model)
    return (int(match[1]), int(match[2] or 0)) if match else (5, 0)


def thinks_adaptively(model: str) -> bool:
    """Check whether the model decides how long to think. Older models need a token budget."""
    return version_of(model) >= (4, 6)


@final
class ClaudeModels(ModelCatalogue):
    """The catalogue of provider-anthropic."""

    path: str = "/v1/models?limit=1000"

    def look_up(self, model: str) -> ModelInfo:
        """Return the properties of a model, derived from its name."""
        version = version_of(model)
        output = 4096 if version < (3, 5) else 8192 if version < (3, 7) else _USUAL_OUTPUT
        return ModelInfo(
            id=model,
            display_name=model.replace("-", " ").title(),
            context_window=1_000_000 if thinks_adaptively(model) else 200_000,
            max_output_tokens=output,
            capabilities=list(_CAPABILITIES),
        )

    def listed(self, item: dict[str, JSON]) -> ModelInfo:
        """Read an item of the service's list."""
        model = self.look_up(item["id"])
        model.display_name = item.get("display_name") or model.display_name
        model.context_window = item.get("max_input_tokens") or model.context_window
        model.max_output_tokens = item.get("max_tokens") or model.max_output_tokens
        return model


def _split_system(entries: list[Entry]) -> tuple[list[dict[str, JSON]], list[Entry]]:
    system: list[dict[str, JSON]] = []
    for index, entry in enumerate(entries):
        if not (isinstance(entry, MessageEntry) and entry.role in ("system", "developer")):
            return system, entries[index:]
        system += [_text(block) for block in entry.blocks if isinstance(block, TextBlock)]
    return system, []


def _messages(entries: list[Entry]) -> list[dict[str, JSON]]:
    """Return messages with alternating roles that begin with the user.

    Tool results come first in their message.
    """
    turns: list[dict[str, JSON]] = []
    for entry in entries:
        role, content = _turn(entry)
        if not content:
            continue
        if not turns or turns[-1]["role"] != role:
            turns.append({"role": role, "content": []})
        turns[-1]["content"] += content
    if turns and turns[0]["role"] == "assistant":
        turns.insert(0, {"role": "user", "content": [{"type": "text", "text": _CONTINUED}]})
    return turns


def _turn(entry: Entry) -> tuple[str, list[dict[str, JSON]]]:
    if isinstance(entry, ToolResultEntry):
        return "user", [_result(entry)]
    if entry.role in ("system", "developer"):
        texts = [block.text for block in entry.blocks if isinstance(block, TextBlock)]
        return "user", [
            {"type": "text", "text": f"<system-reminder>\n{text}\n</system-reminder>"}
            for text in texts
        ]
    return entry.role, [sent for block in entry.blocks if (sent := _block(block)) is not None]


def _block(block: ContentBlockUnion) -> dict[str, JSON] | None:
    """Return a block for the service, or None if the service would reject it.

    The service rejects reasoning from other services, and thinking without a signature.
    """
    match block:
        case TextBlock():
            return _text(block)
        case ThinkingBlock():
            if not block.signature:
                return None
            return {"type": "thinking", "thinking": block.thinking, "signature": block.signature}
        case RedactedThinkingBlock():
            return {"type": "redacted_thinking", "data": block.data}
        case ToolCallBlock():
            return {
                "type": "tool_use",
                "id": tool_use_id(block.id),
                "name": block.name,
                "input": block.input,
            }
        case ImageBlock():
            return {"type": "image", "source": block.source}
        case UnknownBlock():
            return to_dict(block)
        case ReasoningBlock() | ToolResultBlock():
            return None


def _text(block: TextBlock) -> dict[str, JSON]:
    kept = {
        name: block.extra[name] for name in ("cache_control", "citations") if block.extra.get(name)
    }
    return {"type": "text", "text": block.text, **kept}


def _result(result: ToolResultEntry) -> dict[str, JSON]:
    block: dict[str, JSON] = {"type": "tool_result", "tool_use_id": tool_use_id(result.call_id)}
    parts = [sent for part in result.parts if (sent := _block(part)) is not None]
    if len(parts) == 1 and parts[0].keys() == {"type", "text"}:
        block["content"] = parts[0]["text"]
    elif parts:
        block["content"] = parts
    if result.is_error:
        block["is_error"] = True
    return block


def tool_use_id(call_id: str) -> str:
    """Return an id that the service accepts.

    A valid id is unchanged. In other ids, invalid characters are replaced and a hash is appended.
    """
    if _GOOD_ID.fullmatch(call_id):
        return call_id
    digest = hashlib.sha256(call_id.encode()).hexdigest()[:12]
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', call_id)[:64]}_{digest}"


def _tool(spec: ToolSpec) -> dict[str, JSON]:
    tool: dict[str, JSON] = {
        "name": spec.name,
        "input_schema": {"type": "object", **spec.parameters},
    }
    if spec.description:
        tool["description"] = spec.description
    return tool | {
        name: spec.extra[name] for name in ("cache_control", "strict") if name in spec.extra
    }


def _tool_choice(call: CallOptions) -> dict[str, JSON]:
    choice = call.tool_choice
    if isinstance(choice, tuple):
        return {"type": "tool", "name": choice[0]}
    return {"type": "any" if choice == "required" else choice}


def _set_response_format(
    encoded: EncodedRequest, request: ChatRequest, system: list[dict[str, JSON]]
) -> None:
    if isinstance(request.response_format, ResponseFormatJsonSchema):
        _, schema, _ = read_json_schema(request.response_format)
        encoded.body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    elif isinstance(request.response_format, ResponseFormatJson):
        system.append({"type": "text", "text": _JSON_ONLY})
        encoded.degradations.append(
            Degradation(
                requested="response_format json",
                actual="the system prompt instructs the model to answer in JSON",
                reason="the API enforces JSON only with a schema",
            )
        )


def _set_thinking(encoded: EncodedRequest, call: CallOptions, options: AnthropicOptions) -> None:
    """Enable thinking if the request sets an effort.

    Newer models accept the effort, and older ones a token budget.
    """
    body, effort = encoded.body, call.reasoning_effort
    is_enabled = options.extended_thinking
    if is_enabled is None:
        is_enabled = effort not in (None, "none") or options.thinking_budget_tokens is not None
    if not is_enabled:
        return
    if call.tool_choice == "required" or isinstance(call.tool_choice, tuple):
        _without_thinking(encoded, "a forced tool choice and thinking exclude each other")
        return
    if thinks_adaptively(call.model):
        body["thinking"] = {"type": "adaptive", "display": options.thinking_display}
        if effort not in (None, "none"):
            body.setdefault("output_config", {})["effort"] = (
                "low" if effort == "minimal" else effort
            )
        return
    budget = options.thinking_budget_tokens or _BUDGETS.get(effort or "", _BUDGETS["medium"])
    budget = min(budget, (call.max_tokens or 0) - _MIN_BUDGET)
    if budget < _MIN_BUDGET:
        _without_thinking(encoded, f"max_tokens {call.max_tokens} is too small for it")
        return
    body["thinking"] = {"type": "enabled", "budget_tokens": budget}


def _without_thinking(encoded: EncodedRequest, reason: str) -> None:
    encoded.degradations.append(
        Degradation(requested="thinking", actual="no thinking", reason=reason)
    )


def _mark_for_cache(body: dict[str, JSON]) -> None:
    """Set up to three cache marks.

    The first one comes after the tools and the system text, which stay the same. The others come
    after the two newest user messages. Text that a hook shows only once is at the end of the newest
    one, so the next request repeats this one only up to the user message before it.
    """
    places = [body.get("system") or body.get("tools") or []]
    places += [message["content"] for message in body["messages"] if message["role"] == "user"][-2:]
    for blocks in places:
        if blocks and blocks[-1].get("type") not in _UNMARKABLE:
            blocks[-1] = {
                **blocks[-1],
                "cache_control": blocks[-1].get("cache_control", _CACHE_MARK),
            }


_OUR_TYPE = {"tool_use": "tool_call"}
_DELTA_TEXT = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "input_json_delta": "partial_json",
}


@final
class MessagesApiReader(ResponseReader):
    """Reads one message."""

    def __init__(self, taken_ids: Iterable[str] = ()) -> None:
        super().__init__(taken_ids)
        self._starts: dict[int, dict[str, JSON]] = {}
        self._usage: dict[str, JSON] = {}

    def read_event(self, event: SseEvent) -> list[StreamChunk]:
        """Read one event of the stream. Unknown types are ignored, as the service requires."""
        data = read_json(event.data)
        kind = data.get("type") or event.name
        if kind == "message_start":
            self._begin(data["message"])
        elif kind == "content_block_start":
            return self._start(data["index"], data["content_block"])
        elif kind == "content_block_delta":
            return self._delta(data["index"], data["delta"])
        elif kind == "content_block_stop":
            return self._stop(data["index"])
        elif kind == "message_delta":
            self._end(data["delta"], data.get("usage"))
        elif kind == "message_stop":
            self.is_over = True
        elif kind == "error":
            raise ServiceError(data)
        return []

    def read_body(self, body: dict[str, JSON]) -> list[StreamChunk]:
        """Read a message that was not streamed."""
        if body.get("type") == "error":
            raise ServiceError(body)
        self._begin(body)
        chunks: list[StreamChunk] = []
        for index, block in enumerate(body["content"]):
            chunks += self._start(index, block)
            chunks += self._stop(index)
        self._end(body, None)
        return chunks

    def _begin(self, message: dict[str, JSON]) -> None:
        self.model: str | None = message.get("model")
        if message.get("id"):
            self.metadata["response_id"] = message["id"]
        self._count(message.get("usage"))

    def _end(self, delta: dict[str, JSON], usage: dict[str, JSON] | None) -> None:
        self.finish_reason: str | None = delta.get("stop_reason") or self.finish_reason
        for name in ("stop_sequence", "stop_details"):
            if delta.get(name) is not None:
                self.metadata[name] = delta[name]
        self._count(usage)

    def _start(self, index: int, block: dict[str, JSON]) -> list[StreamChunk]:
        self._starts[index] = {**block}
        kind: str = block["type"]
        tool = block.get("name") if kind == "tool_use" else None
        chunks = [self.blocks.start(index, _OUR_TYPE.get(kind, kind), tool)]
        begun = block.get("thinking" if kind == "thinking" else "text")
        if isinstance(begun, str) and begun:
            chunks += self.blocks.add(index, begun)
        return chunks

    def _delta(self, index: int, delta: dict[str, JSON]) -> list[StreamChunk]:
        kind = delta["type"]
        if kind in _DELTA_TEXT:
            return self.blocks.add(index, delta[_DELTA_TEXT[kind]])
        start = self._starts[index]
        if kind == "signature_delta":
            start["signature"] = (start.get("signature") or "") + delta["signature"]
        elif kind == "citations_delta":
            start["citations"] = [*(start.get("citations") or ()), delta["citation"]]
        return []

    def _stop(self, index: int) -> list[StreamChunk]:
        start, text = self._starts.pop(index), self.blocks.text(index)
        if start["type"] == "tool_use":
            arguments = text or start.get("input") or {}
            return self.end_call(index, start.get("id"), start["name"], arguments)
        return [self.blocks.end(index, _received_block(start, text))]

    def _count(self, usage: dict[str, JSON] | None) -> None:
        """Read token counts. Later counts include earlier ones, so they replace them."""
        if not usage:
            return
        used = self._usage
        used |= {name: value for name, value in usage.items() if value is not None}
        read, written = used.get("cache_read_input_tokens"), used.get("cache_creation_input_tokens")
        self.counted: dict[str, int | None] = {
            "input_tokens": used.get("input_tokens", 0) + (read or 0) + (written or 0),
            "output_tokens": used.get("output_tokens", 0),
            "cache_read_tokens": read,
            "cache_write_tokens": written,
            "reasoning_tokens": (used.get("output_tokens_details") or {}).get("thinking_tokens"),
        }


def _received_block(start: dict[str, JSON], text: str) -> ContentBlockUnion:
    kind = start["type"]
    if kind == "text":
        more = {"citations": start["citations"]} if start.get("citations") else {}
        return TextBlock(text=text, **more)
    if kind == "thinking":
        return ThinkingBlock(thinking=text, signature=start.get("signature") or None)
    if kind == "redacted_thinking":
        return RedactedThinkingBlock(data=start["data"])
    # A block of an unknown type, or for one of the service's own tools, is kept as received. Only
    # its input is parsed.
    whole = {**start, "input": read_json(text)} if text and "input" in start else start
    block: ContentBlockUnion = from_dict(ContentBlockUnion, whole)
    return block


@final
@attrs.frozen
class MessagesApi(WireFormat):
    """Anthropic's Messages API."""

    path: ClassVar[str] = "/v1/messages"
    reader: ClassVar[type[ResponseReader]] = MessagesApiReader
    count_path: ClassVar[str | None] = "/v1/messages/count_tokens"
    always_limits: ClassVar[bool] = True

    options: AnthropicOptions

    def encode(
        self, conversation: Conversation, request: ChatRequest, call: CallOptions
    ) -> EncodedRequest:
        """Encode a request as JSON.

        The service accepts system text only before all messages. System messages at the beginning
        of the conversation go there. Later ones, which hooks inject, stay in place as marked text
        from the user.
        """
        system, rest = _split_system(conversation.entries)
        body: dict[str, JSON] = {
            "model": call.model,
            "max_tokens": call.max_tokens,
            "messages": _messages(rest),
        }
        body["stream"] = True
        encoded = EncodedRequest(body)
        if request.tools:
            body["tools"] = [_tool(spec) for spec in request.tools]
            if call.tool_choice is not None:
                body["tool_choice"] = _tool_choice(call)
        _set_response_format(encoded, request, system)
        _set_thinking(encoded, call, self.options)
        if system:
            body["system"] = system
        # A thinking model rejects other sampling parameters.
        if "thinking" not in body:
            sampling = {"temperature": call.temperature, "top_p": call.top_p}
            body |= {name: value for name, value in sampling.items() if value is not None}
        if request.stop:
            body["stop_sequences"] = list(request.stop)
        user = (request.metadata or {}).get("user_id")
        if isinstance(user, str):
            body["metadata"] = {"user_id": user}
        if self.options.enable_prompt_caching:
            _mark_for_cache(body)
        return encoded
