"""Mounting a provider: read the plan, find the key, build the client off the loop, mount, and say how to close."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio.to_thread
import attrs

from amplifier.contracts import Coordinator
from amplifier.models import ConfigField, ProviderInfo

from .options import ProviderOptions
from .prices import Prices
from .sdk_http_client import Sdk, SdkHttpClient, import_sdk, set_platform
from .sdk_provider import EVENTS, SdkProvider
from .streams import AnswerStreams, start_soon_of
from .wire_format import ModelCatalogue, WireFormat

logger = logging.getLogger("amplifier.modules.provider")


@attrs.frozen(kw_only=True)
class ServiceDefinition:
    """What makes one provider module different from another.

    Attributes:
        module: The module's id.
        package: The SDK's import name.
        extra: The extra of this project that brings it.
        client: Builds the SDK's client.
        info: What the provider says of itself.
    """

    module: str
    package: str
    extra: str
    client: Callable[[Sdk, Any], Any]
    info: ProviderInfo
    wire_format: WireFormat
    catalogue: ModelCatalogue
    prices: Prices


def log_not_mounted(module: str, what: str, how: str) -> None:
    """Say why a provider is not there: without what it needs it declines and raises nothing."""
    logger.warning("%s is not mounted: no %s; %s", module, what, how)


async def mount_provider(
    coordinator: Coordinator, service: ServiceDefinition, options: ProviderOptions
) -> Callable[[], Awaitable[None]]:
    """Build the client and mount the provider.

    Returns:
        The cleanup, which closes the client and what is open of its streams.

    Raises:
        MissingExtraError: The SDK is not installed.
    """
    wire = await anyio.to_thread.run_sync(_connect, service, options)
    provider = SdkProvider(
        service.info,
        options,
        wire=wire,
        wire_format=service.wire_format,
        catalogue=service.catalogue,
        prices=service.prices,
        hooks=coordinator.hooks,
        streams=AnswerStreams(start_soon_of(coordinator)),
    )
    await coordinator.mount("providers", provider, name=provider.name)
    coordinator.register_contributor("observability.events", service.module, lambda: list(EVENTS))
    return provider.aclose


def _connect(service: ServiceDefinition, options: ProviderOptions) -> SdkHttpClient:
    """Everything that takes long: importing the SDK, reading certificates and prices."""
    sdk = import_sdk(service.package, feature=service.module, extra=service.extra)
    client = service.client(sdk, options)
    set_platform(client)
    service.prices.load()
    return SdkHttpClient(sdk, client)


def make_info(
    name: str,
    display_name: str,
    options: ProviderOptions,
    catalogue: ModelCatalogue,
    *,
    env_vars: list[str],
    fields: list[ConfigField],
) -> ProviderInfo:
    """What a provider says of itself, for the model it is configured with."""
    model = catalogue.look_up(options.default_model)
    return ProviderInfo(
        id=name,
        display_name=display_name,
        credential_env_vars=env_vars,
        capabilities=["tools", "streaming", "thinking", "vision", "json_mode"],
        defaults={
            "model": options.default_model,
            "context_window": options.context_window or model.context_window,
            "max_output_tokens": options.max_tokens or model.max_output_tokens,
            "temperature": options.temperature,
            "timeout": options.timeout,
        },
        config_fields=fields,
    )


def config_fields_of(key_variable: str, url_variable: str, *, default_model: str, needs_url: bool) -> list[ConfigField]:
    """What a person is asked to set a provider up."""
    return [
        ConfigField(
            id="api_key",
            display_name="API key",
            field_type="secret",
            prompt="The key to authenticate with",
            env_var=key_variable,
            required=not needs_url,
        ),
        ConfigField(
            id="base_url",
            display_name="Address",
            prompt="The address of the API, if it is not the usual one",
            env_var=url_variable,
            required=needs_url,
        ),
        ConfigField(
            id="default_model",
            display_name="Model",
            prompt="The model to ask where a request names none",
            required=False,
            default=default_model,
        ),
    ]
