"""Retry the request of a published provider after an error of a language model."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import attrs

import amplifier.errors as llm_errors
from amplifier.errors import LLMError

__all__ = ["RetryConfig", "classify_error_message", "compute_delay", "retry_with_backoff"]

T = TypeVar("T")

_JITTER = 0.2


def _jitter(value: bool | float | None) -> float:
    return _JITTER if value is None or value else 0.0


@attrs.frozen(eq=False)
class RetryConfig:
    """The number of retries and the delays between them.

    Attributes:
        max_retries: Maximum number of tries after the first one.
        initial_delay: Seconds before the second try.
        max_delay: Maximum delay in seconds. It limits neither a delay that a server requests nor
            the multiplier of an error.
        backoff_factor: The factor by which the delay grows from try to try.
        jitter: The default of 0.2 multiplies the delay by a random number from 0.5 to 1.5, and 0.0
            keeps the delay. A bool is converted.
        honor_retry_after: True to wait at least as long as the server requests.
        min_delay: The old name of `initial_delay`.
        backoff_multiplier: The old name of `backoff_factor`.
    """

    max_retries: int = attrs.field(default=3, validator=attrs.validators.ge(0))
    initial_delay: float = attrs.field(default=1.0, converter=float)
    max_delay: float = attrs.field(default=60.0, converter=float)
    backoff_factor: float = attrs.field(default=2.0, converter=float)
    jitter: float = attrs.field(default=None, converter=_jitter)
    honor_retry_after: bool = True
    min_delay: float | None = None
    backoff_multiplier: float | None = None

    def __attrs_post_init__(self) -> None:
        for old, new in (("min_delay", "initial_delay"), ("backoff_multiplier", "backoff_factor")):
            value = getattr(self, old)
            if value is None:
                object.__setattr__(self, old, getattr(self, new))
            else:
                object.__setattr__(self, new, value)


def compute_delay(
    config: RetryConfig,
    attempt: int,
    retry_after: float | None = None,
    delay_multiplier: float | None = None,
) -> float:
    """Return the seconds to wait after a failed try.

    Args:
        config: The rules.
        attempt: The number of tries that failed before this one.
        retry_after: The delay in seconds that the server requested.
        delay_multiplier: The factor that the error requests. Ignored unless it is a positive
            number.
    """
    try:
        growth = config.backoff_factor**attempt
    except OverflowError:
        growth = math.inf
    delay = min(config.initial_delay * growth, config.max_delay)
    if delay_multiplier is not None and math.isfinite(delay_multiplier) and delay_multiplier > 0:
        delay *= delay_multiplier
    if config.honor_retry_after and retry_after is not None and retry_after > delay:
        delay = retry_after
    return delay * random.uniform(0.5, 1.5) if config.jitter else delay


async def retry_with_backoff(
    operation: Callable[[], Awaitable[T]],
    config: RetryConfig | None = None,
    *,
    on_retry: Callable[[int, float, LLMError], Awaitable[None]] | None = None,
) -> T:
    """Call an operation until it succeeds, fails for good, or has been tried often enough.

    Args:
        operation: The operation, which is called without arguments.
        config: The rules. None means the default rules.
        on_retry: Awaited before each delay with the number of the failed try, the seconds and the
            error.

    Raises:
        LLMError: The error of the last try, if it isn't retryable or no retry is left.
        Exception: Any other error of the operation, which isn't retried.
    """
    rules = RetryConfig() if config is None else config
    attempt = 0
    while True:
        try:
            return await operation()
        except LLMError as error:
            if not error.retryable or attempt >= rules.max_retries:
                raise
            delay = compute_delay(
                rules, attempt, error.retry_after, getattr(error, "delay_multiplier", None)
            )
            attempt += 1
            if on_retry is not None:
                await on_retry(attempt, delay, error)
            await _sleep(delay)


async def _sleep(seconds: float) -> None:
    # Suites of published modules replace `asyncio.sleep` in this file.
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        await anyio.sleep(seconds)
    else:
        await asyncio.sleep(seconds)


_BY_STATUS: dict[int, type[LLMError]] = {
    401: llm_errors.AuthenticationError,
    403: llm_errors.AccessDeniedError,
    404: llm_errors.NotFoundError,
    413: llm_errors.ContextLengthError,
    429: llm_errors.RateLimitError,
}

# The first line with a phrase in the message decides.
_BY_PHRASE: tuple[tuple[tuple[str, ...], type[LLMError]], ...] = (
    (("context length", "too many tokens", "maximum context"), llm_errors.ContextLengthError),
    (("rate limit", "too many requests"), llm_errors.RateLimitError),
    (("authentication", "api key", "unauthorized"), llm_errors.AuthenticationError),
    (("not found",), llm_errors.NotFoundError),
    (("content filter", "safety", "blocked"), llm_errors.ContentFilterError),
)


def classify_error_message(
    message: str, *, status_code: int | None = None, provider: str | None = None
) -> type[LLMError]:
    """Return the class of error that fits a provider's message.

    Args:
        message: The error text of the provider.
        status_code: The HTTP status, which decides unless it is ambiguous, such as 400.
        provider: Ignored.
    """
    if status_code is not None:
        if status_code >= 500:
            return llm_errors.ProviderUnavailableError
        if status_code in _BY_STATUS:
            return _BY_STATUS[status_code]
    text = message.lower()
    for phrases, error in _BY_PHRASE:
        if any(phrase in text for phrase in phrases):
            return error
    return llm_errors.InvalidRequestError if status_code in (400, 422) else LLMError
