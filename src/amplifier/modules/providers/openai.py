"""provider-openai: OpenAI's models, through the Responses API or Chat Completions."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, final

import attrs

from amplifier.contracts import Coordinator
from amplifier.models import ModelInfo

from .._shared.configuration import choice, flag, option, optional, read_options, text
from ._chat_completions import ChatCompletions
from ._http_provider import Prices, Service, mount_provider
from ._responses_api import ResponsesApi
from ._wire_format import ModelCatalogue, ProviderOptions, WireFormat

__all__ = ["DEFAULT_MODEL", "OpenAIModels", "mount"]

__amplifier_module_type__ = "provider"

_MODULE = "provider-openai"
_KEY, _URL = "OPENAI_API_KEY", "OPENAI_BASE_URL"
DEFAULT_MODEL = "gpt-5.6-sol"

_CAPABILITIES = ["tools", "streaming", "thinking", "vision", "json_mode"]

# Patterns of model names, each with a context window and output tokens. The first match is used.
_SIZES: tuple[tuple[str, int, int], ...] = (
    (r"gpt-(5\.[4-9]|[6-9])(?!.*(mini|nano))", 1_050_000, 128_000),
    (r"gpt-5", 400_000, 128_000),
    (r"gpt-4\.1", 1_047_576, 32_768),
    (r"gpt-4o|chatgpt-4o", 128_000, 16_384),
    (r"gpt-4-turbo", 128_000, 4_096),
    (r"gpt-4", 8_192, 4_096),
    (r"gpt-3\.5", 16_385, 4_096),
    (r"gpt-oss", 131_072, 32_768),
    (r"o[134](-|$)", 200_000, 100_000),
)
_UNKNOWN = (128_000, 16_384)


@attrs.frozen(kw_only=True)
class _Options(ProviderOptions):
    """The common options, and the options of OpenAI's APIs."""

    api: str = option(choice("responses", "chat"), default="responses")
    reasoning_summary: str | None = option(
        optional(choice("auto", "concise", "detailed")), default=None
    )
    parallel_tool_calls: bool | None = option(optional(flag), default=None)
    organization: str | None = option(optional(text), default=None)
    project: str | None = option(optional(text), default=None)


async def mount(
    coordinator: Coordinator, config: dict[str, Any] | None = None
) -> Callable[[], Awaitable[None]] | None:
    """Mount the provider, or log a warning if there is no key.

    Raises:
        PlanError: The configuration is invalid.
        MissingExtraError: The HTTP library is not installed.
        ModuleLoadError: There is no key, and the session is strict.
    """
    environment = {
        "api_key": _KEY,
        "base_url": _URL,
        "organization": "OPENAI_ORG_ID",
        "project": "OPENAI_PROJECT_ID",
    }
    options = read_options(
        _Options, _MODULE, config, environment=environment, default_model=DEFAULT_MODEL
    )
    wire_format: WireFormat
    if options.api == "chat":
        wire_format = ChatCompletions(
            max_tokens_field="max_completion_tokens",
            has_developer=True,
            parallel_tool_calls=options.parallel_tool_calls,
        )
    else:
        wire_format = ResponsesApi(
            reasoning_summary=options.reasoning_summary,
            parallel_tool_calls=options.parallel_tool_calls,
        )
    headers = {
        "Authorization": f"Bearer {options.api_key}",
        "OpenAI-Organization": options.organization,
        "OpenAI-Project": options.project,
    }
    service = Service(
        module=_MODULE,
        extra="openai",
        name="openai",
        display_name="OpenAI",
        variables=(_KEY, _URL),
        default_model=DEFAULT_MODEL,
        base_url="https://api.openai.com/v1",
        headers={name: value for name, value in headers.items() if value},
        capabilities=("structured_output",),
        wire_format=wire_format,
        catalogue=OpenAIModels(),
        prices=Prices("openai"),
    )
    return await mount_provider(coordinator, service, options)


@final
class OpenAIModels(ModelCatalogue):
    """The catalogue of provider-openai."""

    def look_up(self, model: str) -> ModelInfo:
        """Return the properties of a model, derived from its name."""
        sizes = ((window, output) for pattern, window, output in _SIZES if re.match(pattern, model))
        window, output = next(sizes, _UNKNOWN)
        return ModelInfo(
            id=model,
            display_name=model,
            context_window=window,
            max_output_tokens=output,
            capabilities=list(_CAPABILITIES),
        )
