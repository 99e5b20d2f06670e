"""Errors, retries, utilities and the doubles of ``amplifier_core.testing``."""

from __future__ import annotations

import asyncio
import inspect
from unittest.mock import AsyncMock

import pytest
from amplifier_core import llm_errors
from amplifier_core.llm_errors import ProviderUnavailableError, RateLimitError
from amplifier_core.testing import (
    EventRecorder,
    MockContextManager,
    MockCoordinator,
    MockTool,
    ScriptedOrchestrator,
    create_test_coordinator,
    wait_for,
)
from amplifier_core.utils import redact_secrets, truncate_values
from amplifier_core.utils.retry import RetryConfig, classify_error_message, retry_with_backoff
from amplifier_core.utils.truncate import SENSITIVE_KEYS


def run(main):
    return asyncio.run(main())


# ── errors ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("message", "status", "name"),
    [
        ("context length exceeded", None, "ContextLengthError"),
        ("too many tokens", None, "ContextLengthError"),
        ("RATE LIMIT", None, "RateLimitError"),
        ("invalid api key", None, "AuthenticationError"),
        ("model not found", None, "NotFoundError"),
        ("blocked by safety filter", None, "ContentFilterError"),
        ("whatever", None, "LLMError"),
        ("rate limit", 404, "NotFoundError"),
        ("x", 401, "AuthenticationError"),
        ("x", 403, "AccessDeniedError"),
        ("x", 413, "ContextLengthError"),
        ("x", 429, "RateLimitError"),
        ("x", 503, "ProviderUnavailableError"),
        ("context length", 400, "ContextLengthError"),
        ("x", 400, "InvalidRequestError"),
        ("x", 422, "InvalidRequestError"),
    ],
)
def test_classification(message, status, name):
    assert classify_error_message(message, status_code=status) is getattr(llm_errors, name)


# ── retries ──────────────────────────────────────────────────────────────────────────────────────

FAST = {"initial_delay": 0.001, "max_delay": 0.01, "jitter": False}


def attempts(*outcomes, config=None, **options):
    operation, delays = AsyncMock(side_effect=list(outcomes)), []

    async def note(attempt, delay, error):
        delays.append((attempt, round(delay, 6), type(error).__name__))

    async def main():
        try:
            return await retry_with_backoff(
                operation, config or RetryConfig(max_retries=3, **FAST), on_retry=note, **options
            )
        except Exception as error:
            return type(error).__name__

    return run(main), operation.await_count, delays


def test_retries():
    busy, gone = ProviderUnavailableError("busy"), llm_errors.AuthenticationError("bad key")
    assert attempts("ok") == ("ok", 1, [])
    assert attempts(busy, busy, "ok") == (
        "ok", 3, [(1, 0.001, "ProviderUnavailableError"), (2, 0.002, "ProviderUnavailableError")],
    )  # fmt: skip
    assert attempts(busy, busy, busy, busy)[:2] == ("ProviderUnavailableError", 4)
    assert attempts(gone) == ("AuthenticationError", 1, [])
    assert attempts(ValueError("x")) == ("ValueError", 1, [])
    assert attempts(busy, config=RetryConfig(max_retries=0))[:2] == ("ProviderUnavailableError", 1)


def test_delays_follow_server():
    waits = RateLimitError("x", retry_after=0.02)
    assert attempts(waits, "ok")[2] == [(1, 0.02, "RateLimitError")]
    ignoring = RetryConfig(max_retries=1, honor_retry_after=False, **FAST)
    assert attempts(waits, "ok", config=ignoring)[2] == [(1, 0.001, "RateLimitError")]
    scaled = ProviderUnavailableError("x", delay_multiplier=5.0)
    assert attempts(scaled, "ok")[2] == [(1, 0.005, "ProviderUnavailableError")]


# ── utilities ────────────────────────────────────────────────────────────────────────────────────


def test_redaction():
    given = {
        "api_key": "k",
        "nested": [{"Password": "p", "user": "u"}],
        "tokens": 5,
        "pair": ({"token": "t"},),
    }
    assert redact_secrets(given) == {
        "api_key": "[REDACTED]", "nested": [{"Password": "[REDACTED]", "user": "u"}], "tokens": 5, "pair": ({"token": "t"},),
    }  # fmt: skip
    assert given["api_key"] == "k"
    assert {"api_key", "token", "authorization", "credentials"} <= set(SENSITIVE_KEYS)


def test_truncation():
    assert truncate_values({"a": "x" * 5, "b": ["y" * 5, 1]}, 3) == {
        "a": "xxx... (truncated 2 chars)", "b": ["yyy... (truncated 2 chars)", 1],
    }  # fmt: skip
    assert truncate_values("x" * 180) == "x" * 180


# ── doubles ──────────────────────────────────────────────────────────────────────────────────────


def test_coordinator_double():
    async def main():
        coordinator = MockCoordinator()
        await coordinator.mount("tools", "thing", name="t")
        await coordinator.unmount("tools", name="t")
        return coordinator

    coordinator = run(main)
    assert coordinator.session_id == "test-session"
    assert coordinator.mount_history == [{"mount_point": "tools", "module": "thing", "name": "t"}]
    assert coordinator.unmount_history == [{"mount_point": "tools", "name": "t"}]
    assert coordinator.get("tools") == {}
    assert coordinator.approval_system is not None
    assert coordinator.loader is None


def test_tool_double():
    async def main():
        tool = MockTool(name="t", output={"a": 1})
        result = await tool.execute({"x": 1})
        tool.execute.assert_awaited_once_with({"x": 1})
        return tool, result

    tool, result = run(main)
    assert (tool.name, tool.call_count, result.output, result.success) == ("t", 1, {"a": 1}, True)
    assert tool.description
    assert isinstance(tool.input_schema, dict)
    assert MockTool().name == "mock_tool"


def test_context_double():
    async def main():
        context = MockContextManager([{"role": "user", "content": "a"}])
        await context.add_message({"role": "user", "content": "b"})
        return (
            context,
            await context.get_messages(),
            await context.get_messages_for_request(token_budget=5),
        )

    context, messages, asked = run(main)
    assert [m["content"] for m in messages] == ["a", "b"] == [m["content"] for m in asked]
    context.add_message.assert_awaited_once()
    assert isinstance(context.clear, AsyncMock)
    assert MockContextManager().messages == []


def test_recorder():
    async def main():
        recorder = EventRecorder()
        result = await recorder.emit("a", {"x": 1})
        await recorder.record("b", {})
        return recorder, result

    recorder, result = run(main)
    assert result.action == "continue"
    assert recorder.get_events() == [("a", {"x": 1}), ("b", {})]
    assert recorder.get_events("a") == [("a", {"x": 1})]
    recorder.clear()
    assert recorder.events == []


def test_scripted_loop():
    async def main():
        loop, recorder = ScriptedOrchestrator(["one"]), EventRecorder()
        answers = [
            await loop.execute(p, MockContextManager(), {}, {}, recorder) for p in ("a", "b")
        ]
        return answers, loop.call_count, [event for event, _ in recorder.get_events()]

    answers, count, events = run(main)
    assert (answers, count) == (["one", "DONE"], 2)
    assert events[:2] == ["session:start", "session:end"]


def test_furnished_coordinator_and_waiting():
    async def main():
        made = create_test_coordinator()
        coordinator = await made if inspect.isawaitable(made) else made
        seen = []
        asyncio.get_running_loop().call_later(0.02, seen.append, 1)
        return (
            sorted(coordinator.get("tools")),
            await wait_for(lambda: bool(seen)),
            await wait_for(lambda: False, timeout=0.03),
        )

    assert run(main) == (["echo", "fail"], True, False)
