"""Reads the plan and mounts the provider."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, final

from amplifier.contracts import Coordinator
from amplifier.models import ChatRequest

from .._llm_provider import (
    Call,
    Conversation,
    Encoded,
    Prices,
    Sdk,
    Service,
    client_options,
    common_fields,
    decline,
    make_info,
    mount_service,
)
from ._decode import MessageReader
from ._encode import encode
from ._models import DEFAULT_MODEL, ClaudeModels
from ._options import AnthropicOptions, read_anthropic_options

_MODULE = "provider-anthropic"


@final
class MessagesDialect:
    """Anthropic's Messages API."""

    path = "/v1/messages"
    always_limits = True

    def __init__(self, options: AnthropicOptions) -> None:
        self._options = options

    def encode(self, conversation: Conversation, request: ChatRequest, call: Call) -> Encoded:
        """Write a request."""
        return encode(conversation, request, call, self._options)

    def reader(self, taken_ids: Iterable[str]) -> MessageReader:
        """A reader for one answer."""
        return MessageReader(taken_ids)


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> Callable[[], Awaitable[None]] | None:
    """Mount the provider, or decline where there is no key.

    Raises:
        PlanError: The config is wrong.
        MissingExtraError: The SDK is not installed.
    """
    options = read_anthropic_options(config)
    if not options.api_key:
        decline(_MODULE, "API key", "set ANTHROPIC_API_KEY or api_key in the plan")
        return None
    catalogue = ClaudeModels()
    info = make_info(
        "anthropic",
        "Anthropic",
        options,
        catalogue,
        env_vars=["ANTHROPIC_API_KEY"],
        fields=common_fields("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", default_model=DEFAULT_MODEL, needs_url=False),
    )
    service = Service(
        module=_MODULE,
        package="anthropic",
        extra="anthropic",
        client=_client,
        info=info,
        dialect=MessagesDialect(options),
        catalogue=catalogue,
        prices=Prices("anthropic"),
    )
    return await mount_service(coordinator, service, options)


def _client(sdk: Sdk, options: AnthropicOptions) -> Any:
    return sdk.module.AsyncAnthropic(**client_options(sdk, options))
