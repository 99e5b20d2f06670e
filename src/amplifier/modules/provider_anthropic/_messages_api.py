"""Requests of Anthropic's Messages API."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any, ClassVar, final

import attrs

from amplifier.models import (
    ChatRequest,
    ContentBlockUnion,
    Degradation,
    ImageBlock,
    ReasoningBlock,
    RedactedThinkingBlock,
    ResponseFormatJson,
    ResponseFormatJsonSchema,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSpec,
    UnknownBlock,
    to_dict,
)

from .._llm_provider import (
    CallOptions,
    Conversation,
    EncodedRequest,
    Entry,
    MessageEntry,
    ToolResultEntry,
    read_json_schema,
)
from ._messages_api_reader import MessagesApiReader
from ._model_catalogue import thinks_adaptively
from ._options import AnthropicOptions

_GOOD_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_CACHE_MARK = {"type": "ephemeral"}
_UNMARKABLE = ("thinking", "redacted_thinking")
_BUDGETS = {"minimal": 1024, "low": 4096, "medium": 10_000, "high": 16_000, "xhigh": 24_000, "max": 28_000}
_LEAST_BUDGET = 1024
_CONTINUED = "[the conversation continues]"
_JSON_ONLY = "Answer with one JSON value and nothing else: no words around it, no code fence."


@final
@attrs.frozen
class MessagesApi:
    """Anthropic's Messages API."""

    path: ClassVar[str] = "/v1/messages"
    always_limits: ClassVar[bool] = True

    options: AnthropicOptions

    def encode(self, conversation: Conversation, request: ChatRequest, call: CallOptions) -> EncodedRequest:
        """Encode a request as JSON.

        The service accepts system text only before all messages. System messages that open the conversation go there;
        later ones, which hooks inject, stay in place as marked text of the user.
        """
        system, rest = _split_system(conversation.entries)
        encoded = EncodedRequest({"model": call.model, "max_tokens": call.max_tokens, "messages": _messages(rest)})
        body = encoded.body
        if request.tools:
            body["tools"] = [_tool(spec) for spec in request.tools]
            if call.tool_choice is not None:
                body["tool_choice"] = _tool_choice(call)
        _set_response_format(encoded, request, system)
        _set_thinking(encoded, call, self.options)
        if system:
            body["system"] = system
        if "thinking" not in body:  # a thinking model rejects other sampling parameters
            body |= {n: v for n, v in (("temperature", call.temperature), ("top_p", call.top_p)) if v is not None}
        if request.stop:
            body["stop_sequences"] = list(request.stop)
        user = (request.metadata or {}).get("user_id")
        if isinstance(user, str):
            body["metadata"] = {"user_id": user}
        if call.stream:
            body["stream"] = True
        if self.options.enable_prompt_caching:
            _mark_for_cache(body)
        return encoded

    def reader(self, taken_ids: Iterable[str]) -> MessagesApiReader:
        """A reader for one response."""
        return MessagesApiReader(taken_ids)


def _split_system(entries: list[Entry]) -> tuple[list[dict[str, Any]], list[Entry]]:
    system: list[dict[str, Any]] = []
    for index, entry in enumerate(entries):
        if not (isinstance(entry, MessageEntry) and entry.role in ("system", "developer")):
            return system, entries[index:]
        system += [_text(block) for block in entry.blocks if isinstance(block, TextBlock)]
    return system, []


def _messages(entries: list[Entry]) -> list[dict[str, Any]]:
    """Messages with alternating roles that begin with the user; tool results come first in their message."""
    turns: list[dict[str, Any]] = []
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


def _turn(entry: Entry) -> tuple[str, list[dict[str, Any]]]:
    if isinstance(entry, ToolResultEntry):
        return "user", [_result(entry)]
    if entry.role in ("system", "developer"):
        texts = [block.text for block in entry.blocks if isinstance(block, TextBlock)]
        return "user", [{"type": "text", "text": f"<system-reminder>\n{text}\n</system-reminder>"} for text in texts]
    return entry.role, [block for given in entry.blocks if (block := _block(given)) is not None]


def _block(block: ContentBlockUnion) -> dict[str, Any] | None:
    """One block; None for what the service rejects: reasoning of other services and thinking without a signature."""
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
            return {"type": "tool_use", "id": tool_use_id(block.id), "name": block.name, "input": block.input}
        case ImageBlock():
            return {"type": "image", "source": block.source}
        case UnknownBlock():
            return to_dict(block)
        case ReasoningBlock() | ToolResultBlock():
            return None


def _text(block: TextBlock) -> dict[str, Any]:
    kept = {name: block.extra[name] for name in ("cache_control", "citations") if block.extra.get(name)}
    return {"type": "text", "text": block.text, **kept}


def _result(result: ToolResultEntry) -> dict[str, Any]:
    shown: dict[str, Any] = {"type": "tool_result", "tool_use_id": tool_use_id(result.call_id)}
    parts = [part for given in result.parts if (part := _block(given)) is not None]
    if len(parts) == 1 and parts[0].keys() == {"type", "text"}:
        shown["content"] = parts[0]["text"]
    elif parts:
        shown["content"] = parts
    if result.is_error:
        shown["is_error"] = True
    return shown


def tool_use_id(given: str) -> str:
    """A valid id for the service: its own ids unchanged, others with invalid characters replaced and a hash appended."""
    if _GOOD_ID.fullmatch(given):
        return given
    return re.sub(r"[^A-Za-z0-9_-]", "_", given)[:64] + "_" + hashlib.sha256(given.encode()).hexdigest()[:12]


def _tool(spec: ToolSpec) -> dict[str, Any]:
    tool: dict[str, Any] = {"name": spec.name, "input_schema": {"type": "object", **spec.parameters}}
    if spec.description:
        tool["description"] = spec.description
    return tool | {name: spec.extra[name] for name in ("cache_control", "strict") if name in spec.extra}


def _tool_choice(call: CallOptions) -> dict[str, Any]:
    choice = call.tool_choice
    if isinstance(choice, tuple):
        return {"type": "tool", "name": choice[0]}
    return {"type": "any" if choice == "required" else choice}


def _set_response_format(encoded: EncodedRequest, request: ChatRequest, system: list[dict[str, Any]]) -> None:
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
    """Enable thinking if the request has an effort; newer models take the effort, older ones a token budget."""
    body, effort = encoded.body, call.reasoning_effort
    wanted = options.extended_thinking
    if wanted is None:
        wanted = effort not in (None, "none") or options.thinking_budget_tokens is not None
    if not wanted:
        return
    if call.tool_choice == "required" or isinstance(call.tool_choice, tuple):
        _without_thinking(encoded, "a forced tool choice and thinking exclude each other")
        return
    if thinks_adaptively(call.model):
        body["thinking"] = {"type": "adaptive", "display": options.thinking_display}
        if effort not in (None, "none"):
            body.setdefault("output_config", {})["effort"] = "low" if effort == "minimal" else effort
        return
    budget = options.thinking_budget_tokens or _BUDGETS.get(effort or "", _BUDGETS["medium"])
    budget = min(budget, (call.max_tokens or 0) - _LEAST_BUDGET)
    if budget < _LEAST_BUDGET:
        _without_thinking(encoded, f"max_tokens {call.max_tokens} is too small for it")
        return
    body["thinking"] = {"type": "enabled", "budget_tokens": budget}


def _without_thinking(encoded: EncodedRequest, reason: str) -> None:
    encoded.degradations.append(Degradation(requested="thinking", actual="no thinking", reason=reason))


def _mark_for_cache(body: dict[str, Any]) -> None:
    """Set two cache marks: after the tools and system text, which stay the same, and after the newest user message."""
    places = [body.get("system") or body.get("tools") or []]
    if body["messages"] and body["messages"][-1]["role"] == "user":
        places.append(body["messages"][-1]["content"])
    for blocks in places:
        if blocks and blocks[-1].get("type") not in _UNMARKABLE:
            blocks[-1] = {**blocks[-1], "cache_control": blocks[-1].get("cache_control", _CACHE_MARK)}
