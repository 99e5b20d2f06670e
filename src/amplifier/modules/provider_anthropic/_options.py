"""What provider-anthropic's part of the mount plan may say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from amplifier.modules._llm_provider import ProviderOptions, choice, optional, read_options
from amplifier.modules._tool_base import count, flag

from ._model_catalogue import DEFAULT_MODEL


@attrs.frozen(kw_only=True)
class AnthropicOptions(ProviderOptions):
    """The common keys, and those about thinking and caching.

    Attributes:
        extended_thinking: True or False decide; None leaves it to the effort asked for.
        thinking_budget_tokens: For the models that are given a budget.
        thinking_display: Whether thoughts are shown, for the others.
        enable_prompt_caching: Mark what stays the same, so that the service may cache it.
    """

    extended_thinking: bool | None = None
    thinking_budget_tokens: int | None = None
    thinking_display: str = "summarized"
    enable_prompt_caching: bool = True


_CHECKS = {
    "extended_thinking": optional(flag),
    "thinking_budget_tokens": optional(count(1024)),
    "thinking_display": choice("summarized", "omitted"),
    "enable_prompt_caching": flag,
}


def read_anthropic_options(config: Mapping[str, Any] | None) -> AnthropicOptions:
    """Read the config.

    Raises:
        PlanError: A value is wrong; all of them at once.
    """
    return read_options(
        AnthropicOptions,
        "provider-anthropic",
        config,
        _CHECKS,
        environment={"api_key": "ANTHROPIC_API_KEY", "base_url": "ANTHROPIC_BASE_URL"},
        defaults={"default_model": DEFAULT_MODEL},
    )
