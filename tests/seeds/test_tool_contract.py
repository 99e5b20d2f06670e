"""Module contracts: the quick start and the tool contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amplifier import ModuleCoordinator, Tool, ToolResult
from amplifier.testing import MockTool
from tests._support.seed_sessions import seed_session


class MyTool:
    """The tool of the document, put together from its snippets."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    @property
    def name(self) -> str:
        return "my_tool"

    @property
    def description(self) -> str:
        return "Performs specific action with given parameters."

    async def _do_work(self, param: str) -> str:
        if param == "explode":
            raise LookupError("nothing there")
        return f"worked on {param}"

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 - the contract's name
        try:
            required_param = input.get("required_param")
            if not required_param:
                return ToolResult(
                    success=False,
                    error={"message": "required_param is required"},
                )

            result = await self._do_work(required_param)

            return ToolResult(
                success=True,
                output=result,
            )

        except Exception as e:
            return ToolResult(
                success=False,
                error={"message": str(e), "type": type(e).__name__},
            )

    def get_schema(self) -> dict:
        return {
            "type": "object",
            "properties": {
                "required_param": {
                    "type": "string",
                    "description": "Description of parameter",
                },
                "optional_param": {
                    "type": "integer",
                    "default": 10,
                },
            },
            "required": ["required_param"],
        }


async def mount(coordinator: ModuleCoordinator, config: dict) -> Tool | Callable | None:
    tool = MyTool(config=config)
    await coordinator.mount("tools", tool, name="my-tool")
    return tool


# ── quick start ──


async def test_the_quick_start_pattern_mounts_an_instance_and_returns_it() -> None:
    """``"category"`` means a mount point in the document: with a real one the pattern works as it is written."""

    class MyModule:
        def __init__(self, config: dict[str, Any]) -> None:
            self.config = config

    async def mount(coordinator, config):
        instance = MyModule(config)
        await coordinator.mount("tools", instance, name="my-module")
        return instance

    async with seed_session(tools={"my-module": mount}, configs={"my-module": {"a": 1}}) as session:
        assert session.failures == []
        instance = session.coordinator.get("tools", "my-module")
        assert isinstance(instance, MyModule)
        assert instance.config == {"a": 1}
    assert session.cleanup_failures == []


# ── mount ──


async def test_mount_registers_the_tool_and_may_return_it() -> None:
    async with seed_session(tools={"my-tool": mount}, configs={"my-tool": {"max_size": 1048576}}) as session:
        tool = session.coordinator.get("tools", "my-tool")
        assert isinstance(tool, MyTool)
        assert tool.config == {"max_size": 1048576}
        assert list(session.coordinator.get("tools")) == ["my-tool"]


# ── implementation ──


async def test_execute_handles_its_input_and_its_errors() -> None:
    tool = MyTool(config={})
    assert await tool.execute({"required_param": "it"}) == ToolResult(success=True, output="worked on it")
    refused = await tool.execute({})
    assert not refused.success
    assert refused.error == {"message": "required_param is required"}
    failed = await tool.execute({"required_param": "explode"})
    assert failed.error == {"message": "nothing there", "type": "LookupError"}


# ── testing ──


async def test_tool_execution():
    tool = MyTool(config={})

    result = await tool.execute(
        {
            "required_param": "value",
        }
    )

    assert result.success
    assert result.error is None


async def test_mock_tool_counts_its_calls_and_keeps_the_last_input() -> None:
    mock_tool = MockTool(
        name="test_tool",
        description="Test tool",
        return_value="mock result",
    )

    result = await mock_tool.execute({"path": "a.txt"})

    assert mock_tool.call_count == 1
    assert mock_tool.last_input == {"path": "a.txt"}
    assert result == ToolResult(success=True, output="mock result")
    assert (mock_tool.name, mock_tool.description) == ("test_tool", "Test tool")
