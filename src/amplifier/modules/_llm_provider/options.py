"""The configuration that all providers on official SDKs share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from .._shared.configuration import (
    choice,
    delay,
    flag,
    mapping,
    mapping_of_secrets,
    no_limit_or_seconds,
    number,
    option,
    optional,
    seconds,
    secret,
    text,
    url,
    whole_number,
)

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


@attrs.frozen(kw_only=True)
class ProviderOptions:
    """How a provider reaches its service and what it requests; the reference page of each module explains the keys.

    Attributes:
        timeout: Seconds for one call from its beginning to its last byte; None for no limit.
        idle_timeout: Seconds without a byte while a response is streamed; None for no limit.
        connect_timeout: Seconds to reach the server.
        max_retries: Retries by the provider; the loops retry as well.
    """

    api_key: str | None = option(optional(secret), default=None)
    base_url: str | None = option(optional(url), default=None)
    default_model: str = option(text, aliases=("model",))
    max_tokens: int | None = option(optional(whole_number(1)), default=None, aliases=("max_output_tokens",))
    context_window: int | None = option(optional(whole_number(1)), default=None)
    temperature: float | None = option(optional(number(0, 2)), default=None)
    top_p: float | None = option(optional(number(0, 1)), default=None)
    reasoning_effort: str | None = option(optional(choice(*EFFORTS)), default=None, aliases=("effort",))
    use_streaming: bool = option(flag, default=True)
    timeout: float | None = option(no_limit_or_seconds, default=1800.0)
    idle_timeout: float | None = option(no_limit_or_seconds, default=120.0)
    connect_timeout: float = option(seconds, default=10.0)
    max_retries: int = option(whole_number(0), default=0)
    min_retry_delay: float = option(delay, default=1.0)
    max_retry_delay: float = option(delay, default=60.0)
    retry_jitter: bool = option(flag, default=True)
    overloaded_delay_multiplier: float = option(number(0), default=10.0)
    priority: float = option(number(), default=100)
    raw: bool = option(flag, default=False)
    extra_headers: Mapping[str, str] = option(mapping_of_secrets("an object of texts"), default=attrs.Factory(dict))
    extra_request_params: Mapping[str, Any] = option(mapping, default=attrs.Factory(dict))
