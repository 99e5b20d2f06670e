"""The TypedDicts of event payloads: one for each event, with its keys, and true of what a session emits."""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from amplifier import AmplifierSession, HookResult
from amplifier.errors import InvalidRequestError
from amplifier.events import CATALOGUE, COMMON_KEYS, payloads
from amplifier.testing import MockProvider, MockTool


def payload_name(event: str) -> str:
    return "".join(word.capitalize() for word in event.replace(":", "_").split("_")) + "Payload"


def payload_class(event: str) -> Any:
    return getattr(payloads, payload_name(event))


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation of a payload allows; containers are not looked into."""
    if hint is Any:
        return True
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, origin or hint) and (hint is bool or not isinstance(value, bool))


def misfits(event: str, data: dict[str, Any]) -> list[str]:
    hints = get_type_hints(payload_class(event))
    return [
        f"{event}: {key}={data[key]!r}"
        for key in hints
        if key in data and not fits(data[key], hints[key])
    ]


@pytest.mark.parametrize("event", CATALOGUE)
def test_each_event_has_a_payload_with_its_keys(event: str) -> None:
    payload = payload_class(event)
    assert is_typeddict(payload)
    assert CATALOGUE[event].payload == payload
    assert " ".join((payload.__doc__ or "").split()) == f"``{event}``: {CATALOGUE[event].summary}"
    assert set(get_type_hints(payload)) == {*CATALOGUE[event].keys, *COMMON_KEYS}
    assert payload.__required_keys__ == frozenset()


def test_no_other_payload_is_listed() -> None:
    assert set(payloads.__all__) == {"EventPayload", *map(payload_name, CATALOGUE)}


def test_a_key_has_one_type_in_all_events() -> None:
    hints = {event: get_type_hints(payload_class(event)) for event in CATALOGUE}
    types_of = {
        key: {str(each[key]) for each in hints.values() if key in each}
        for each in hints.values()
        for key in each
    }
    assert {key for key, types in types_of.items() if len(types) > 1} == {
        "error"
    }  # loops put what they have there


async def test_what_a_session_emits_fits_the_types() -> None:
    seen: dict[str, dict[str, Any]] = {}

    async def record(event: str, data: dict[str, Any]) -> HookResult:
        seen[event] = data
        if event == "tool:pre" and data["tool_name"] == "ask":
            return HookResult(action="ask_user", approval_prompt="May it?")
        if event == "tool:post":
            raise RuntimeError("a handler that fails")
        return HookResult()

    async def failing(coordinator: Any, config: dict[str, Any]) -> Any:
        raise RuntimeError("this module does not mount")

    async def mount_hook(coordinator: Any, config: dict[str, Any]) -> Any:
        return coordinator.hooks.register("*", record, name="record")

    failure = InvalidRequestError("no", provider="scripted", status_code=400)
    provider = MockProvider([[("read", {}), ("ask", {}), ("broken", {})], "Done.", failure])
    broken = MockTool("broken", raises=RuntimeError("it is broken"))
    plan = {
        "session": {
            "orchestrator": "loop-streaming",
            "context": "context-simple",
            "raw": True,
            "metadata": {"a": 1},
        },
        "providers": [provider],
        "tools": [
            MockTool("read", return_value="text"),
            MockTool("ask", return_value="text"),
            broken,
            failing,
        ],
        "hooks": [mount_hook],
    }
    async with AmplifierSession(plan) as session:
        assert await session.execute("go") == "Done."
        with pytest.raises(InvalidRequestError):
            await session.execute("again")
        session.coordinator.cancellation.request_graceful(grace=1, reason="enough")
    assert [
        problem
        for event, data in seen.items()
        if event in CATALOGUE
        for problem in misfits(event, data)
    ] == []
    expected = "session:start session:config session:end tool:pre tool:post tool:error provider:error approval:denied"
    assert {
        *expected.split(),
        "hook:failed",
        "module:load_failed",
        "cancel:requested",
        "execution:end",
    } <= set(seen)


def test_a_planted_misfit_is_seen() -> None:
    assert misfits("tool:pre", {"tool_name": 5, "tool_input": {}}) == ["tool:pre: tool_name=5"]
    assert misfits("cancel:requested", {"state": "soon", "grace": None}) == [
        "cancel:requested: state='soon'"
    ]
    assert misfits("content_block:delta", {"block_index": True}) == [
        "content_block:delta: block_index=True"
    ]
