"""provider-openai-compatible: any server with a Chat Completions API: vLLM, Ollama, llama.cpp, a gateway.

Code shared by all providers is in `_llm_provider`, the API is in `_openai_wire`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs

from amplifier.contracts import Coordinator

from ._llm_provider import (
    Prices,
    ProviderOptions,
    Sdk,
    ServiceDefinition,
    client_options,
    config_fields_of,
    log_not_mounted,
    make_info,
    mount_provider,
)
from ._openai_wire import ChatCompletions, ConfiguredModels
from ._shared.configuration import choice, flag, option, optional, read_options, whole_number

__all__ = ["mount"]

__amplifier_module_type__ = "provider"

_MODULE = "provider-openai-compatible"
_KEY, _URL = "OPENAI_COMPATIBLE_API_KEY", "OPENAI_COMPATIBLE_BASE_URL"
_NO_KEY = "not-needed"
_DEFAULTS: dict[str, Any] = {
    "default_model": "default",
    "idle_timeout": 300.0,  # without a GPU a long prompt takes minutes before the first token
    "context_window": 32_768,
    "max_tokens": 4096,
}


@attrs.frozen(kw_only=True)
class _Options(ProviderOptions):
    """The common keys, and those in which servers of the Chat Completions API differ."""

    max_tokens_field: str = option(choice("max_tokens", "max_completion_tokens"), default="max_tokens")
    parallel_tool_calls: bool | None = option(optional(flag), default=None)
    seed: int | None = option(optional(whole_number(0)), default=None)


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> Callable[[], Awaitable[None]] | None:
    """Mount the provider, or log a warning if there is no base URL.

    Raises:
        PlanError: The configuration is wrong.
        MissingExtraError: The SDK is not installed.
    """
    environment = {"api_key": _KEY, "base_url": _URL}
    options = read_options(_Options, _MODULE, config, environment=environment, **_DEFAULTS)
    if not options.base_url:
        log_not_mounted(_MODULE, "address", f"set {_URL} or base_url in the plan, such as http://127.0.0.1:8080/v1")
        return None
    catalogue = ConfiguredModels(options.default_model, options.context_window or 32_768, options.max_tokens or 4096)
    wire_format = ChatCompletions(
        max_tokens_field=options.max_tokens_field,
        parallel_tool_calls=options.parallel_tool_calls,
        seed=options.seed,
    )
    service = ServiceDefinition(
        module=_MODULE,
        package="openai",
        extra="openai",
        client=_client,
        info=make_info(
            "openai-compatible",
            "OpenAI-compatible server",
            options,
            catalogue,
            env_vars=[_KEY],
            fields=config_fields_of(_KEY, _URL, default_model="default", needs_url=True),
        ),
        wire_format=wire_format,
        catalogue=catalogue,
        prices=Prices(None, options.base_url),
    )
    return await mount_provider(coordinator, service, options)


def _client(sdk: Sdk, options: _Options) -> Any:
    given = client_options(sdk, options)
    given["api_key"] = options.api_key or _NO_KEY
    # Without these the SDK would send OpenAI's organization and project to a server that is not OpenAI's.
    headers = {
        **(given["default_headers"] or {}),
        "OpenAI-Organization": sdk.module.omit,
        "OpenAI-Project": sdk.module.omit,
    }
    given["default_headers"] = headers
    return sdk.module.AsyncOpenAI(**given)
