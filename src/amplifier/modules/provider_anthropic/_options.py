"""The configuration of provider-anthropic."""

from __future__ import annotations

import attrs

from .._llm_provider import ProviderOptions
from .._shared.configuration import choice, flag, option, optional, whole_number


@attrs.frozen(kw_only=True)
class AnthropicOptions(ProviderOptions):
    """The common keys, and those about thinking and caching.

    Attributes:
        extended_thinking: True or False decide; None leaves it to the requested effort.
        thinking_budget_tokens: For the models that take a budget.
        thinking_display: Whether the other models return their thinking.
        enable_prompt_caching: Whether requests mark their stable beginning for the service's cache.
    """

    extended_thinking: bool | None = option(optional(flag), default=None)
    thinking_budget_tokens: int | None = option(optional(whole_number(1024)), default=None)
    thinking_display: str = option(choice("summarized", "omitted"), default="summarized")
    enable_prompt_caching: bool = option(flag, default=True)
