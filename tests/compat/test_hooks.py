"""The published hook registry: what handlers see, how answers are merged, what stays the kernel's own."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier import HookRegistry as NativeRegistry
from amplifier import HookResult
from amplifier.compat._sessions.hooks import HookRegistry, json_payload

pytestmark = pytest.mark.usefixtures("alias")


async def emit(payload: Any, *handlers: Any) -> tuple[HookResult, HookRegistry]:
    registry = HookRegistry()
    for number, handler in enumerate(handlers):
        registry.register("e", handler, name=f"h{number}")
    return await registry.emit("e", payload), registry


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


async def test_a_wildcard_handler_is_called_for_every_event():
    heard: list[str] = []
    registry = HookRegistry()
    registry.register("*", lambda event, data: heard.append(event))

    await registry.emit("one", {})
    await registry.emit("two", {})

    assert heard == ["one", "two"]


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
