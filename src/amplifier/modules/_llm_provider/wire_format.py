"""The interface of a wire format: encodes requests as a service's JSON and reads its responses."""

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
    """The options of one call, resolved from the keywords, the request and the configuration.

    Attributes:
        max_tokens: None leaves the limit to the service.
        stream: Whether the response is streamed.
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
    """A request in a service's JSON, and what the service does not support."""

    body: dict[str, Any]
    degradations: list[Degradation] = attrs.field(factory=list)

    @property
    def degradation(self) -> Degradation | None:
        """All degradations in one, as a response carries it."""
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
        """The path of requests below the base URL."""
        ...

    @property
    def always_limits(self) -> bool:
        """Whether the service requires a limit on output tokens."""
        ...

    def encode(self, conversation: Conversation, request: ChatRequest, call: CallOptions) -> EncodedRequest:
        """Encode a request."""
        ...

    def reader(self, taken_ids: Iterable[str]) -> ResponseReader:
        """A reader for one response."""
        ...


class ModelCatalogue(Protocol):
    """Describes a service's models by name, and reads the service's list of models."""

    @property
    def path(self) -> str:
        """The path of the list below the base URL."""
        ...

    def known(self) -> list[ModelInfo]:
        """Models to list if the service cannot be asked."""
        ...

    def look_up(self, model: str) -> ModelInfo:
        """The properties of a model, derived from its name."""
        ...

    def read(self, body: Any) -> list[ModelInfo]:
        """Read the service's list of models."""
        ...


def resolve_call_options(
    options: ProviderOptions, request: ChatRequest, keywords: Mapping[str, Any], default_max: int | None
) -> CallOptions:
    """Keywords take precedence over the request, the request over the configuration."""

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
    """A tool choice in the form of any service; a word that is not a known mode names a tool."""
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
    """Name, schema and strictness of a response format, given bare or in OpenAI's envelope."""
    given = format_.json_schema
    inner = given.get("schema")
    if isinstance(inner, dict):
        strict = given.get("strict") if format_.strict is None else format_.strict
        return str(given.get("name") or "answer"), inner, strict
    return str(given.get("title") or "answer").replace(" ", "_"), given, format_.strict


def merge_params(body: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Merge configured parameters into a request body: null removes one, an object is merged, other values replace."""
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
