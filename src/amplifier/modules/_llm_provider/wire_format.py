"""What a wire_format is: how a request becomes a service's JSON, and how its answer is read back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeAlias

import attrs

from amplifier.models import ChatRequest, Degradation, ModelInfo, ResponseFormatJsonSchema

from .conversation import Conversation
from .options import EFFORTS, ProviderOptions
from .response_reader import ResponseReader

ToolChoice: TypeAlias = str | tuple[str]
"""``"auto"``, ``"none"``, ``"required"``, or the name of the one tool to call, in a tuple."""


@attrs.frozen(kw_only=True)
class CallOptions:
    """What one call asks for, once the request, the keywords and the config have had their say.

    Attributes:
        max_tokens: None leaves it to the service.
        stream: Whether the answer is to come in pieces.
    """

    model: str
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    reasoning_effort: str | None
    tool_choice: ToolChoice | None
    timeout: float | None
    stream: bool


@attrs.define
class EncodedRequest:
    """A request in a service's words, and what it could not say."""

    body: dict[str, Any]
    degradations: list[Degradation] = attrs.field(factory=list)

    @property
    def degradation(self) -> Degradation | None:
        """All of them in one, as a response carries it."""
        if len(self.degradations) < 2:
            return self.degradations[0] if self.degradations else None
        joined = {
            name: "; ".join(getattr(item, name) for item in self.degradations)
            for name in ("requested", "actual", "reason")
        }
        return Degradation(**joined)


class WireFormat(Protocol):
    """One API of a service."""

    @property
    def path(self) -> str:
        """Where requests go, below the base address."""
        ...

    @property
    def always_limits(self) -> bool:
        """Whether a request must say how long the answer may be."""
        ...

    def encode(self, conversation: Conversation, request: ChatRequest, call: CallOptions) -> EncodedRequest:
        """Write a request."""
        ...

    def reader(self, taken_ids: Iterable[str]) -> ResponseReader:
        """A reader for one answer."""
        ...


class ModelCatalogue(Protocol):
    """What is known of a service's models without asking it, and how to read what it says when asked."""

    @property
    def path(self) -> str:
        """Where the list is, below the base address."""
        ...

    def known(self) -> list[ModelInfo]:
        """The models worth naming."""
        ...

    def look_up(self, model: str) -> ModelInfo:
        """What is known, or assumed, of a model."""
        ...

    def read(self, body: Any) -> list[ModelInfo]:
        """The service's own list."""
        ...


def resolve_call_options(
    options: ProviderOptions, request: ChatRequest, keywords: Mapping[str, Any], default_max: int | None
) -> CallOptions:
    """Who wins: the keywords of the call, then the request, then the config."""

    def first(*values: Any) -> Any:
        return next((value for value in values if value is not None), None)

    asked = first(keywords.get("max_tokens"), keywords.get("max_output_tokens"), request.max_output_tokens)
    effort = first(keywords.get("reasoning_effort"), request.reasoning_effort, options.reasoning_effort)
    return CallOptions(
        model=first(keywords.get("model"), request.model, options.default_model),
        max_tokens=first(asked, options.max_tokens, default_max),
        temperature=first(keywords.get("temperature"), request.temperature, options.temperature),
        top_p=first(keywords.get("top_p"), request.top_p, options.top_p),
        reasoning_effort=effort if effort in EFFORTS else None,
        tool_choice=read_tool_choice(first(keywords.get("tool_choice"), request.tool_choice)),
        timeout=first(keywords.get("timeout"), request.timeout, options.timeout),
        stream=options.use_streaming,
    )


def read_tool_choice(given: Any) -> ToolChoice | None:
    """A tool choice in any wire_format's form; a word that is none of the usual ones names a tool."""
    if given is None:
        return None
    if isinstance(given, dict):
        function = given.get("function")
        name = given.get("name") or (function.get("name") if isinstance(function, dict) else None)
        if isinstance(name, str) and name:
            return (name,)
        given = given.get("type") or given.get("mode")
    if not isinstance(given, str):
        return None
    return "required" if given == "any" else given if given in ("auto", "none", "required") else (given,)


def read_json_schema(format_: ResponseFormatJsonSchema) -> tuple[str, dict[str, Any], bool | None]:
    """Name, schema and strictness of a response format, whether the schema is bare or in OpenAI's envelope."""
    given = format_.json_schema
    inner = given.get("schema")
    if isinstance(inner, dict):
        strict = given.get("strict") if format_.strict is None else format_.strict
        return str(given.get("name") or "answer"), inner, strict
    return str(given.get("title") or "answer").replace(" ", "_"), given, format_.strict


def merge_params(body: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """The body with the config's own parameters: null takes one out, an object is merged, anything else replaces."""
    merged = dict(body)
    for name, value in extra.items():
        before = merged.get(name)
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping) and isinstance(before, dict):
            merged[name] = merge_params(before, value)
        else:
            merged[name] = value
    return merged
