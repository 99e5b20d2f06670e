"""Trying again: the rules published providers build on."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from amplifier.errors import (
    LLMError,
    ProviderUnavailableError,
    RateLimitError,
)

pytestmark = pytest.mark.usefixtures("alias")


def retry() -> Any:
    from amplifier_core.utils import retry as module

    return module


# ── the configuration ──


def test_configuration_is_read_only_with_identity():
    config = retry().RetryConfig()
    assert config != retry().RetryConfig()
    with pytest.raises(AttributeError):
        config.max_retries = 5
    with pytest.raises(AttributeError):
        config.anything = 5


@pytest.mark.parametrize(
    ("given", "shown"), [(None, 0.2), (True, 0.2), (False, 0.0), (0.3, 0.2), (0.0, 0.0)]
)
def test_jitter_is_always_bool(given, shown):
    assert retry().RetryConfig(jitter=given).jitter == shown


@pytest.mark.parametrize(
    "arguments", [{"max_retries": -1}, {"max_retries": "3"}, {"initial_delay": "a"}]
)
def test_wrong_number_is_refused(arguments):
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
def test_delay_grows_is_capped_then_stretched(arguments, seconds):
    config = retry().RetryConfig(jitter=False, initial_delay=1, max_delay=10, backoff_factor=2)
    assert retry().compute_delay(config, *arguments) == seconds


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
async def test_retryable_error_is_retried_after_delay():
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
async def test_waiting_can_be_cancelled():
    config = retry().RetryConfig(jitter=False, initial_delay=50)
    with anyio.move_on_after(5) as scope:
        await retry().retry_with_backoff(failing(RateLimitError("one")), config)
    assert scope.cancelled_caught


def test_suites_may_replace_asyncio_sleep(monkeypatch):
    import asyncio

    slept = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("amplifier_core.utils.retry.asyncio.sleep", sleep)
    config = retry().RetryConfig(jitter=False, initial_delay=1000, max_delay=2000)
    assert asyncio.run(retry().retry_with_backoff(failing(RateLimitError("one")), config)) == "done"
    assert slept == [1000.0]
