"""MockTool: returns configured results, records its calls, keeps the tool contract."""

from __future__ import annotations

from typing import Any

import pytest

from amplifier.contracts import tool_schema
from amplifier.models import ToolResult
from amplifier.testing import MockTool


@pytest.mark.parametrize("argument", ["return_value", "output"])
@pytest.mark.parametrize("value", ["text", None, {"rows": [1, 2]}, 0])
async def test_the_output_is_what_it_was_given_under_either_name(argument: str, value: Any) -> None:
    tool = MockTool(**{argument: value})
    assert await tool.execute({}) == ToolResult(success=True, output=value)


async def test_the_output_may_depend_on_the_input() -> None:
    async def later(given: dict[str, Any]) -> str:
        return f"later {given['x']}"

    assert (await MockTool(respond=lambda given: given["x"] * 2).execute({"x": 21})).output == 42
    assert (await MockTool(respond=later).execute({"x": 1})).output == "later 1"
    refused = ToolResult(success=False, error={"message": "odd"})
    assert await MockTool(respond=lambda given: refused).execute({}) == refused


@pytest.mark.parametrize("error", ["broken", {"message": "broken", "type": "IOError"}])
async def test_an_error_is_a_failed_result(error: Any) -> None:
    result = await MockTool(error=error).execute({})
    assert not result.success
    assert result.error is not None
    assert result.error["message"] == "broken"


@pytest.mark.parametrize("raises", [RuntimeError("boom"), RuntimeError])
async def test_it_can_break_the_contract_by_raising(raises: Any) -> None:
    tool = MockTool(raises=raises)
    with pytest.raises(RuntimeError):
        await tool.execute({})
    assert tool.call_count == 1


def test_two_answers_at_once_are_refused() -> None:
    with pytest.raises(ValueError, match="'mock_tool' got output, error; expected one answer"):
        MockTool(output="x", error="y")


async def test_calls_are_remembered_as_they_were_made() -> None:
    tool = MockTool()
    assert tool.call_count == 0
    assert tool.last_input is None
    given = {"path": ["a"]}
    await tool.execute(given)
    given["path"].append("b")
    await tool.execute(given)
    assert tool.call_count == 2
    assert tool.calls == [{"path": ["a"]}, {"path": ["a", "b"]}]
    assert tool.last_input == {"path": ["a", "b"]}
    assert repr(tool) == "<MockTool 'mock_tool' called 2 times>"


def test_the_schema_is_any_object_or_what_was_given() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    assert tool_schema(MockTool()) == {"type": "object", "properties": {}}
    tool = MockTool(schema=schema)
    assert tool_schema(tool) == tool.get_schema() == tool.input_schema == schema
    tool.get_schema()["properties"]["x"] = "changed"
    assert tool.get_schema() == schema
