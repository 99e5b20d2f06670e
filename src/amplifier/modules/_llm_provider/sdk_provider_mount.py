"""Builds the client of an SDK in a worker thread and mounts the provider."""

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
    """What differs between provider modules.

    Attributes:
        module: The module's id.
        package: The SDK's import name.
        extra: The extra of this project that installs it.
        client: Builds the SDK's client.
        info: The provider's description.
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
    """Log why a provider is not mounted; a missing credential is not an error."""
    logger.warning("%s is not mounted: no %s; %s", module, what, how)


async def mount_provider(
    coordinator: Coordinator, service: ServiceDefinition, options: ProviderOptions
) -> Callable[[], Awaitable[None]]:
    """Build the client and mount the provider.

    Returns:
        The cleanup, which closes open streams and the client.

    Raises:
        MissingExtraError: The SDK is not installed.
    """
    client = await anyio.to_thread.run_sync(_build_client, service, options)
    provider = SdkProvider(
        service.info,
        options,
        client=client,
        wire_format=service.wire_format,
        catalogue=service.catalogue,
        prices=service.prices,
        hooks=coordinator.hooks,
        streams=AnswerStreams(start_soon_of(coordinator)),
    )
    await coordinator.mount("providers", provider, name=provider.name)
    coordinator.register_contributor("observability.events", service.module, lambda: list(EVENTS))
    return provider.aclose


def _build_client(service: ServiceDefinition, options: ProviderOptions) -> SdkHttpClient:
    """The slow part: importing the SDK, reading certificates and prices."""
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
    capabilities: tuple[str, ...] = (),
) -> ProviderInfo:
    """The description of a provider with its configured model; ``capabilities`` are those that not every service has."""
    model = catalogue.look_up(options.default_model)
    return ProviderInfo(
        id=name,
        display_name=display_name,
        credential_env_vars=env_vars,
        capabilities=["tools", "streaming", "thinking", "vision", "json_mode", *capabilities],
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
    """The fields a user fills in to set up a provider."""
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
