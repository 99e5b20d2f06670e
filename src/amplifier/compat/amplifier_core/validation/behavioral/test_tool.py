"""The behavioural suite of tools: inherit from it in a module's tests."""

from __future__ import annotations

from typing import Any

import pytest

from ...models import ToolResult

__all__ = ["ToolBehaviorTests"]


class ToolBehaviorTests:
    """What every tool does, whatever it is for."""

    @pytest.mark.asyncio
    async def test_mount_succeeds(self, tool_module: Any) -> None:
        """Mounting gives a tool."""
        assert tool_module is not None

    @pytest.mark.asyncio
    async def test_tool_has_name(self, tool_module: Any) -> None:
        """It has a name."""
        assert isinstance(tool_module.name, str), (
            f"a tool's name must be a str, got {tool_module.name!r}"
        )
        assert tool_module.name, "a tool's name must not be empty"

    @pytest.mark.asyncio
    async def test_tool_has_description(self, tool_module: Any) -> None:
        """It has a description."""
        description = tool_module.description
        assert isinstance(description, str), (
            f"a tool's description must be a str, got {description!r}"
        )
        assert description, "a tool's description must not be empty"

    @pytest.mark.asyncio
    async def test_tool_has_execute_method(self, tool_module: Any) -> None:
        """It can be executed."""
        assert callable(getattr(tool_module, "execute", None)), "a tool needs an execute method"

    @pytest.mark.asyncio
    async def test_execute_returns_tool_result(self, tool_module: Any) -> None:
        """It answers with a ToolResult."""
        result = await tool_module.execute({"_tool_call_id": "test-123"})
        assert isinstance(result, ToolResult), f"execute() must return a ToolResult, got {result!r}"

    @pytest.mark.asyncio
    async def test_tool_result_has_required_fields(self, tool_module: Any) -> None:
        """The result reports success and output."""
        result = await tool_module.execute({"_tool_call_id": "test-456"})
        assert hasattr(result, "success"), "a tool's result needs `success`"
        assert hasattr(result, "output"), "a tool's result needs `output`"

    @pytest.mark.asyncio
    async def test_invalid_input_returns_error_result(self, tool_module: Any) -> None:
        """Input it does not understand is not a reason to break."""
        try:
            result = await tool_module.execute({})
        except Exception as exc:  # noqa: BLE001 — a complaint about the input is fine
            if isinstance(exc, AttributeError | TypeError | KeyError):
                pytest.fail(f"the tool broke over its input: {exc!r}")
        else:
            assert isinstance(result, ToolResult), (
                f"execute() must return a ToolResult, got {result!r}"
            )
