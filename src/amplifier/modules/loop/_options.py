"""The options of a turn, read once at mount."""

from __future__ import annotations

from collections.abc import Mapping

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
    """The configuration of a loop.

    Attributes:
        orchestrator: The loop's module id, for events.
        max_iterations: Maximum number of model calls per turn.
        default_provider: The name of the provider. The first one mounted if absent.
        model: The model to request. The provider's default if absent.
        system_prompt: The instructions. They replace those of earlier turns, unless the
            conversation begins with a system message of the application.
        max_parallel_tools: Maximum number of tool calls of one answer that run at the same time.
        tool_timeout: Seconds for one tool call. None for no limit.
        provider_timeout: Seconds for one model call. None for no limit.
        max_retries: Maximum number of retries after retryable errors.
        initial_delay: Seconds before the first retry. Each further retry waits twice as long.
        max_delay: Maximum delay before a retry in seconds.
        max_retry_after: Maximum delay in seconds that a service may request. If it requests more,
            the error is raised at once.
        answer_mode: The way to request a typed answer. ``native`` uses a feature of the provider,
            ``tool`` adds a tool, and ``auto`` is ``native`` if the provider has the capability.
        answer_attempts: Number of answers in a turn that may not fit the type before the turn
            fails.
        streaming: Let providers stream if they can.
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
    config: Mapping[str, object] | None,
    *,
    streaming: bool = False,
    select_tools: bool = False,
) -> TurnOptions:
    """Read a loop's configuration.

    Raises:
        PlanError: The configuration is wrong. The error lists all problems.
    """
    return configuration.read_options(
        TurnOptions,
        orchestrator,
        config,
        orchestrator=orchestrator,
        streaming=streaming,
        select_tools=select_tools,
    )
