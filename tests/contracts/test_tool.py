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


def test_a_tool_may_give_its_name_by_attribute_or_property() -> None:
    tools: list[Tool] = [Echo(), EchoByProperty()]
    assert all(isinstance(tool, Tool) for tool in tools)


def test_a_tool_passes_for_an_orchestrator_so_the_type_must_be_declared() -> None:
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
def test_a_schema_is_found_whichever_way_the_tool_gives_it(tool: object) -> None:
    assert tool_schema(tool) == SCHEMA


@pytest.mark.parametrize(
    "tool",
    [
        Echo(),
        with_members(input_schema={}),
        with_members(input_schema=None, get_schema=lambda self: None),
    ],
)
def test_a_tool_that_describes_nothing_has_no_schema(tool: object) -> None:
    assert tool_schema(tool) is None


def test_adding_a_key_to_the_schema_does_not_reach_the_tool() -> None:
    tool = with_members(input_schema=dict(SCHEMA))
    found = tool_schema(tool)
    assert found is not None
    found["title"] = "changed"
    assert tool_schema(tool) == SCHEMA


@pytest.mark.parametrize("member", ["input_schema", "get_schema"])
def test_a_schema_that_raises_is_blamed_on_the_tool_by_name(member: str) -> None:
    value = property(broken) if member == "input_schema" else broken
    with pytest.raises(
        ContractError, match=rf"'echo'.*{member}.*the schema file is gone"
    ) as caught:
        tool_schema(with_members(**{member: value}))
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.module == "echo"
    assert caught.value.clause == "T7"


@pytest.mark.parametrize("wrong", ["{}", ["type"], 7])
def test_a_schema_of_the_wrong_type_is_blamed_on_the_tool_by_name(wrong: object) -> None:
    with pytest.raises(
        ContractError, match=rf"'echo'.*{type(wrong).__name__}.*expected a JSON Schema as a dict"
    ):
        tool_schema(with_members(get_schema=lambda self: wrong))


@pytest.mark.filterwarnings("error")
def test_an_async_schema_is_refused_without_a_stray_coroutine() -> None:
    with pytest.raises(ContractError, match="not async"):
        tool_schema(with_members(get_schema=late))
    gc.collect()


def test_a_nameless_tool_is_blamed_by_its_class() -> None:
    tool = Nameless()
    tool.get_schema = lambda: "nothing"  # type: ignore[attr-defined]
    with pytest.raises(ContractError, match="'Nameless'"):
        tool_schema(tool)
