"""The behavioural suite of tools, for a module's tests to inherit from."""

from __future__ import annotations

from typing import Any

import pytest

from ...models import ToolResult

__all__ = ["ToolBehaviorTests"]


class ToolBehaviorTests:
    """Checks any tool, whatever its purpose."""

    @pytest.mark.asyncio
    async def test_mount_succeeds(self, tool_module: Any) -> None:
        """Check that mounting gives a tool."""
        assert tool_module is not None

    @pytest.mark.asyncio
    async def test_tool_has_name(self, tool_module: Any) -> None:
        """Check that it has a name."""
        assert isinstance(tool_module.name, str), (
            f"a tool's name must be a str, got {tool_module.name!r}"
        )
        assert tool_module.name, "a tool's name must not be empty"

    @pytest.mark.asyncio
    async def test_tool_has_description(self, tool_module: Any) -> None:
        """Check that it has a description."""
        description = tool_module.description
        assert isinstance(description, str), (
            f"a tool's description must be a str, got {description!r}"
        )
        assert description, "a tool's description must not be empty"

    @pytest.mark.asyncio
    async def test_tool_has_execute_method(self, tool_module: Any) -> None:
        """Check that it has a method ``execute``."""
        assert callable(getattr(tool_module, "execute", None)), "a tool needs an execute method"

    @pytest.mark.asyncio
    async def test_execute_returns_tool_result(self, tool_module: Any) -> None:
        """Check that it returns a ToolResult."""
        result = await tool_module.execute({"_tool_call_id": "test-123"})
        assert isinstance(result, ToolResult), f"execute() must return a ToolResult, got {result!r}"

    @pytest.mark.asyncio
    async def test_tool_result_has_required_fields(self, tool_module: Any) -> None:
        """Check that the result has success and output."""
        result = await tool_module.execute({"_tool_call_id": "test-456"})
        assert hasattr(result, "success"), "a tool's result needs `success`"
        assert hasattr(result, "output"), "a tool's result needs `output`"

    @pytest.mark.asyncio
    async def test_invalid_input_returns_error_result(self, tool_module: Any) -> None:
        """Check that it returns a result for invalid input, or refuses it."""
        try:
            result = await tool_module.execute({})
        # The tool may refuse the input.
        except Exception as exc:  # noqa: BLE001
            if isinstance(exc, AttributeError | TypeError | KeyError):
                pytest.fail(f"the tool crashed on its input: {exc!r}")
        else:
            assert isinstance(result, ToolResult), (
                f"execute() must return a ToolResult, got {result!r}"
            )
