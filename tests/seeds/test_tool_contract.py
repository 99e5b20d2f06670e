"""Module contracts: the quick start and the tool contract."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from amplifier import ModuleCoordinator, Tool, ToolCall, ToolResult, from_json, to_json
from amplifier.contracts import tool_schema
from amplifier.testing import MockTool, TestCoordinator
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


async def test_the_placeholder_of_the_quick_start_is_no_mount_point() -> None:
    async def mount(coordinator, config):
        await coordinator.mount("category", object(), name="my-module")

    async with seed_session(tools={"my-module": mount}) as session:
        [failure] = session.failures
    assert failure.module_id == "my-module"
    assert "Unknown mount point: category" in str(failure.error)


# ── protocol and data ──


def test_the_protocol_asks_for_name_description_and_async_execute() -> None:
    assert isinstance(MyTool({}), Tool)
    assert not isinstance(object(), Tool)
    assert isinstance(vars(Tool)["name"], property)
    assert isinstance(vars(Tool)["description"], property)
    assert inspect.iscoroutinefunction(Tool.execute)
    assert list(inspect.signature(Tool.execute).parameters) == ["self", "input"]


def test_a_tool_call_has_id_name_and_arguments() -> None:
    call = ToolCall(id="call_1", name="my_tool", arguments={"required_param": "x"})
    assert (call.id, call.name, call.arguments) == ("call_1", "my_tool", {"required_param": "x"})
    assert from_json(ToolCall, to_json(call)) == call


def test_a_tool_result_has_the_documented_defaults() -> None:
    result = ToolResult()
    assert (result.success, result.output, result.error) == (True, None, None)
    assert from_json(ToolResult, to_json(result)) == result


# ── mount ──


async def test_mount_registers_the_tool_and_may_return_it() -> None:
    async with seed_session(tools={"my-tool": mount}, configs={"my-tool": {"max_size": 1048576}}) as session:
        tool = session.coordinator.get("tools", "my-tool")
        assert isinstance(tool, MyTool)
        assert tool.config == {"max_size": 1048576}
        assert list(session.coordinator.get("tools")) == ["my-tool"]


@pytest.mark.parametrize("kind", ["instance", "cleanup", "none"])
async def test_mount_may_return_an_instance_a_cleanup_or_none(kind: str) -> None:
    cleaned: list[str] = []

    async def mount(coordinator, config):
        return {"instance": MyTool(config), "cleanup": lambda: cleaned.append("x"), "none": None}[kind]

    async with seed_session(tools={"my-tool": mount}) as session:
        assert session.failures == []
        assert list(session.coordinator.get("tools")) == (["my_tool"] if kind == "instance" else [])
    assert cleaned == (["x"] if kind == "cleanup" else [])


# ── implementation ──


async def test_execute_handles_its_input_and_its_errors() -> None:
    tool = MyTool(config={})
    assert await tool.execute({"required_param": "it"}) == ToolResult(success=True, output="worked on it")
    refused = await tool.execute({})
    assert not refused.success
    assert refused.error == {"message": "required_param is required"}
    failed = await tool.execute({"required_param": "explode"})
    assert failed.error == {"message": "nothing there", "type": "LookupError"}


def test_the_optional_schema_is_found() -> None:
    schema = tool_schema(MyTool({}))
    assert schema is not None
    assert schema["required"] == ["required_param"]
    assert schema["properties"]["optional_param"]["default"] == 10


async def test_a_tool_announces_its_events() -> None:
    coordinator = TestCoordinator()
    coordinator.register_contributor(
        "observability.events",
        "my-tool",
        lambda: ["my-tool:started", "my-tool:completed", "my-tool:error"],
    )
    assert await coordinator.collect_contributions("observability.events") == [
        ["my-tool:started", "my-tool:completed", "my-tool:error"]
    ]


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
