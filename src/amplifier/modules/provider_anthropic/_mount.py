"""Mounts provider-anthropic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from amplifier.contracts import Coordinator

from .._llm_provider import (
    Prices,
    Sdk,
    ServiceDefinition,
    client_options,
    config_fields_of,
    log_not_mounted,
    make_info,
    mount_provider,
)
from .._shared.configuration import read_options
from ._messages_api import MessagesApi
from ._model_catalogue import DEFAULT_MODEL, ClaudeModels
from ._options import AnthropicOptions

_MODULE = "provider-anthropic"
_KEY, _URL = "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> Callable[[], Awaitable[None]] | None:
    """Mount the provider, or log a warning if there is no key.

    Raises:
        PlanError: The configuration is wrong.
        MissingExtraError: The SDK is not installed.
    """
    environment = {"api_key": _KEY, "base_url": _URL}
    options = read_options(AnthropicOptions, _MODULE, config, environment=environment, default_model=DEFAULT_MODEL)
    if not options.api_key:
        log_not_mounted(_MODULE, "API key", f"set {_KEY} or api_key in the plan")
        return None
    catalogue = ClaudeModels()
    info = make_info(
        "anthropic",
        "Anthropic",
        options,
        catalogue,
        env_vars=[_KEY],
        fields=config_fields_of(_KEY, _URL, default_model=DEFAULT_MODEL, needs_url=False),
        capabilities=("structured_output",),
    )
    service = ServiceDefinition(
        module=_MODULE,
        package="anthropic",
        extra="anthropic",
        client=_client,
        info=info,
        wire_format=MessagesApi(options),
        catalogue=catalogue,
        prices=Prices("anthropic"),
    )
    return await mount_provider(coordinator, service, options)


def _client(sdk: Sdk, options: AnthropicOptions) -> Any:
    return sdk.module.AsyncAnthropic(**client_options(sdk, options))
