"""Coordinator API, second part: the methods, each with its signature, its snippets and the prose around them."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import pytest

from amplifier import HookResult, ModuleCoordinator
from amplifier.testing import (
    MockContextManager,
    MockProvider,
    MockTool,
    TestCoordinator,
)
from tests.seeds.seed_sessions import seed_session

logger = logging.getLogger("seeds")

SIGNATURES = {
    "mount": [("mount_point", ...), ("module", ...), ("name", None)],
    "unmount": [("mount_point", ...), ("name", None)],
    "get": [("mount_point", ...), ("name", None)],
    "register_cleanup": [("cleanup_fn", ...)],
    "register_capability": [("name", ...), ("value", ...)],
    "get_capability": [("name", ...)],
    "register_contributor": [("channel", ...), ("name", ...), ("callback", ...)],
    "collect_contributions": [("channel", ...)],
    "process_hook_result": [("result", ...), ("event", ...), ("hook_name", "unknown")],
    "cleanup": [],
    "reset_turn": [],
}
"""Every method of the document's table with its parameters and their defaults; the dots mean none."""


class MyTool:
    """The tool of the snippets: something to mount and something to shut down."""

    def __init__(self, setting: str = "default") -> None:
        self.setting = setting
        self.is_open = True

    @property
    def name(self) -> str:
        return "my-tool"

    @property
    def description(self) -> str:
        return "Analyzes."

    async def execute(self, input: dict[str, Any]) -> Any:  # noqa: A002 - the contract's name
        return await MockTool().execute(input)

    def analyze(self) -> str:
        return "analyzed"

    async def shutdown(self) -> None:
        self.is_open = False


@pytest.mark.parametrize(("name", "parameters"), SIGNATURES.items())
def test_methods_have_documented_signatures(name: str, parameters: list[tuple[str, Any]]) -> None:
    found = list(inspect.signature(getattr(ModuleCoordinator, name)).parameters.values())[1:]
    assert [(p.name, ... if p.default is p.empty else p.default) for p in found] == parameters


async def test_typical_method_usage_flow() -> None:
    """The cleanup is both registered and returned; it runs once (the document does both in three places)."""
    mounted: dict[str, Any] = {"cleaned": 0}

    async def mount(coordinator, config):
        tool = MyTool()
        await coordinator.mount("tools", tool, name="my-tool")

        coordinator.register_capability("my-tool.analyze", tool.analyze)

        context = coordinator.get("context")

        async def cleanup():
            await tool.shutdown()
            mounted["cleaned"] += 1

        coordinator.register_cleanup(cleanup)
        mounted.update(tool=tool, context=context)
        return cleanup

    async with seed_session(tools={"tool-mine": mount}) as session:
        assert session.coordinator.get("tools", "my-tool") is mounted["tool"]
        assert session.coordinator.get_capability("my-tool.analyze")() == "analyzed"
        assert mounted["context"] is session.coordinator.get("context")
        assert mounted["tool"].is_open
    assert not mounted["tool"].is_open
    assert mounted["cleaned"] == 1


# ── unmount ──


async def test_unmounting_runs_no_cleanup(coordinator: TestCoordinator) -> None:
    ran: list[str] = []
    await coordinator.mount("tools", MyTool())
    coordinator.register_cleanup(lambda: ran.append("cleanup"))
    await coordinator.unmount("tools", "my-tool")
    assert ran == []
    await coordinator.cleanup()
    assert ran == ["cleanup"]


# ── reset_turn ──


async def test_reset_turn_begins_new_budget(caplog: pytest.LogCaptureFixture) -> None:
    """The document's ``provider.complete(messages)`` passes plain messages; the double takes them, a provider takes a
    ChatRequest.
    """
    coordinator = TestCoordinator(
        config={
            "session": {
                "orchestrator": "loop-x",
                "context": "context-x",
                "injection_budget_per_turn": 3,
            }
        }
    )
    context, provider = MockContextManager(), MockProvider()
    await coordinator.mount("context", context)
    injection_result = HookResult(action="inject_context", context_injection="eight ch")

    async def execute_turn(prompt):
        coordinator.reset_turn()

        messages = await context.get_messages()
        response = await provider.complete(messages)  # type: ignore[arg-type]  # as the document has it

        await coordinator.process_hook_result(injection_result, "tool:post", "linter")
        return response

    with caplog.at_level(logging.WARNING, logger="amplifier"):
        for _ in range(3):
            await execute_turn("again")
            assert coordinator._current_turn_injections == 2
        assert caplog.messages == []
        await coordinator.process_hook_result(injection_result, "tool:post", "linter")
    assert coordinator._current_turn_injections == 4
    assert "injection_budget_per_turn" in caplog.text
