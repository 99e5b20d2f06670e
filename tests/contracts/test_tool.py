"""The tool contract: its shape, and finding a schema under either name."""

from __future__ import annotations

import gc
from types import MappingProxyType
from typing import Any

import pytest

from amplifier.contracts import Orchestrator, Tool, tool_schema
from amplifier.errors import ContractError
from amplifier.models import ToolResult

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


class Echo:
    name = "echo"
    description = "Repeats its input."

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 - the contract's name
        return ToolResult(output=input.get("text"))


class EchoByProperty:
    @property
    def name(self) -> str:
        return "echo"

    @property
    def description(self) -> str:
        return "Repeats its input."

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 - the contract's name
        return ToolResult(output=input.get("text"))


class Nameless:
    description = "Has no name."

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 - the contract's name
        return ToolResult()


def test_tool_name_by_attribute_or_property() -> None:
    tools: list[Tool] = [Echo(), EchoByProperty()]
    assert all(isinstance(tool, Tool) for tool in tools)


def test_tool_resembles_orchestrator_without_type() -> None:
    assert isinstance(Echo(), Orchestrator)


def with_members(**members: Any) -> object:
    return type("Described", (Echo,), members)()


def broken(self: object) -> Any:
    raise OSError("the schema file is gone")


async def late(self: object) -> dict[str, Any]:
    return SCHEMA


@pytest.mark.parametrize(
    "tool",
    [
        with_members(input_schema=SCHEMA),
        with_members(input_schema=property(lambda self: SCHEMA)),
        with_members(input_schema=lambda self: SCHEMA),
        with_members(input_schema=MappingProxyType(SCHEMA)),
        with_members(get_schema=lambda self: SCHEMA),
        with_members(input_schema={}, get_schema=lambda self: SCHEMA),
        with_members(input_schema=None, get_schema=lambda self: SCHEMA),
    ],
)
def test_schema_is_found_in_every_form(tool: object) -> None:
    assert tool_schema(tool) == SCHEMA


@pytest.mark.parametrize(
    "tool",
    [
        Echo(),
        with_members(input_schema={}),
        with_members(input_schema=None, get_schema=lambda self: None),
    ],
)
def test_undescribed_tool_has_no_schema(tool: object) -> None:
    assert tool_schema(tool) is None


def test_added_schema_key_does_not_reach_tool() -> None:
    tool = with_members(input_schema=dict(SCHEMA))
    found = tool_schema(tool)
    assert found is not None
    found["title"] = "changed"
    assert tool_schema(tool) == SCHEMA


@pytest.mark.parametrize("member", ["input_schema", "get_schema"])
def test_raising_schema_is_blamed_on_tool(member: str) -> None:
    value = property(broken) if member == "input_schema" else broken
    with pytest.raises(
        ContractError, match=rf"'echo'.*{member}.*the schema file is gone"
    ) as caught:
        tool_schema(with_members(**{member: value}))
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.module == "echo"
    assert caught.value.clause == "T7"


@pytest.mark.parametrize("wrong", ["{}", ["type"], 7])
def test_schema_of_wrong_type_is_blamed(wrong: object) -> None:
    with pytest.raises(
        ContractError, match=rf"'echo'.*{type(wrong).__name__}.*expected a JSON Schema as a dict"
    ):
        tool_schema(with_members(get_schema=lambda self: wrong))


@pytest.mark.filterwarnings("error")
def test_async_schema_is_refused_cleanly() -> None:
    with pytest.raises(ContractError, match="not async"):
        tool_schema(with_members(get_schema=late))
    gc.collect()


def test_nameless_tool_is_blamed_by_class() -> None:
    tool = Nameless()
    tool.get_schema = lambda: "nothing"  # type: ignore[attr-defined]
    with pytest.raises(ContractError, match="'Nameless'"):
        tool_schema(tool)
