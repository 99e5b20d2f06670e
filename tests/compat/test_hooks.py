"""The published hook registry: what handlers see, how answers are merged, what stays the kernel's own."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier import HookRegistry as NativeRegistry
from amplifier import HookResult, ToolResult, Usage
from amplifier.compat._sessions.hooks import HookRegistry, json_payload

pytestmark = pytest.mark.usefixtures("alias")


async def emit(payload: Any, *handlers: Any) -> tuple[HookResult, HookRegistry]:
    registry = HookRegistry()
    for number, handler in enumerate(handlers):
        registry.register("e", handler, name=f"h{number}")
    return await registry.emit("e", payload), registry


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ((1, 2), [1, 2]),
        (Decimal("1.50"), "1.50"),
        (Path("a") / "b", "a/b"),
        ({1: {2}}, {"1": "{2}"}),
        (2**70, float(2**70)),
        (ToolResult(output={"a": 1}), "{'a': 1}"),
        (Usage(input_tokens=1, output_tokens=2, total_tokens=3), "input_tokens=1 output_tokens=2 total_tokens=3"),
    ],
)
async def test_a_handler_sees_json(given: Any, seen: Any):
    saw: list[Any] = []

    result, _ = await emit({"value": given}, lambda event, data: saw.append(data))

    value = saw[0]["value"]
    assert value == seen or str(value).startswith(str(seen))
    assert result.data is not None
    assert result.data["value"] == value


@pytest.mark.parametrize("bad", [math.nan, math.inf, "\ud800"], ids=["nan", "inf", "half a character"])
async def test_a_payload_that_is_not_json_is_rejected(bad: Any):
    with pytest.raises(RuntimeError, match="Invalid JSON"):
        await emit({"value": [bad]})


def test_keys_come_in_alphabetical_order_at_every_depth():
    shaped = json_payload({"b": 1, "a": {"d": 1, "c": 2}})

    assert [list(shaped), list(shaped["a"])] == [["a", "b"], ["c", "d"]]


async def test_a_modification_comes_back_as_continue_and_natively_as_modify():
    async def change(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(action="modify", data={"n": data["n"] + 1})

    published, _ = await emit({"n": 1}, change, change)
    native = NativeRegistry()
    native.register("e", change)

    assert (published.action, published.data["n"]) == ("continue", 3)
    assert (await native.emit("e", {"n": 1})).action == "modify"


async def test_several_injections_are_joined_and_keep_where_they_came_from():
    def inject(text: str) -> Any:
        return lambda event, data: HookResult(action="inject_context", context_injection=text)

    result, _ = await emit({}, inject("A"), inject("B"))

    assert (result.action, result.context_injection) == ("inject_context", "A\n\nB")
    assert [(item.hook_name, item.event) for item in result.context_injections] == [("h0", "e"), ("h1", "e")]


@pytest.mark.parametrize("strange", ["text", 5, True, ["x"], object(), {"action": "bogus"}])
async def test_an_invalid_result_is_a_denial(strange: Any):
    result, _ = await emit({}, lambda event, data: strange)

    assert (result.action, result.reason) == ("deny", "Hook handler returned invalid response")


async def test_a_wildcard_handler_is_called_for_every_event():
    heard: list[str] = []
    registry = HookRegistry()
    registry.register("*", lambda event, data: heard.append(event))

    await registry.emit("one", {})
    await registry.emit("two", {})

    assert heard == ["one", "two"]


async def test_without_handlers_the_payload_comes_back_bare():
    registry = HookRegistry()
    registry.set_default_fields(session_id="s")

    result = await registry.emit("e", {"t": (1,)})

    assert result.data == {"t": [1]}


async def test_calls_of_a_model_carry_one_request_id():
    seen: dict[str, Any] = {}
    registry = HookRegistry()
    for event in ("llm:request", "provider:retry", "llm:response"):
        registry.register(event, lambda event, data: seen.update({event: data.get("request_id")}))

    for event in ("llm:request", "provider:retry", "llm:response"):
        await registry.emit(event, {})
    await registry.emit("provider:retry", {})

    assert seen["llm:request"] == seen["llm:response"]
    assert seen["provider:retry"] is None


async def test_a_cancelled_emitter_still_delivers_terminal_events():
    heard: list[str] = []

    async def slow(event: str, data: dict[str, Any]) -> None:
        await anyio.lowlevel.checkpoint()
        heard.append(event)

    registry = HookRegistry()
    registry.register("cancel:completed", slow)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await registry.emit("cancel:completed", {})

    assert heard == ["cancel:completed"]


async def test_a_real_cancellation_of_the_emitter_is_not_swallowed():
    registry = HookRegistry()
    after: list[str] = []

    async def wait(event: str, data: dict[str, Any]) -> None:
        await anyio.sleep_forever()

    registry.register("e", wait)
    registry.register("e", lambda event, data: after.append("ran"))
    with anyio.move_on_after(0.01) as scope:
        await registry.emit("e", {})

    assert scope.cancelled_caught
    assert after == []
