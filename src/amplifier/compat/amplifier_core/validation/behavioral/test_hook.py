"""The behavioural suite of hook modules, for a module's tests to inherit from."""

from __future__ import annotations

from typing import Any

import pytest

from ...models import HookResult

__all__ = ["HookBehaviorTests"]

_ACTIONS = {"continue", "deny", "modify", "inject_context", "ask_user"}


class HookBehaviorTests:
    """Checks any hook module, whatever its events."""

    @pytest.mark.asyncio
    async def test_mount_succeeds(self, hook_cleanup: Any, coordinator: Any) -> None:
        """Check that mounting returns a cleanup or nothing."""
        assert hook_cleanup is None or callable(hook_cleanup)

    @pytest.mark.asyncio
    async def test_handler_returns_hook_result(self, coordinator: Any) -> None:
        """Check the result of an unknown event."""
        result = await coordinator.hooks.emit("test:event", {"data": "test"})
        assert result is None or isinstance(result, HookResult)

    @pytest.mark.asyncio
    async def test_hook_result_has_valid_action(self, coordinator: Any) -> None:
        """Check that the action of a result exists."""
        result = await coordinator.hooks.emit("test:event", {"data": "test"})
        assert result is None or result.action in _ACTIONS

    @pytest.mark.asyncio
    async def test_cleanup_is_callable_if_present(self, hook_cleanup: Any) -> None:
        """Check that a cleanup is callable."""
        assert hook_cleanup is None or callable(hook_cleanup)

    @pytest.mark.asyncio
    async def test_cleanup_does_not_raise(self, hook_cleanup: Any) -> None:
        """Check that a cleanup doesn't raise, and that it may be called twice."""
        if hook_cleanup is not None:
            hook_cleanup()

    @pytest.mark.asyncio
    async def test_handler_does_not_crash_on_malformed_data(self, coordinator: Any) -> None:
        """Check that an event without a payload doesn't crash a handler."""
        await _emit_safely(coordinator, None)

    @pytest.mark.asyncio
    async def test_handler_does_not_crash_on_empty_data(self, coordinator: Any) -> None:
        """Check that an event with an empty payload doesn't crash a handler."""
        await _emit_safely(coordinator, {})


async def _emit_safely(coordinator: Any, data: object) -> None:
    try:
        result = await coordinator.hooks.emit("test:event", data)
    # A handler may refuse the payload.
    except Exception as exc:  # noqa: BLE001
        if isinstance(exc, AttributeError | TypeError):
            pytest.fail(f"a handler crashed on its payload: {exc!r}")
    else:
        assert result is None or isinstance(result, HookResult)
