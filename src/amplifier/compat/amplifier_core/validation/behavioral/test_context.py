"""The behavioural suite of context managers, for a module's tests to inherit from."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["ContextBehaviorTests"]


class ContextBehaviorTests:
    """Checks any context manager, wherever it keeps its messages."""

    @pytest.mark.asyncio
    async def test_mount_succeeds(self, context_module: Any) -> None:
        """Check that mounting gives a context manager."""
        assert context_module is not None

    @pytest.mark.asyncio
    async def test_context_has_required_methods(self, context_module: Any) -> None:
        """Check that it can add, return and clear messages."""
        for method in ("add_message", "get_messages", "clear"):
            assert callable(getattr(context_module, method, None)), (
                f"a context needs a method {method}"
            )

    @pytest.mark.asyncio
    async def test_message_round_trip(self, context_module: Any) -> None:
        """Check that an added message is returned."""
        await context_module.add_message({"role": "user", "content": "Hello"})
        contents = [message.get("content") for message in await context_module.get_messages()]
        assert "Hello" in contents, "the added message is not among the messages"

    @pytest.mark.asyncio
    async def test_multiple_messages(self, context_module: Any) -> None:
        """Check that several messages are kept."""
        for role, content in (("user", "First"), ("assistant", "Response"), ("user", "Second")):
            await context_module.add_message({"role": role, "content": content})
        assert len(await context_module.get_messages()) >= 3

    @pytest.mark.asyncio
    async def test_clear_removes_messages(self, context_module: Any) -> None:
        """Check that no message is left after a clear."""
        await context_module.add_message({"role": "user", "content": "Test"})
        await context_module.clear()
        assert len(await context_module.get_messages()) == 0

    @pytest.mark.asyncio
    async def test_get_messages_for_request_returns_messages(self, context_module: Any) -> None:
        """Check that a request contains the added messages."""
        await context_module.add_message({"role": "user", "content": "Test"})
        if hasattr(context_module, "get_messages_for_request"):
            messages = await context_module.get_messages_for_request()
            assert isinstance(messages, list), f"expected a list of messages, got {messages!r}"
            assert messages, "the added message is missing"

    @pytest.mark.asyncio
    async def test_internal_should_compact_returns_bool(self, context_module: Any) -> None:
        """Check that its decision about compaction is a bool."""
        decide = getattr(context_module, "_should_compact", None)
        if decide is None:
            return
        required = [
            p
            for p in inspect.signature(decide).parameters.values()
            if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        arguments = {0: (), 2: (100_000, 200_000)}.get(len(required))
        if arguments is None:
            pytest.skip(f"_should_compact has unexpected signature: {inspect.signature(decide)}")
        answer = decide(*arguments)
        if inspect.isawaitable(answer):
            answer = await answer
        assert isinstance(answer, bool), f"_should_compact() must return a bool, got {answer!r}"

    @pytest.mark.asyncio
    async def test_internal_compact_does_not_crash(self, context_module: Any) -> None:
        """Check that compaction of an empty context doesn't crash."""
        compact = getattr(context_module, "_compact_internal", None)
        if compact is not None:
            await _call_safely(compact)

    @pytest.mark.asyncio
    async def test_add_invalid_message_does_not_crash(self, context_module: Any) -> None:
        """Check that a message without content is accepted or refused."""
        await _call_safely(context_module.add_message, {})

    @pytest.mark.asyncio
    async def test_get_messages_never_returns_none(self, context_module: Any) -> None:
        """Check that there is always a list of messages."""
        messages = await context_module.get_messages()
        assert isinstance(messages, list), f"get_messages() must return a list, got {messages!r}"


async def _call_safely(function: Callable[..., object], *arguments: object) -> None:
    try:
        answer = function(*arguments)
        if inspect.isawaitable(answer):
            await answer
    # The context may refuse the message.
    except Exception as exc:  # noqa: BLE001
        if isinstance(exc, AttributeError | TypeError):
            pytest.fail(f"the context crashed: {exc!r}")
