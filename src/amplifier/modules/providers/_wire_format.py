"""What a provider of a remote service is configured with, and the interface of a wire format.

A wire format encodes requests as a service's JSON and reads its responses; `_chat_completions` and `_responses_api` are OpenAI's
two, `anthropic` has its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

import attrs

from amplifier.models import ChatRequest, Degradation, ModelInfo, ResponseFormatJsonSchema

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
from ._response_reader import ResponseReader

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


@attrs.frozen(kw_only=True)
class ProviderOptions:
    """How a provider reaches its service and what it requests; the reference page of each module explains the keys.

    Attributes:
        timeout: Seconds for one call from its beginning to its last byte; None for no limit.
        idle_timeout: Seconds without a byte while a response is streamed; None for no limit.
        connect_timeout: Seconds to reach the server.
    """

    api_key: str | None = option(optional(secret), default=None)
    base_url: str | None = option(optional(url), default=None)
    default_model: str = option(text, aliases=("model",))
    max_tokens: int | None = option(optional(whole_number(1)), default=None, aliases=("max_output_tokens",))
    context_window: int | None = option(optional(whole_number(1)), default=None)
    temperature: float | None = option(optional(number(0, 2)), default=None)
    top_p: float | None = option(optional(number(0, 1)), default=None)
    reasoning_effort: str | None = option(optional(choice(*EFFORTS)), default=None, aliases=("effort",))
    timeout: float | None = option(no_limit_or_seconds, default=1800.0)
    idle_timeout: float | None = option(no_limit_or_seconds, default=120.0)
    connect_timeout: float = option(seconds, default=10.0)
    priority: float = option(number(), default=100)
    raw: bool = option(flag, default=False)
    extra_headers: Mapping[str, str] = option(mapping_of_secrets("an object of texts"), default=attrs.Factory(dict))
    extra_request_params: Mapping[str, Any] = option(mapping, default=attrs.Factory(dict))


ToolChoice: TypeAlias = str | tuple[str]
"""``"auto"``, ``"none"``, ``"required"``, or the name of the one tool to call, in a tuple."""


@attrs.frozen(kw_only=True)
class CallOptions:
    """The options of one call, resolved from the keywords, the request and the configuration.

    Attributes:
        max_tokens: None leaves the limit to the service.
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


class WireFormat(ABC):
    """One API of a service.

    Attributes:
        path: The path of requests below the base URL.
        count_path: The path at which the service counts the tokens of a request; None if it has none.
        always_limits: Whether the service requires a limit on output tokens.
        reader: Reads one response; made with the ids of tool calls that the conversation uses already.
    """

    path: ClassVar[str]
    count_path: ClassVar[str | None] = None
    always_limits: ClassVar[bool] = False
    reader: ClassVar[type[ResponseReader]]

    @abstractmethod
    def encode(self, conversation: Conversation, request: ChatRequest, call: CallOptions) -> EncodedRequest:
        """Encode a request as JSON."""


class ModelCatalogue(ABC):
    """Describes a service's models by name, and reads the service's list of models.

    Attributes:
        path: The path of the list below the base URL; None if the service has none.
    """

    path: str | None = "/models"

    @abstractmethod
    def look_up(self, model: str) -> ModelInfo:
        """The properties of a model, derived from its name."""

    def read(self, body: Any) -> list[ModelInfo]:
        """Read the service's list of models."""
        return [self.listed(given) for given in body["data"]]

    def listed(self, given: dict[str, Any]) -> ModelInfo:
        """A member of the service's list."""
        return self.look_up(given["id"])


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
    """Merge configured parameters into a request body: null removes one, an object is merged, other values replace.

    Tools are added to those of the agent: they are the service's own, such as its web search.
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
