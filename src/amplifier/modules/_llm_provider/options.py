"""What a provider's part of the mount plan may say, read once at mount."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

from amplifier._spelling import did_you_mean
from amplifier.modules._tool_base import count, flag, read_config

logger = logging.getLogger("amplifier.modules.provider")


@attrs.frozen(kw_only=True)
class ProviderOptions:
    """How a provider is reached and asked; the reference page of each module explains the keys.

    Attributes:
        api_key: Never shown.
        timeout: Seconds for one call from its beginning to its last byte; None for no limit.
        idle_timeout: Seconds without a single byte, while an answer is streamed; None for no limit.
        connect_timeout: Seconds to reach the server.
        max_retries: Attempts of the provider's own; the loops retry already.
    """

    api_key: str | None = attrs.field(default=None, repr=False)
    base_url: str | None = None
    default_model: str
    max_tokens: int | None = None
    context_window: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    reasoning_effort: str | None = None
    use_streaming: bool = True
    timeout: float | None = 1800.0
    idle_timeout: float | None = 120.0
    connect_timeout: float = 10.0
    max_retries: int = 0
    min_retry_delay: float = 1.0
    max_retry_delay: float = 60.0
    retry_jitter: bool = True
    overloaded_delay_multiplier: float = 10.0
    priority: int = 100
    raw: bool = False
    extra_headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    extra_request_params: Mapping[str, Any] = attrs.field(factory=dict)


Check = Callable[[Any], str | None]
OptionsT = TypeVar("OptionsT", bound=ProviderOptions)

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

_ALIASES = {"model": "default_model", "max_output_tokens": "max_tokens", "effort": "reasoning_effort"}


def optional(check: Check) -> Check:
    """What `check` takes, or null."""
    return lambda value: None if value is None else check(value)


def text(value: Any) -> str | None:
    """Text, not empty."""
    return None if isinstance(value, str) and value.strip() else f"expected text, got {value!r}"


def secret(value: Any) -> str | None:
    """Text that must not be repeated in a message."""
    return None if value is None or isinstance(value, str) else f"expected text, got {type(value).__name__}"


def number(least: float, most: float = math.inf) -> Check:
    """A finite number between two others."""

    def check(value: Any) -> str | None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most or math.isinf(value):
            return f"expected a number from {least:g}{'' if math.isinf(most) else f' to {most:g}'}, got {value!r}"
        return None

    return check


def limit(value: Any) -> str | None:
    """Seconds above 0, or null for no limit."""
    if value is None or (number(0)(value) is None and value > 0):
        return None
    return f"expected a positive number of seconds, or null for no limit, got {value!r}"


def choice(*words: str) -> Check:
    """One of some words."""
    return lambda value: None if value in words else f"expected one of {', '.join(map(repr, words))}, got {value!r}"


def address(value: Any) -> str | None:
    """An http or https address; credentials in it would end up in logs."""
    if not isinstance(value, str) or not value.startswith(("http://", "https://")):
        return f"expected an address that begins with http:// or https://, got {value!r}"
    if "@" in value.split("/")[2]:
        return "expected an address without a user name and password; use api_key or extra_headers"
    return None


def _headers(value: Any) -> str | None:
    if isinstance(value, Mapping) and all(isinstance(k, str) and isinstance(v, str) for k, v in value.items()):
        return None
    return "expected an object of texts"


def _params(value: Any) -> str | None:
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return None
    return f"expected an object, got {value!r}"


COMMON_CHECKS: Mapping[str, Check] = {
    "api_key": secret,
    "base_url": optional(address),
    "default_model": text,
    "max_tokens": optional(count(1)),
    "context_window": optional(count(1)),
    "temperature": optional(number(0, 2)),
    "top_p": optional(number(0, 1)),
    "reasoning_effort": optional(choice(*EFFORTS)),
    "use_streaming": flag,
    "timeout": limit,
    "idle_timeout": limit,
    "connect_timeout": number(0.001),
    "max_retries": count(0),
    "min_retry_delay": number(0),
    "max_retry_delay": number(0),
    "retry_jitter": flag,
    "overloaded_delay_multiplier": number(0),
    "priority": number(-math.inf),
    "raw": flag,
    "extra_headers": _headers,
    "extra_request_params": _params,
}


def read_options(
    cls: type[OptionsT],
    module: str,
    config: Mapping[str, Any] | None,
    checks: Mapping[str, Check],
    *,
    environment: Mapping[str, str],
    defaults: Mapping[str, Any],
) -> OptionsT:
    """Read a provider's config, completed from the environment.

    Keys nobody reads are named in the log and otherwise ignored: plans written for other makes of a provider have more.

    Args:
        cls: The options to make.
        module: The module's id.
        config: The plan's words.
        checks: What each key may be, besides `COMMON_CHECKS`.
        environment: Option names and the variables that stand in for them.
        defaults: What this provider has where the class has something else.

    Raises:
        PlanError: A value is wrong; all of them at once.
    """
    known = {**COMMON_CHECKS, **checks}
    given: dict[str, Any] = {}
    for key, value in (config or {}).items():
        name = _ALIASES.get(key, key)
        if name not in known:
            logger.warning("%s does not read the key %r%s", module, key, did_you_mean(key, known))
        elif name == key or name not in (config or {}):
            given[name] = value
    given = read_config(module, given, known)
    for name, variable in environment.items():
        if not given.get(name) and os.environ.get(variable, "").strip():
            given.update(
                read_config(f"{module} (environment variable {variable})", {name: os.environ[variable].strip()}, known)
            )
    return cls(**{**defaults, **given})
