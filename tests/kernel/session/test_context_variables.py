"""Context variables: one context for a turn and all its handlers, a copy of the caller's, the same on both backends."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from tests._support.small_agent import Memory, agent

current: ContextVar[str] = ContextVar("current", default="nothing")

pytestmark = pytest.mark.virtual_time


async def test_turn_sees_callers_variables_only():
    """The caller sees nothing that the turn sets."""
    seen: list[str] = []

    async def body(turn: Any) -> str:
        seen.append(current.get())
        current.set("turn")
        await anyio.sleep(1)
        seen.append(current.get())
        return "done"

    async with agent(body) as session:
        current.set("caller")
        await session.execute("go")
        assert current.get() == "caller"
        await session.execute("again")
    assert seen == ["caller", "turn", "caller", "turn"]


@pytest.mark.parametrize("terminal", ["tool:error", "execution:end", "cancel:completed"])
async def test_handler_token_is_reset_by_terminal_handler(terminal):
    """As OpenTelemetry does: attached at the beginning of a call, detached at its end, whatever the end is."""
    tokens: list[Any] = []
    after: list[str] = []

    async def attach(event: str, data: dict[str, Any]) -> None:
        await anyio.sleep(0.1)
        tokens.append(current.set("span"))

    async def detach(event: str, data: dict[str, Any]) -> None:
        await anyio.sleep(0.1)
        current.reset(tokens.pop())

    async def body(turn: Any) -> str:
        await turn.hooks.emit("tool:pre", {})
        assert current.get() == "span"
        await turn.hooks.emit(terminal, {})
        after.append(current.get())
        return "done"

    async with agent(body) as session:
        session.coordinator.hooks.register("tool:pre", attach)
        session.coordinator.hooks.register(terminal, detach)
        await session.execute("go")
    assert tokens == []
    assert after == ["nothing"]


async def test_cancelled_turn_detaches_in_same_context():
    tokens: list[Any] = []
    left: list[str] = []

    def attach(event: str, data: dict[str, Any]) -> None:
        tokens.append(current.set("span"))

    def detach(event: str, data: dict[str, Any]) -> None:
        current.reset(tokens.pop())
        left.append(current.get())

    async def body(turn: Any) -> str:
        await turn.hooks.emit("execution:start", {})
        try:
            await anyio.sleep_forever()
        finally:
            await turn.hooks.emit("execution:end", {})
        return "never"

    async with agent(body) as session:
        session.coordinator.hooks.register("execution:start", attach)
        session.coordinator.hooks.register("execution:end", detach)
        with anyio.move_on_after(1):
            await session.execute("go")
    assert (tokens, left) == ([], ["nothing"])


@pytest.mark.parametrize("by_hand", [False, True], ids=["async with", "by hand"])
async def test_mount_and_cleanup_variables_stay_private(by_hand):
    seen: list[str] = []

    async def mount(coordinator: Any, config: Any) -> Any:
        seen.append(current.get())
        current.set("mount")

        async def cleanup() -> None:
            await anyio.sleep(0.1)
            seen.append(current.get())
            current.set("cleanup")

        return cleanup

    current.set("caller")
    session = agent(tools={"tool-a": mount})
    if by_hand:
        await session.initialize()
        assert current.get() == "caller"
        await session.cleanup()
    else:
        async with session:
            assert current.get() == "caller"
            await session.execute("go")
    assert current.get() == "caller"
    assert seen == ["caller", "caller"]


async def test_structured_module_keeps_opening_context():
    seen: list[str] = []

    async def mount_memory(coordinator: Any, config: Any) -> Any:
        current.set("earlier mount")
        await coordinator.mount("context", Memory())

    async def remember() -> None:
        seen.append(current.get())

    async def mount(coordinator: Any, config: Any) -> None:
        coordinator.start_soon(remember)

    current.set("caller")
    async with agent(context=mount_memory, tools={"tool-a": mount}) as session:
        await session.execute("go")
    assert seen == ["earlier mount"]
    assert current.get() == "caller"
