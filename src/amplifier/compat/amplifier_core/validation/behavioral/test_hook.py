"""The behavioural suite of hook modules: inherit from it in a module's tests."""

from __future__ import annotations

from typing import Any

import pytest

from ...models import HookResult

__all__ = ["HookBehaviorTests"]

_ACTIONS = {"continue", "deny", "modify", "inject_context", "ask_user"}


class HookBehaviorTests:
    """What every hook module does, whatever it listens to."""

    @pytest.mark.asyncio
    async def test_mount_succeeds(self, hook_cleanup: Any, coordinator: Any) -> None:
        """Mounting works and gives a cleanup or nothing."""
        assert hook_cleanup is None or callable(hook_cleanup)

    @pytest.mark.asyncio
    async def test_handler_returns_hook_result(self, coordinator: Any) -> None:
        """An unknown event gets a result like any other."""
        result = await coordinator.hooks.emit("test:event", {"data": "test"})
        assert result is None or isinstance(result, HookResult)

    @pytest.mark.asyncio
    async def test_hook_result_has_valid_action(self, coordinator: Any) -> None:
        """The answer is one of the actions there are."""
        result = await coordinator.hooks.emit("test:event", {"data": "test"})
        assert result is None or result.action in _ACTIONS

    @pytest.mark.asyncio
    async def test_cleanup_is_callable_if_present(self, hook_cleanup: Any) -> None:
        """A cleanup can be called."""
        assert hook_cleanup is None or callable(hook_cleanup)

    @pytest.mark.asyncio
    async def test_cleanup_does_not_raise(self, hook_cleanup: Any) -> None:
        """A cleanup raises nothing, and may be called before the one at the end."""
        if hook_cleanup is not None:
            hook_cleanup()

    @pytest.mark.asyncio
    async def test_handler_does_not_crash_on_malformed_data(self, coordinator: Any) -> None:
        """An event without a payload breaks nothing."""
        await _emit_safely(coordinator, None)

    @pytest.mark.asyncio
    async def test_handler_does_not_crash_on_empty_data(self, coordinator: Any) -> None:
        """An event with an empty payload breaks nothing."""
        await _emit_safely(coordinator, {})


async def _emit_safely(coordinator: Any, data: Any) -> None:
    try:
        result = await coordinator.hooks.emit("test:event", data)
    except Exception as exc:  # noqa: BLE001 — a complaint about the payload is fine
        if isinstance(exc, AttributeError | TypeError):
            pytest.fail(f"a handler broke over its payload: {exc!r}")
    else:
        assert result is None or isinstance(result, HookResult)
