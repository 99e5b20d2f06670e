"""The loops name the call that is running: to tools, providers, hooks, threads and child sessions."""

from __future__ import annotations

from typing import Any

import anyio.to_thread

from amplifier import AmplifierSession, HookResult, ModuleLoader, ToolResult
from amplifier.contracts import CurrentCall, call_scope, current_call
from amplifier.testing import MockProvider


class Noting:
    """A tool that notes the call that runs it, in its own task and in a thread."""

    description = "Notes the call."

    def __init__(self, name: str, seen: dict[str, Any]) -> None:
        self.name = name
        self._seen = seen

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002
        self._seen.setdefault("tools", []).append(current_call())
        self._seen.setdefault("threads", []).append(await anyio.to_thread.run_sync(current_call))
        return ToolResult(output="noted")


class NotingProvider:
    """A provider that notes the call that asks it; without a stream, so that every loop calls `complete`."""

    def __init__(self, script: list[Any], seen: dict[str, Any]) -> None:
        self._scripted = MockProvider(script)
        self._seen = seen
        self.name = self._scripted.name
        self.get_info, self.list_models = self._scripted.get_info, self._scripted.list_models
        self.parse_tool_calls = self._scripted.parse_tool_calls

    async def complete(self, request: Any, **kwargs: Any) -> Any:
        self._seen.setdefault("models", []).append(current_call())
        return await self._scripted.complete(request, **kwargs)


def open_session(
    loop: str, script: list[Any], seen: dict[str, Any], **modules: Any
) -> AmplifierSession:
    async def mount_hook(coordinator: Any, config: dict[str, Any]) -> Any:
        async def note(event: str, data: dict[str, Any]) -> HookResult:
            seen.setdefault("events", []).append((event, dict(data), current_call()))
            return HookResult()

        return coordinator.hooks.register("*", note, name="note")

    plan = {
        "session": {"orchestrator": loop, "context": "context-simple"},
        "providers": [NotingProvider(script, seen)],
        "tools": [
            Noting("note", seen),
            *(module for module in modules if module.startswith("tool-")),
        ],
        "hooks": ["hooks-note"],
    }
    return AmplifierSession(
        plan, ModuleLoader(modules={"hooks-note": mount_hook, **modules}), session_id="s"
    )


def shown(call: CurrentCall | None) -> tuple[Any, ...] | None:
    if call is None:
        return None
    return (call.kind, call.session_id, call.turn_number, call.iteration, call.tool_name)


async def test_running_call_is_current_call() -> None:
    for loop in ("loop-streaming", "loop-events"):
        seen: dict[str, Any] = {}
        script: list[Any] = [[("note", {}), ("note", {})], "One.", [("note", {})], "Two."]
        async with open_session(loop, script, seen) as session:
            await session.execute("first")
            await session.execute("second")
        assert [shown(call) for call in seen["models"]] == [
            ("model", "s", turn, iteration, None) for turn in (1, 2) for iteration in (1, 2)
        ]
        assert len({call.call_id for call in seen["models"]}) == 4
        tools = [
            ("tool", "s", 1, 1, "note"),
            ("tool", "s", 1, 1, "note"),
            ("tool", "s", 2, 1, "note"),
        ]
        assert [shown(call) for call in seen["tools"]] == tools
        assert [shown(call) for call in seen["threads"]] == tools
        assert current_call() is None


async def test_tool_hooks_see_their_call_only() -> None:
    seen: dict[str, Any] = {}
    async with open_session("loop-basic", [[("note", {})], "Done."], seen) as session:
        await session.execute("go")
    for event, data, call in seen["events"]:
        if event.startswith("tool:"):
            assert call is not None
            assert call.call_id == data["tool_call_id"]
        elif event.startswith("content_block:"):
            assert call.kind == "model"
        else:
            assert call is None, event
        assert "parent_call_id" not in data


async def test_child_session_events_carry_parent_call() -> None:
    seen: dict[str, Any] = {}

    class Delegate:
        name = "delegate"
        description = "Runs a child."

        def __init__(self, coordinator: Any) -> None:
            self._coordinator = coordinator

        async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002
            mine = current_call()
            assert mine is not None
            seen["parent"] = mine
            child = self._coordinator.session.fork(session_id="child")
            child.coordinator.hooks.register(
                "*", lambda event, data: seen["child"].append((event, data))
            )
            seen["child"] = []
            async with child:
                assert current_call() is mine
                return ToolResult(output=await child.execute("work"))

    async def mount_delegate(coordinator: Any, config: dict[str, Any]) -> Any:
        return Delegate(coordinator)

    script: list[Any] = [[("delegate", {})], [("note", {})], "From the child.", "Done."]
    async with open_session(
        "loop-basic", script, seen, **{"tool-delegate": mount_delegate}
    ) as session:
        assert await session.execute("go") == "Done."
    parent = seen["parent"]
    assert parent.session_id == "s"
    (inner,) = seen["tools"]
    assert (inner.session_id, inner.tool_name, inner.parent) == ("child", "note", parent)
    assert {event for event, _ in seen["child"]} >= {
        "session:fork",
        "tool:pre",
        "execution:end",
        "session:end",
    }
    assert {data.get("parent_call_id") for _, data in seen["child"]} == {parent.call_id}
    own = [data for _, data, _ in seen["events"] if data["session_id"] == "s"]
    assert all("parent_call_id" not in data for data in own)


async def test_child_cannot_forge_parent_call() -> None:
    seen: list[dict[str, Any]] = []
    call = CurrentCall(
        kind="tool", session_id="s", turn_number=1, iteration=1, call_id="real", tool_name="t"
    )
    async with open_session("loop-basic", ["Hi."], {}) as parent:
        child = parent.fork()
        child.coordinator.hooks.register("x:y", lambda event, data: seen.append(data))
        with call_scope(call):
            await child.coordinator.hooks.emit("x:y", {"parent_call_id": "forged"})
            await child.coordinator.hooks.emit_and_collect("x:y", {"parent_call_id": "forged"})
    assert [data["parent_call_id"] for data in seen] == ["real", "real"]
