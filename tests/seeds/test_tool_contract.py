"""Module contracts: the quick start and the tool contract."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from amplifier import ModuleCoordinator, Tool, ToolResult, from_json, to_json
from amplifier.contracts import tool_schema
from tests.seeds.seed_sessions import seed_session


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


async def test_quick_start_mounts_and_returns_instance() -> None:
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


# ── protocol and data ──


def test_protocol_has_name_description_and_execute() -> None:
    assert isinstance(MyTool({}), Tool)
    assert not isinstance(object(), Tool)
    assert isinstance(vars(Tool)["name"], property)
    assert isinstance(vars(Tool)["description"], property)
    assert inspect.iscoroutinefunction(Tool.execute)
    assert list(inspect.signature(Tool.execute).parameters) == ["self", "input"]


def test_tool_result_has_documented_defaults() -> None:
    result = ToolResult()
    assert (result.success, result.output, result.error) == (True, None, None)
    assert from_json(ToolResult, to_json(result)) == result


# ── mount ──


async def test_mount_registers_and_may_return_tool() -> None:
    async with seed_session(
        tools={"my-tool": mount}, configs={"my-tool": {"max_size": 1048576}}
    ) as session:
        tool = session.coordinator.get("tools", "my-tool")
        assert isinstance(tool, MyTool)
        assert tool.config == {"max_size": 1048576}
        assert list(session.coordinator.get("tools")) == ["my-tool"]


# ── implementation ──


def test_optional_schema_is_found() -> None:
    schema = tool_schema(MyTool({}))
    assert schema is not None
    assert schema["required"] == ["required_param"]
    assert schema["properties"]["optional_param"]["default"] == 10
