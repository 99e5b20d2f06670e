"""Trying again: the rules published providers build on."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.errors import (
    AccessDeniedError,
    AuthenticationError,
    ContentFilterError,
    ContextLengthError,
    InvalidRequestError,
    LLMError,
    NotFoundError,
    ProviderUnavailableError,
    RateLimitError,
)

pytestmark = pytest.mark.usefixtures("alias")


def retry() -> Any:
    from amplifier_core.utils import retry as module

    return module


# ── the configuration ──


def test_the_defaults_are_the_published_ones():
    config = retry().RetryConfig()
    assert (config.max_retries, config.initial_delay, config.max_delay, config.backoff_factor) == (3, 1.0, 60.0, 2.0)
    assert (config.jitter, config.honor_retry_after) == (0.2, True)


def test_a_configuration_is_read_only_and_compared_by_identity():
    config = retry().RetryConfig()
    assert config != retry().RetryConfig()
    with pytest.raises(AttributeError):
        config.max_retries = 5
    with pytest.raises(AttributeError):
        config.anything = 5


@pytest.mark.parametrize(("given", "shown"), [(None, 0.2), (True, 0.2), (False, 0.0), (0.3, 0.2), (0.0, 0.0)])
def test_jitter_is_on_or_off_whatever_is_given(given, shown):
    assert retry().RetryConfig(jitter=given).jitter == shown


def test_old_names_are_taken():
    old = retry().RetryConfig(min_delay=2.0, backoff_multiplier=5.0)
    assert (old.initial_delay, old.backoff_factor) == (2.0, 5.0)
    assert (retry().RetryConfig().min_delay, retry().RetryConfig().backoff_multiplier) == (1.0, 2.0)


@pytest.mark.parametrize("arguments", [{"max_retries": -1}, {"max_retries": "3"}, {"initial_delay": "a"}])
def test_what_is_no_number_of_its_kind_is_refused(arguments):
    with pytest.raises((TypeError, ValueError)):
        retry().RetryConfig(**arguments)


# ── the delay ──


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        ((0,), 1.0),
        ((3,), 8.0),
        ((4,), 10.0),
        ((100_000,), 10.0),
        ((0, 5.0), 5.0),
        ((0, 0.5), 1.0),
        ((0, 500.0), 500.0),
        ((3, None, 3.0), 24.0),
        ((0, None, math.nan), 1.0),
        ((0, None, -1.0), 1.0),
        ((0, math.nan), 1.0),
        ((0, 2.0, 4.0), 4.0),
    ],
)
def test_the_delay_grows_is_cut_and_then_stretched(arguments, seconds):
    config = retry().RetryConfig(jitter=False, initial_delay=1, max_delay=10, backoff_factor=2)
    assert retry().compute_delay(config, *arguments) == seconds


def test_a_server_may_be_ignored():
    config = retry().RetryConfig(jitter=False, honor_retry_after=False)
    assert retry().compute_delay(config, 0, 30.0) == 1.0


@given(attempt=st.integers(0, 50), wanted=st.none() | st.floats(0, 1000), seed=st.integers(0, 2**32))
def test_jitter_stays_within_half_and_one_and_a_half(attempt, wanted, seed):
    random.seed(seed)
    steady = retry().RetryConfig(jitter=False)
    varied = retry().RetryConfig()
    base = retry().compute_delay(steady, attempt, wanted)
    assert 0.5 * base <= retry().compute_delay(varied, attempt, wanted) <= 1.5 * base


# ── trying again ──


def failing(*errors: Exception) -> Callable[[], Awaitable[str]]:
    """An operation that fails with each of these in turn and then succeeds."""
    left = list(errors)

    async def operation() -> str:
        await anyio.lowlevel.checkpoint()
        if left:
            raise left.pop(0)
        return "done"

    return operation


@pytest.mark.virtual_time
async def test_a_retryable_error_is_tried_again_after_the_delay():
    heard = []

    async def on_retry(attempt: int, delay: float, error: LLMError) -> None:
        heard.append((attempt, delay, str(error)))

    config = retry().RetryConfig(jitter=False)
    started = anyio.current_time()
    operation = failing(RateLimitError("one"), ProviderUnavailableError("two", retry_after=7.0))
    assert await retry().retry_with_backoff(operation, config, on_retry=on_retry) == "done"
    assert heard == [(1, 1.0, "one"), (2, 7.0, "two")]
    assert anyio.current_time() - started == pytest.approx(8.0)


@pytest.mark.virtual_time
async def test_the_last_error_is_the_operations_own():
    last = RateLimitError("three")
    operation = failing(RateLimitError("one"), RateLimitError("two"), last)
    with pytest.raises(RateLimitError) as caught:
        await retry().retry_with_backoff(operation, retry().RetryConfig(max_retries=2, jitter=False))
    assert caught.value is last


async def test_no_retries_is_one_try():
    with pytest.raises(RateLimitError):
        await retry().retry_with_backoff(failing(RateLimitError("one")), retry().RetryConfig(max_retries=0))


@pytest.mark.parametrize("error", [AuthenticationError("no"), ValueError("no"), RateLimitError("no", retryable=False)])
async def test_other_errors_leave_at_once(error):
    with pytest.raises(type(error)) as caught:
        await retry().retry_with_backoff(failing(error))
    assert caught.value is error


@pytest.mark.virtual_time
async def test_waiting_can_be_cancelled():
    config = retry().RetryConfig(jitter=False, initial_delay=50)
    with anyio.move_on_after(5) as scope:
        await retry().retry_with_backoff(failing(RateLimitError("one")), config)
    assert scope.cancelled_caught


def test_suites_may_replace_the_sleeping_of_asyncio(monkeypatch):
    import asyncio

    slept = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("amplifier_core.utils.retry.asyncio.sleep", sleep)
    config = retry().RetryConfig(jitter=False, initial_delay=1000, max_delay=2000)
    assert asyncio.run(retry().retry_with_backoff(failing(RateLimitError("one")), config)) == "done"
    assert slept == [1000.0]


# ── naming an error ──


@pytest.mark.parametrize(
    ("message", "status", "expected"),
    [
        ("", 401, AuthenticationError),
        ("", 403, AccessDeniedError),
        ("", 404, NotFoundError),
        ("", 413, ContextLengthError),
        ("", 429, RateLimitError),
        ("rate limit", 503, ProviderUnavailableError),
        ("Maximum context exceeded", 400, ContextLengthError),
        ("Too Many Requests", None, RateLimitError),
        ("bad API key", None, AuthenticationError),
        ("model not found", None, NotFoundError),
        ("blocked", None, ContentFilterError),
        ("rate limit on context length", None, ContextLengthError),
        ("what?", 400, InvalidRequestError),
        ("what?", 422, InvalidRequestError),
        ("what?", 418, LLMError),
        ("what?", None, LLMError),
    ],
)
def test_an_error_is_classified_by_its_status_and_then_by_its_text(message, status, expected):
    assert retry().classify_error_message(message, status_code=status, provider="p") is expected
