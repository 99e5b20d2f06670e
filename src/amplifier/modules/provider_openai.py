"""provider-openai: OpenAI's models through its SDK, with the Responses API or Chat Completions.

Code shared by all providers is in `_llm_provider`, the two APIs are in `_openai_wire`.
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
    WireFormat,
    client_options,
    config_fields_of,
    log_not_mounted,
    make_info,
    mount_provider,
)
from ._openai_wire import DEFAULT_MODEL, ChatCompletions, OpenAIModels, ResponsesApi
from ._shared.configuration import choice, flag, option, optional, read_options, text

__all__ = ["mount"]

__amplifier_module_type__ = "provider"

_MODULE = "provider-openai"
_KEY, _URL = "OPENAI_API_KEY", "OPENAI_BASE_URL"


@attrs.frozen(kw_only=True)
class _Options(ProviderOptions):
    """The common keys, and those of OpenAI's APIs."""

    api: str = option(choice("responses", "chat"), default="responses")
    reasoning_summary: str | None = option(optional(choice("auto", "concise", "detailed")), default=None)
    parallel_tool_calls: bool | None = option(optional(flag), default=None)
    organization: str | None = option(optional(text), default=None)
    project: str | None = option(optional(text), default=None)


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> Callable[[], Awaitable[None]] | None:
    """Mount the provider, or log a warning if there is no key.

    Raises:
        PlanError: The configuration is wrong.
        MissingExtraError: The SDK is not installed.
    """
    environment = {"api_key": _KEY, "base_url": _URL, "organization": "OPENAI_ORG_ID", "project": "OPENAI_PROJECT_ID"}
    options = read_options(_Options, _MODULE, config, environment=environment, default_model=DEFAULT_MODEL)
    if not options.api_key:
        log_not_mounted(_MODULE, "API key", f"set {_KEY} or api_key in the plan")
        return None
    catalogue = OpenAIModels()
    wire_format: WireFormat
    if options.api == "chat":
        wire_format = ChatCompletions(
            max_tokens_field="max_completion_tokens",
            has_developer=True,
            parallel_tool_calls=options.parallel_tool_calls,
        )
    else:
        wire_format = ResponsesApi(
            reasoning_summary=options.reasoning_summary, parallel_tool_calls=options.parallel_tool_calls
        )
    service = ServiceDefinition(
        module=_MODULE,
        package="openai",
        extra="openai",
        client=_client,
        info=make_info(
            "openai",
            "OpenAI",
            options,
            catalogue,
            env_vars=[_KEY],
            fields=config_fields_of(_KEY, _URL, default_model=DEFAULT_MODEL, needs_url=False),
            capabilities=("structured_output",),
        ),
        wire_format=wire_format,
        catalogue=catalogue,
        prices=Prices("openai"),
    )
    return await mount_provider(coordinator, service, options)


def _client(sdk: Sdk, options: _Options) -> Any:
    given = client_options(sdk, options)
    return sdk.module.AsyncOpenAI(**given, organization=options.organization, project=options.project)
