"""The options of a turn, read once at mount."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from .._shared import configuration
from .._shared.configuration import (
    any_text,
    choice,
    delay,
    no_limit_or_seconds,
    option,
    optional,
    whole_number,
)


@attrs.frozen(kw_only=True)
class TurnOptions:
    """How a loop runs its turns.

    Attributes:
        orchestrator: The loop's module id, for events.
        max_iterations: Model calls per turn; the limit exists so that a turn ends.
        default_provider: The provider's name; the first one mounted if absent.
        model: The model to ask for; the provider's own default if absent.
        system_prompt: The instructions: those given now are in force, whatever the conversation began with, unless it began with a
            system message of the application.
        max_parallel_tools: Tool calls of one answer that run at the same time.
        tool_timeout: Seconds for one tool call; None for no limit.
        provider_timeout: Seconds for one model call; None for no limit.
        max_retries: Further attempts after a retryable error.
        initial_delay: Seconds before the first retry; doubled for each further one.
        max_delay: The longest of those delays.
        max_retry_after: The longest wait that a service may ask for; a longer one is not waited, the error leaves at once.
        answer_mode: How a typed answer is asked for: ``native``, by the provider's own means; ``tool``, by one more tool; ``auto``,
            the former where the provider has the capability.
        answer_attempts: Answers of one turn that may fail to fit the type before the turn fails.
        streaming: Ask providers that can stream to do so.
        select_tools: Let hooks choose the tool for every call (``tool:selecting``).
    """

    orchestrator: str
    max_iterations: int = option(whole_number(1), default=50)
    default_provider: str | None = option(optional(any_text), default=None)
    model: str | None = option(optional(any_text), default=None)
    system_prompt: str | None = option(optional(any_text), default=None)
    max_parallel_tools: int = option(whole_number(1), default=16)
    tool_timeout: float | None = option(no_limit_or_seconds, default=3600.0)
    provider_timeout: float | None = option(no_limit_or_seconds, default=1800.0)
    max_retries: int = option(whole_number(0), default=3)
    initial_delay: float = option(delay, default=1.0)
    max_delay: float = option(delay, default=60.0)
    max_retry_after: float = option(delay, default=120.0)
    answer_mode: str = option(choice("auto", "native", "tool"), default="auto")
    answer_attempts: int = option(whole_number(1), default=3)
    streaming: bool = False
    select_tools: bool = False


def read_options(
    orchestrator: str,
    config: Mapping[str, Any] | None,
    *,
    streaming: bool = False,
    select_tools: bool = False,
) -> TurnOptions:
    """Read a loop's configuration.

    Raises:
        PlanError: The configuration is wrong; it lists all problems.
    """
    return configuration.read_options(
        TurnOptions,
        orchestrator,
        config,
        orchestrator=orchestrator,
        streaming=streaming,
        select_tools=select_tools,
    )
