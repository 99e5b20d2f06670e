"""The coordinator and the token, used by themselves."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from unittest.mock import AsyncMock, MagicMock, patch

import pytest
from amplifier_core import (
    CancellationToken,
    HookRegistry,
    HookResult,
    ModuleCoordinator,
)
from amplifier_core.testing import MockContextManager


def run(awaitable):
    """Run a coroutine, or what a function gives inside the loop: native methods must be called there."""

    async def main():
        return await (awaitable() if callable(awaitable) else awaitable)

    return asyncio.run(main())


def session(**limits):
    plan = {"session": {"orchestrator": "o", "context": "c", **limits}}
    return SimpleNamespace(session_id="s", parent_id="p", config=plan)


def make(**limits):
    return ModuleCoordinator(session(**limits))


# ── construction ─────────────────────────────────────────────────────────────────────────────────


def test_attributes_of_new_coordinator():
    given = session()
    coordinator = ModuleCoordinator(given)
    assert (coordinator.session_id, coordinator.parent_id) == ("s", "p")
    assert coordinator.session is given
    assert coordinator.config is given.config
    assert set(coordinator.mount_points) == {
        *("orchestrator", "providers", "tools", "context", "hooks", "module-source-resolver")
    }
    assert coordinator.mount_points["tools"] == coordinator.mount_points["providers"] == {}
    assert coordinator.mount_points["hooks"] is coordinator.hooks is coordinator.get("hooks")
    assert isinstance(coordinator.hooks, HookRegistry)
    assert isinstance(coordinator.cancellation, CancellationToken)
    assert (coordinator.loader, coordinator.approval_system, coordinator.display_system) == (
        None,
        None,
        None,
    )
    assert (coordinator.session_state, coordinator.channels) == ({}, {})
    assert (coordinator.injection_budget_per_turn, coordinator.injection_size_limit) == (None, None)
    assert coordinator._current_turn_injections == 0


def test_construction_without_session():
    coordinator = ModuleCoordinator()
    assert (coordinator.session_id, coordinator.parent_id, coordinator.config) == ("", None, {})


def test_positional_and_keyword_systems():
    approval, display = object(), object()
    for coordinator in (
        ModuleCoordinator(session(), approval, display),
        ModuleCoordinator(session=session(), approval_system=approval, display_system=display),
    ):
        assert coordinator.approval_system is approval
        assert coordinator.display_system is display
        coordinator.approval_system = None
        coordinator.display_system = None
        coordinator.loader = "mine"
        assert (coordinator.approval_system, coordinator.loader) == (None, "mine")


def test_mock_as_session():
    fake = MagicMock()
    fake.session_id, fake.parent_id, fake.config = "mock", None, {"session": {}}
    assert ModuleCoordinator(session=fake).session_id == "mock"


@pytest.mark.parametrize(
    "name", ["session_id", "parent_id", "config", "hooks", "cancellation", "session", "channels"]
)
def test_read_only_attributes(name):
    with pytest.raises(AttributeError):
        setattr(make(), name, None)


def test_free_attributes():
    coordinator = make()
    coordinator.todo_state = [1]
    coordinator._tool_dispatch_contexts = {}
    assert coordinator.todo_state == [1]
    assert not hasattr(coordinator, "session_dir")
    coordinator.session_state = {"a": 1}
    assert coordinator.session_state == {"a": 1}


def test_method_can_be_replaced_and_restored():
    async def main():
        coordinator = make()
        coordinator.collect_contributions = AsyncMock(return_value=["mine"])
        found = await coordinator.collect_contributions("channel")
        coordinator.collect_contributions.assert_awaited_once_with("channel")
        del coordinator.collect_contributions
        with patch.object(coordinator, "get_capability", return_value="patched"):
            patched = coordinator.get_capability("any")
        return (
            found,
            patched,
            await coordinator.collect_contributions("channel"),
            coordinator.get_capability("any"),
        )

    assert run(main()) == (["mine"], "patched", [], None)


def test_payloads_keep_emitter_ids():
    async def main():
        coordinator, seen = make(), []
        coordinator.hooks.register("e", lambda event, data: seen.append(data), name="h")
        await coordinator.hooks.emit("e", {"session_id": "theirs"})
        await coordinator.hooks.emit("e", {})
        return [data.get("session_id") for data in seen]

    assert run(main()) == ["theirs", None]


def test_subclass_may_have_own_constructor():
    class Own(ModuleCoordinator):
        def __new__(cls, label):
            return super().__new__(cls, session())

        def __init__(self, label):
            self.label = label

    own = Own("x")
    assert (own.label, own.session_id) == ("x", "s")
    run(lambda: own.mount("tools", object(), name="t"))
    assert list(own.get("tools")) == ["t"]


def test_specs_for_mocks_have_its_attributes():
    mock = MagicMock(spec=ModuleCoordinator)
    for name in (
        *(
            "hooks",
            "cancellation",
            "config",
            "session",
            "session_id",
            "parent_id",
            "mount_points",
            "session_state",
            "loader",
        ),
        *(
            "approval_system",
            "display_system",
            "get",
            "mount",
            "unmount",
            "get_capability",
            "register_capability",
        ),
        *(
            "register_contributor",
            "collect_contributions",
            "process_hook_result",
            "register_cleanup",
            "cleanup",
            "to_dict",
        ),
    ):
        assert hasattr(mock, name), name
    with pytest.raises(AttributeError):
        mock.nonsense  # noqa: B018
    assert isinstance(mock, ModuleCoordinator)


# ── mounting ─────────────────────────────────────────────────────────────────────────────────────


def test_mounting_and_getting():
    coordinator, tool, loop = make(), SimpleNamespace(name="own"), object()

    async def main():
        await coordinator.mount("tools", tool)
        await coordinator.mount("tools", tool, name="second")
        await coordinator.mount("tools", tool, "third")
        await coordinator.mount("orchestrator", loop, name="ignored")

    run(main())
    assert list(coordinator.get("tools")) == ["own", "second", "third"]
    assert coordinator.get("tools") is coordinator.mount_points["tools"]
    assert coordinator.get("tools", "own") is tool
    assert coordinator.get("tools", "none") is None
    assert coordinator.get("orchestrator") is loop
    assert coordinator.get("context") is None
    run(lambda: coordinator.unmount("tools", "own"))
    run(lambda: coordinator.unmount("tools", name="never there"))
    run(lambda: coordinator.unmount("orchestrator"))
    assert list(coordinator.get("tools")) == ["second", "third"]
    assert coordinator.get("orchestrator") is None


def test_mounting_happens_when_it_is_called():
    async def main():
        coordinator = make()
        pending = coordinator.mount("tools", object(), name="now")
        found = list(coordinator.get("tools"))
        await pending
        return found

    assert run(main()) == ["now"]


# ── capabilities, contributions, cleanups ────────────────────────────────────────────────────────


def test_cleanup_can_be_patched_on_class():
    async def main():
        coordinator = make()
        with (
            patch.object(
                type(coordinator), "cleanup", AsyncMock(side_effect=ValueError("patched"))
            ),
            pytest.raises(ValueError, match="patched"),
        ):
            await coordinator.cleanup()

    run(main())


def test_invalid_cleanup_is_ignored():
    async def main():
        coordinator, ran = make(), []
        for cleanup in (None, "text", lambda: ran.append(1)):
            coordinator.register_cleanup(cleanup)
        await coordinator.cleanup()
        return ran

    assert run(main()) == [1]


# ── results of hooks ─────────────────────────────────────────────────────────────────────────────


class Context:
    def __init__(self):
        self.messages = []

    async def add_message(self, message):
        self.messages.append(message)


class SyncContext(Context):
    def add_message(self, message):
        self.messages.append(message)


@pytest.mark.parametrize("kind", [Context, SyncContext, MockContextManager])
def test_durable_injections_are_stored(kind):
    async def main():
        coordinator, context = make(), kind()
        await coordinator.mount("context", context)
        given = HookResult(
            action="inject_context",
            context_injection="note\x07",
            context_injection_role="user",
            reason="r",
        )
        result = await coordinator.process_hook_result(given, "tool:post", "linter")
        return context.messages, result, coordinator._current_turn_injections

    messages, result, charged = run(main())
    assert [(m["role"], m["content"]) for m in messages] == [("user", "note")]
    details = messages[0]["metadata"]
    assert (details["source"], details["hook_name"], details["event"]) == (
        "hook",
        "linter",
        "tool:post",
    )
    assert (details["ephemeral"], details["persisted"], details["requested_role"]) == (
        False,
        True,
        "user",
    )
    assert "timestamp" in details
    assert (result.action, result.context_injection, result.context_injections, result.reason) == (
        "continue",
        None,
        [],
        "r",
    )
    assert charged == 1


@pytest.mark.parametrize(
    "thing", [None, {"action": "continue"}, SimpleNamespace(action="continue")]
)
def test_results_must_be_results(thing):
    async def main():
        await make().process_hook_result(thing, "e")

    with pytest.raises(AttributeError):
        run(main())


def test_answer_carries_no_payload():
    async def main():
        system = MagicMock(request_approval=AsyncMock(return_value="Allow"))
        given = HookResult(action="ask_user", approval_prompt="Sure?", data={"a": 1})
        return await ModuleCoordinator(session(), system).process_hook_result(
            given, "tool:pre", "gate"
        )

    result = run(main())
    assert (result.action, result.data) == ("continue", None)
