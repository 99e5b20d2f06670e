"""What a loop's part of the mount plan may say, read once at mount."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from amplifier.errors import PlanError


@attrs.frozen(kw_only=True)
class TurnOptions:
    """How a loop runs its turns.

    Attributes:
        orchestrator: The loop's module id, for events.
        max_iterations: Model calls per turn; the limit exists so that a turn ends.
        default_provider: The provider's name; the first one mounted if absent.
        model: The model to ask for; the provider's own default if absent.
        system_prompt: Put before the conversation when the context is empty.
        max_parallel_tools: Tool calls of one answer that run at the same time.
        tool_timeout: Seconds for one tool call; None for no limit.
        provider_timeout: Seconds for one model call; None for no limit.
        max_retries: Further attempts after an error that a retry may mend.
        initial_delay: Seconds before the first retry; doubled for each further one.
        max_delay: The longest of those delays.
        max_retry_after: The longest wait that a service may ask for; a longer one is not waited, the error leaves at once.
        streaming: Ask providers that can stream to do so.
        select_tools: Let hooks choose the tool for every call (``tool:selecting``).
    """

    orchestrator: str
    max_iterations: int = 50
    default_provider: str | None = None
    model: str | None = None
    system_prompt: str | None = None
    max_parallel_tools: int = 16
    tool_timeout: float | None = 3600.0
    provider_timeout: float | None = 1800.0
    max_retries: int = 3
    initial_delay: float = 1.0
    max_delay: float = 60.0
    max_retry_after: float = 120.0
    streaming: bool = False
    select_tools: bool = False


def _count(minimum: int) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            return f"expected a whole number of at least {minimum}, got {value!r}"
        return None

    return check


def _seconds(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        return f"expected a positive number of seconds, or null for no limit, got {value!r}"
    return None


def _delay(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        return f"expected a number of seconds, got {value!r}"
    return None


def _text(value: Any) -> str | None:
    return None if value is None or isinstance(value, str) else f"expected text, got {value!r}"


_CHECKS: Mapping[str, Callable[[Any], str | None]] = {
    "max_iterations": _count(1),
    "default_provider": _text,
    "model": _text,
    "system_prompt": _text,
    "max_parallel_tools": _count(1),
    "tool_timeout": _seconds,
    "provider_timeout": _seconds,
    "max_retries": _count(0),
    "initial_delay": _delay,
    "max_delay": _delay,
    "max_retry_after": _delay,
}


def read_options(
    orchestrator: str, config: Mapping[str, Any] | None, *, streaming: bool = False, select_tools: bool = False
) -> TurnOptions:
    """Read a loop's config; keys it does not know are left to others.

    Raises:
        PlanError: A value is wrong; all of them at once.
    """
    given = {name: value for name, value in (config or {}).items() if name in _CHECKS}
    problems = [(f"$.{name}", problem) for name, value in given.items() if (problem := _CHECKS[name](value))]
    if problems:
        raise PlanError(problems, subject=f"invalid config of {orchestrator}")
    return TurnOptions(orchestrator=orchestrator, streaming=streaming, select_tools=select_tools, **given)
