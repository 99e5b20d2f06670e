"""provider-openai-compatible: any server with a Chat Completions API, such as vLLM or Ollama."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs

from amplifier._internal.json import JSON
from amplifier.contracts import Coordinator

from .._shared.configuration import choice, flag, option, optional, read_options, whole_number
from ._chat_completions import ChatCompletions, ConfiguredModels
from ._http_provider import Prices, Service, mount_provider
from ._wire_format import ProviderOptions

__all__ = ["mount"]

__amplifier_module_type__ = "provider"

_MODULE = "provider-openai-compatible"
_KEY, _URL = "OPENAI_COMPATIBLE_API_KEY", "OPENAI_COMPATIBLE_BASE_URL"
_DEFAULTS: dict[str, JSON] = {
    "default_model": "default",
    # Without a GPU, a long prompt takes minutes before the first token.
    "idle_timeout": 300.0,
    "context_window": 32_768,
    "max_tokens": 4096,
}


@attrs.frozen(kw_only=True)
class _Options(ProviderOptions):
    """The common options, and options for differences between servers."""

    max_tokens_field: str = option(
        choice("max_tokens", "max_completion_tokens"), default="max_tokens"
    )
    parallel_tool_calls: bool | None = option(optional(flag), default=None)
    seed: int | None = option(optional(whole_number(0)), default=None)


async def mount(
    coordinator: Coordinator, config: dict[str, Any] | None = None
) -> Callable[[], Awaitable[None]] | None:
    """Mount the provider, or log a warning if there is no base URL.

    Raises:
        PlanError: The configuration is invalid.
        MissingExtraError: The HTTP library is not installed.
        ModuleLoadError: There is no base URL, and the session is strict.
    """
    environment = {"api_key": _KEY, "base_url": _URL}
    options = read_options(_Options, _MODULE, config, environment=environment, **_DEFAULTS)
    service = Service(
        module=_MODULE,
        extra="openai",
        name="openai-compatible",
        display_name="OpenAI-compatible server",
        variables=(_KEY, _URL),
        default_model="default",
        headers={"Authorization": f"Bearer {options.api_key}"} if options.api_key else {},
        wire_format=ChatCompletions(
            max_tokens_field=options.max_tokens_field,
            parallel_tool_calls=options.parallel_tool_calls,
            seed=options.seed,
        ),
        catalogue=ConfiguredModels(
            context_window=options.context_window or 32_768,
            max_tokens=options.max_tokens or 4096,
        ),
        prices=Prices(None, options.base_url),
    )
    return await mount_provider(coordinator, service, options)
