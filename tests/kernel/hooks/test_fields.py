"""Handlers that ask for some fields of a payload: what they receive, what they may change, what they cost."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from amplifier.models import HookResult
from tests._support.small_agent import agent
from tests.kernel.hooks.hook_registry import registry

pytestmark = pytest.mark.virtual_time

Data = dict[str, Any]
PAYLOAD = {"tool_name": "look", "tool_input": {"path": ["x"]}, "messages": [{"role": "user"}]}


class Untouchable(dict[str, Any]):
    """A part of a payload that must not be read, let alone copied."""

    def refuse(self, *_: Any) -> Iterator[str]:
        raise AssertionError("read")

    __iter__ = keys = values = items = copy = __getitem__ = refuse  # type: ignore[assignment]


async def test_handler_receives_requested_and_kernel_fields():
    hooks, seen = registry(), []
    hooks.set_default_fields(mode="chat")
    hooks.register(
        "tool:pre", lambda _, data: seen.append(data), fields=["tool_name", "mode", "absent"]
    )
    hooks.register("tool:pre", lambda _, data: seen.append(data), fields=())
    result = await hooks.emit("tool:pre", PAYLOAD)
    own = {"timestamp": seen[0]["timestamp"], "session_id": "s-1", "parent_id": None}
    assert seen == [{"tool_name": "look", "mode": "chat", **own}, own]
    assert result.data == {"mode": "chat", **PAYLOAD, **own}
    await hooks.emit_and_collect("tool:pre", PAYLOAD)
    assert sorted(map(sorted, seen[2:])) == sorted(map(sorted, seen[:2]))


async def test_fields_are_copies():
    hooks, seen = registry(), []

    def vandal(event: str, data: Data) -> None:
        seen.append(data["tool_input"]["path"][0])
        data["tool_input"]["path"].clear()

    for _ in range(5):
        hooks.register("tool:pre", vandal, fields=("tool_input",))
    await hooks.emit("tool:pre", PAYLOAD)
    assert seen == ["x"] * 5
    assert PAYLOAD["tool_input"] == {"path": ["x"]}


@pytest.mark.parametrize("many", [1, 10])
async def test_no_other_field_is_read(many):
    hooks, seen = registry(), []
    for _ in range(many):
        hooks.register(
            "tool:pre", lambda _, data: seen.append(data["tool_name"]), fields=("tool_name",)
        )
    circular: list[Any] = []
    circular.append(circular)  # a copy of it fails
    result = await hooks.emit(
        "tool:pre", {"tool_name": "look", "circular": circular, "other": Untouchable(a=1)}
    )
    assert seen == ["look"] * many
    assert result.data is not None
    assert result.data["circular"] is circular


@pytest.mark.parametrize("fields", [("tool_name",), ()])
async def test_modification_replaces_its_fields_only(fields):
    hooks, seen = registry(), []
    answer = HookResult(
        action="modify", data={"tool_input": "peek", "added": [1], "session_id": "forged"}
    )
    hooks.register("tool:pre", lambda *_: answer, fields=fields)
    hooks.register("tool:pre", lambda _, data: seen.append(data), priority=1)
    for _ in range(2):  # the handler's own object is not changed
        result = await hooks.emit("tool:pre", PAYLOAD)
        assert result.action == "modify"
        assert result.data == seen[-1]
        assert {**PAYLOAD, "tool_input": "peek", "added": [1]}.items() <= seen[-1].items()
        assert seen[-1]["session_id"] == "s-1"
    assert answer.data == {"tool_input": "peek", "added": [1], "session_id": "forged"}


async def test_denial_from_fields_carries_whole_payload():
    hooks = registry()
    hooks.register(
        "tool:pre", lambda _, data: {"action": "deny", "data": {"why": "no"}}, fields=("tool_name",)
    )
    result = await hooks.emit("tool:pre", PAYLOAD)
    assert result.action == "deny"
    assert result.data is not None
    assert {**PAYLOAD, "why": "no"}.items() <= result.data.items()


@pytest.mark.parametrize("wrong", ["tool_name", b"x", 7, ["a", 1], iter(["a"])])
def test_invalid_fields_are_refused(wrong):
    hooks = registry()
    with pytest.raises(
        TypeError, match=r"the fields of a handler for 'tool:pre' must be names such as .*; got"
    ):
        hooks.register("tool:pre", lambda *_: None, fields=wrong)
    assert hooks.list_handlers() == {}


async def test_modules_register_with_fields():
    seen: list[Data] = []

    async def mount(coordinator: Any, config: Any = None) -> None:
        coordinator.hooks.on("x:y", lambda _, data: seen.append(data), fields=("a",))

    async with agent(hooks={"hooks-x": mount}) as session:
        await session.coordinator.hooks.emit("x:y", {"a": 1, "b": 2})
    assert [sorted(data) for data in seen] == [["a", "parent_id", "session_id", "timestamp"]]


async def test_modification_of_fields_reads_no_others():
    hooks, seen = registry(), []
    answer = HookResult(action="modify", data={"label": "peek"})
    hooks.register("tool:pre", lambda *_: answer, fields=("label",))
    hooks.register("tool:pre", lambda _, data: seen.append(data["label"]), fields=("label",))
    circular: list[Any] = []
    circular.append(circular)  # a copy of it fails
    result = await hooks.emit("tool:pre", {"label": "look", "circular": circular})
    assert (result.action, seen) == ("modify", ["peek"])
    assert result.data is not None
    assert result.data["circular"] is circular


async def test_registry_reports_receivers_of_fields():
    hooks = registry()
    assert not hooks.has_handlers("tool:pre")
    undo = hooks.register("tool:pre", lambda *_: None, fields=("tool_name",))
    assert hooks.has_handlers("tool:pre")
    assert hooks.has_handlers("tool:pre", "tool_name")
    assert hooks.has_handlers(
        "tool:pre", "session_id"
    )  # the kernel's own, which every handler receives
    assert not hooks.has_handlers("tool:pre", "messages")
    assert not hooks.has_handlers("tool:post")
    everywhere = hooks.register("*", lambda *_: None)
    assert hooks.has_handlers("tool:pre", "messages")
    assert hooks.has_handlers("of:a:module", "anything")
    everywhere()
    undo()
    assert not hooks.has_handlers("tool:pre")


async def test_on_demand_handler_causes_no_field():
    hooks, seen = registry(), []
    hooks.register(
        "provider:request", lambda _, data: seen.append(data["messages"]), on_demand=True
    )
    assert hooks.has_handlers("provider:request")
    assert not hooks.has_handlers("provider:request", "messages")
    undo = hooks.register("provider:request", lambda *_: None, fields=("messages",))
    assert hooks.has_handlers("provider:request", "messages")
    await hooks.emit("provider:request", {"messages": ["a"]})
    undo()
    await hooks.emit("provider:request", {"messages": None})
    assert seen == [["a"], None]


async def test_handler_without_fields_gets_whole_payload():
    hooks, seen = registry(), []

    def peek() -> None:
        seen.append(sys._getframe(1).f_locals["data"])

    async def awaits_nothing(event: str, data: dict[str, Any]) -> None:
        assert data["a"] == 1
        peek()

    def plain(event: str, data: dict[str, Any]) -> None:
        assert data.get("a") == 1
        peek()

    hooks.register("x:y", awaits_nothing)
    hooks.register("x:y", plain)
    assert hooks.has_handlers("x:y", "b")
    await hooks.emit("x:y", {"a": 1, "b": {"c": [2]}})
    assert [data["b"] for data in seen] == [{"c": [2]}] * 2
    assert seen[0]["b"]["c"] is not seen[1]["b"]["c"]
