"""Trying again after an error of a language model: what published providers call around their requests.

`RetryConfig` is read-only and compared by identity. On trio the waiting is AnyIO's; on asyncio it is `asyncio.sleep`,
because suites of published modules replace that function in this file.
"""

from __future__ import annotations

import asyncio
import math
import operator
import random
import warnings
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

from .. import llm_errors
from ..llm_errors import LLMError

__all__ = ["RetryConfig", "classify_error_message", "compute_delay", "retry_with_backoff"]

T = TypeVar("T")

_MOST_RETRIES = 2**32 - 1
_INITIAL_DELAY = 1.0
_BACKOFF_FACTOR = 2.0
_JITTER = 0.2


class RetryConfig:
    """How often to try again and how long to wait in between.

    Args:
        max_retries: Tries after the first one.
        initial_delay: Seconds before the second try.
        max_delay: The limit of the growing delay; it limits neither a delay that a server requests nor the multiplier of an error.
        backoff_factor: By how much the delay grows from try to try.
        jitter: Whether the delay is multiplied by a random number from 0.5 up to 1.5; on unless switched off.
        honor_retry_after: Whether to wait at least as long as the server requests.
        min_delay: The old name of `initial_delay`.
        backoff_multiplier: The old name of `backoff_factor`.
    """

    __slots__ = ("_backoff_factor", "_honor_retry_after", "_initial_delay", "_jitter", "_max_delay", "_max_retries")

    def __init__(
        self,
        max_retries: int = 3,
        initial_delay: float = _INITIAL_DELAY,
        max_delay: float = 60.0,
        backoff_factor: float = _BACKOFF_FACTOR,
        jitter: bool | float | None = None,
        honor_retry_after: bool = True,
        min_delay: float | None = None,
        backoff_multiplier: float | None = None,
    ) -> None:
        self._max_retries = _retries(max_retries)
        self._initial_delay = _seconds("initial_delay", initial_delay)
        self._max_delay = _seconds("max_delay", max_delay)
        self._backoff_factor = _seconds("backoff_factor", backoff_factor)
        if not isinstance(honor_retry_after, bool):
            raise TypeError(f"honor_retry_after must be a bool, got {honor_retry_after!r}")
        self._honor_retry_after = honor_retry_after
        self._jitter = _is_jitter_on(jitter)
        if min_delay is not None and self._initial_delay == _INITIAL_DELAY:
            _warn_of_old_name("min_delay", "initial_delay")
            self._initial_delay = _seconds("min_delay", min_delay)
        if backoff_multiplier is not None and self._backoff_factor == _BACKOFF_FACTOR:
            _warn_of_old_name("backoff_multiplier", "backoff_factor")
            self._backoff_factor = _seconds("backoff_multiplier", backoff_multiplier)

    @property
    def max_retries(self) -> int:
        """Tries after the first one."""
        return self._max_retries

    @property
    def initial_delay(self) -> float:
        """Seconds before the second try."""
        return self._initial_delay

    @property
    def max_delay(self) -> float:
        """What the growing delay is cut to."""
        return self._max_delay

    @property
    def backoff_factor(self) -> float:
        """By how much the delay grows from try to try."""
        return self._backoff_factor

    @property
    def jitter(self) -> float:
        """0.2 if delays are varied, else 0.0; it is not the amount of variation."""
        return _JITTER if self._jitter else 0.0

    @property
    def honor_retry_after(self) -> bool:
        """Whether to wait at least as long as the server requests."""
        return self._honor_retry_after

    @property
    def min_delay(self) -> float:
        """The old name of `initial_delay`."""
        _warn_of_old_name("min_delay", "initial_delay")
        return self._initial_delay

    @property
    def backoff_multiplier(self) -> float:
        """The old name of `backoff_factor`."""
        _warn_of_old_name("backoff_multiplier", "backoff_factor")
        return self._backoff_factor


def _retries(given: Any) -> int:
    number = operator.index(given)
    if not 0 <= number <= _MOST_RETRIES:
        raise OverflowError(f"max_retries must be between 0 and {_MOST_RETRIES}, got {number}")
    return number


def _seconds(name: str, given: Any) -> float:
    if isinstance(given, str) or not (hasattr(type(given), "__float__") or hasattr(type(given), "__index__")):
        raise TypeError(f"{name} must be a number, got {given!r}")
    return float(given)


def _is_jitter_on(given: Any) -> bool:
    if given is None or isinstance(given, bool):
        return given is not False
    if isinstance(given, (int, float)):
        warnings.warn("a number for jitter is deprecated, use a bool", DeprecationWarning, stacklevel=3)
        return given != 0
    warnings.warn(f"jitter is {given!r}, expected a bool; taken as True", UserWarning, stacklevel=3)
    return True


def _warn_of_old_name(old: str, new: str) -> None:
    warnings.warn(f"{old} is deprecated, use {new}", DeprecationWarning, stacklevel=3)


def compute_delay(
    config: RetryConfig, attempt: int, retry_after: float | None = None, delay_multiplier: float | None = None
) -> float:
    """The seconds to wait after a failed try.

    Args:
        config: The rules.
        attempt: How many tries failed before this one.
        retry_after: The delay that the server requested.
        delay_multiplier: The factor that the error requests; ignored unless it is a positive number.
    """
    if attempt < 0:
        raise OverflowError(f"attempt must not be negative, got {attempt}")
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


_rust_compute_delay = compute_delay  # the name under which suites put another one here


async def retry_with_backoff(
    operation: Callable[[], Awaitable[T]],
    config: RetryConfig | None = None,
    *,
    on_retry: Callable[[int, float, LLMError], Awaitable[None]] | None = None,
) -> T:
    """Call an operation until it succeeds, fails for good, or has been tried often enough.

    Args:
        operation: Called without arguments.
        config: The rules; the default ones if there are none.
        on_retry: Awaited before each wait with the number of the failed try, the seconds and the error.

    Raises:
        LLMError: The operation's own, when it may not be tried again or was tried often enough. Other errors are not
            tried again.
    """
    rules = RetryConfig() if config is None else config
    attempt = 0
    while True:
        try:
            return await operation()
        except LLMError as error:
            if not error.retryable or attempt >= rules.max_retries:
                raise
            delay = _rust_compute_delay(rules, attempt, error.retry_after, getattr(error, "delay_multiplier", None))
            attempt += 1
            if on_retry is not None:
                await on_retry(attempt, delay, error)
            await _sleep(delay)


async def _sleep(seconds: float) -> None:
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

# The first line with a word in the message decides.
_BY_WORDS: tuple[tuple[tuple[str, ...], type[LLMError]], ...] = (
    (("context length", "too many tokens", "maximum context"), llm_errors.ContextLengthError),
    (("rate limit", "too many requests"), llm_errors.RateLimitError),
    (("authentication", "api key", "unauthorized"), llm_errors.AuthenticationError),
    (("not found",), llm_errors.NotFoundError),
    (("content filter", "safety", "blocked"), llm_errors.ContentFilterError),
)


def classify_error_message(
    message: str, *, status_code: int | None = None, provider: str | None = None
) -> type[LLMError]:
    """The class of error that fits a provider's message.

    Args:
        message: The error text of the provider.
        status_code: The HTTP status, which decides unless it is ambiguous, such as 400.
        provider: Accepted and not looked at.
    """
    if status_code is not None:
        if status_code >= 500:
            return llm_errors.ProviderUnavailableError
        if status_code in _BY_STATUS:
            return _BY_STATUS[status_code]
    text = message.lower()
    for words, error in _BY_WORDS:
        if any(word in text for word in words):
            return error
    return llm_errors.InvalidRequestError if status_code in (400, 422) else LLMError
