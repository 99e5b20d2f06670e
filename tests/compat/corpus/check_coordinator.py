"""The coordinator and the token, used by themselves."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from unittest.mock import AsyncMock, MagicMock

import pytest
from amplifier_core import (
    CancellationState,
    CancellationToken,
    ContextInjection,
    HookRegistry,
    HookResult,
    ModuleCoordinator,
)
from amplifier_core.approval import ApprovalTimeoutError
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


def test_what_a_new_one_has():
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
    assert (coordinator.loader, coordinator.approval_system, coordinator.display_system) == (None, None, None)
    assert (coordinator.session_state, coordinator.channels) == ({}, {})
    assert (coordinator.injection_budget_per_turn, coordinator.injection_size_limit) == (None, None)
    assert coordinator._current_turn_injections == 0


def test_without_a_session():
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


def test_a_mock_as_session():
    fake = MagicMock()
    fake.session_id, fake.parent_id, fake.config = "mock", None, {"session": {}}
    assert ModuleCoordinator(session=fake).session_id == "mock"


@pytest.mark.parametrize("name", ["session_id", "parent_id", "config", "hooks", "cancellation", "session", "channels"])
def test_what_cannot_be_assigned(name):
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


def test_a_subclass_may_have_its_own_constructor():
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
        *("approval_system", "display_system", "get", "mount", "unmount", "get_capability", "register_capability"),
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


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.mount("nowhere", object()), "Unknown mount point: nowhere"),
        (lambda c: c.mount("hooks", object()), "Hooks should be registered directly"),
        (lambda c: c.mount("tools", object()), "Name required for tools"),
        (lambda c: c.unmount("tools"), "Name required to unmount from tools"),
        (lambda c: c.unmount("nowhere"), "Unknown mount point"),
    ],
)
def test_what_cannot_be_mounted(call, words):
    async def main():
        await call(make())

    with pytest.raises(ValueError, match=words):
        run(main())


@pytest.mark.parametrize("point", ["nowhere", "agents", "session"])
def test_unknown_points_cannot_be_asked(point):
    with pytest.raises(ValueError, match=f"Unknown mount point: {point}"):
        make().get(point)


def test_a_name_must_be_text():
    async def main():
        await make().mount("tools", SimpleNamespace(name=5))

    with pytest.raises(TypeError):
        run(main())


def test_mount_points_can_be_written_directly():
    coordinator = make()
    coordinator.mount_points["tools"]["x"] = 1
    coordinator.mount_points["orchestrator"] = "loop"
    coordinator.mount_points["providers"] = {"p": 1}
    assert (coordinator.get("tools", "x"), coordinator.get("orchestrator"), coordinator.get("providers")) == (
        1,
        "loop",
        {"p": 1},
    )
    del coordinator.get("tools")["x"]
    assert coordinator.get("tools") == {}


# ── capabilities, contributions, cleanups ────────────────────────────────────────────────────────


def test_capabilities():
    coordinator = make()
    assert coordinator.get_capability("x") is None
    coordinator.register_capability("x", 1)
    coordinator.register_capability("x", None)
    assert coordinator.get_capability("x") is None
    coordinator.register_capability("f", len)
    assert coordinator.get_capability("f")("ab") == 2
    with pytest.raises(TypeError):
        coordinator.get_capability("x", "default")


def test_contributions():
    coordinator = make()

    async def later():
        return {"b": 1}

    def bad():
        raise RuntimeError("no")

    for name, callback in (("a", lambda: ["a"]), ("n", lambda: None), ("bad", bad), ("l", later), ("a", lambda: 0)):
        coordinator.register_contributor("ch", name, callback)
    assert run(lambda: coordinator.collect_contributions("ch")) == [["a"], {"b": 1}, 0]
    assert run(lambda: coordinator.collect_contributions("none")) == []
    assert [entry["name"] for entry in coordinator.channels["ch"]] == ["a", "n", "bad", "l", "a"]


class Odd(BaseException):
    pass


def test_cleanup_can_be_patched_on_the_class():
    from unittest.mock import patch

    async def main():
        coordinator = make()
        with (
            patch.object(type(coordinator), "cleanup", AsyncMock(side_effect=ValueError("patched"))),
            pytest.raises(ValueError, match="patched"),
        ):
            await coordinator.cleanup()

    run(main())


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
            action="inject_context", context_injection="note\x07", context_injection_role="user", reason="r"
        )
        result = await coordinator.process_hook_result(given, "tool:post", "linter")
        return context.messages, result, coordinator._current_turn_injections

    messages, result, charged = run(main())
    assert [(m["role"], m["content"]) for m in messages] == [("user", "note")]
    details = messages[0]["metadata"]
    assert (details["source"], details["hook_name"], details["event"]) == ("hook", "linter", "tool:post")
    assert (details["ephemeral"], details["persisted"], details["requested_role"]) == (False, True, "user")
    assert "timestamp" in details
    assert (result.action, result.context_injection, result.context_injections, result.reason) == (
        "continue",
        None,
        [],
        "r",
    )
    assert charged == 1


def test_ephemeral_injections_come_back():
    async def main():
        coordinator, context = make(), Context()
        await coordinator.mount("context", context)
        items = [
            ContextInjection(content="stay", role="assistant", hook_name="h", event="e"),
            ContextInjection(content="go", role="user", ephemeral=True, append_to_last_tool_result=True),
        ]
        given = HookResult(action="inject_context", context_injections=items)
        return await coordinator.process_hook_result(given, "e"), context.messages

    result, messages = run(main())
    assert [m["content"] for m in messages] == ["stay"]
    assert messages[0]["metadata"]["hook_name"] == "h"
    assert (result.action, result.context_injection, result.context_injection_role) == ("inject_context", "go", "user")
    assert (result.ephemeral, result.append_to_last_tool_result, len(result.context_injections)) == (True, True, 1)


def test_limits():
    async def main():
        coordinator, context = make(injection_size_limit=10, injection_budget_per_turn=1), Context()
        await coordinator.mount("context", context)
        big = [ContextInjection(content="ok"), ContextInjection(content="x" * 11, ephemeral=True)]
        with pytest.raises(ValueError, match="exceeds 10 characters"):
            await coordinator.process_hook_result(HookResult(action="inject_context", context_injections=big), "e")
        assert (context.messages, coordinator._current_turn_injections) == ([], 0)
        await coordinator.process_hook_result(HookResult(action="inject_context", context_injection="x" * 8), "e", "h")
        assert coordinator._current_turn_injections == 2
        coordinator._current_turn_injections = 9
        coordinator.reset_turn()
        return coordinator._current_turn_injections, len(context.messages), coordinator.injection_size_limit

    assert run(main()) == (0, 1, 10)


@pytest.mark.parametrize(
    ("answer", "action", "reason"),
    [
        ("Allow", "continue", None),
        ("allow once", "continue", None),
        ("ALLOW ALWAYS", "continue", None),
        ("Deny", "deny", "User denied: Sure?"),
        ("perhaps", "deny", "User denied: Sure?"),
        (" allow", "deny", "User denied: Sure?"),
        (ApprovalTimeoutError(), "deny", "Approval timeout - denied by default: Sure?"),
    ],
)
def test_questions(answer, action, reason):
    async def main():
        system = MagicMock()
        system.request_approval = AsyncMock(side_effect=[answer])
        coordinator = ModuleCoordinator(session(), system)
        given = HookResult(
            action="ask_user", approval_prompt="Sure?", approval_options=["Allow", "Deny"], approval_timeout=5.0
        )
        result = await coordinator.process_hook_result(given, "tool:pre", "gate")
        system.request_approval.assert_awaited_once_with("Sure?", ["Allow", "Deny"], 5.0, "deny")
        return result.action, result.reason

    assert run(main()) == (action, reason)


def test_questions_with_defaults():
    async def main():
        system = MagicMock()
        system.request_approval = AsyncMock(side_effect=["Allow", ApprovalTimeoutError("late")])
        coordinator = ModuleCoordinator(session(), system)
        await coordinator.process_hook_result(HookResult(action="ask_user"), "e")
        system.request_approval.assert_awaited_with("Allow this operation?", ["Allow", "Deny"], 300.0, "deny")
        late = HookResult(action="ask_user", approval_default="allow")
        return (await coordinator.process_hook_result(late, "e")).action

    assert run(main()) == "continue"
    denied = run(lambda: make().process_hook_result(HookResult(action="ask_user", approval_prompt="x"), "e"))
    assert (denied.action, denied.reason) == ("deny", "No approval system available")


def test_messages_for_the_user():
    async def main():
        display = MagicMock()
        coordinator = ModuleCoordinator(session(), None, display)
        given = HookResult(user_message="look", user_message_level="warning", user_message_source="me")
        await coordinator.process_hook_result(given, "e", "hook")
        await coordinator.process_hook_result(HookResult(user_message="again"), "e", "hook")
        display.show_message.side_effect = ValueError("broken")
        await coordinator.process_hook_result(HookResult(user_message="third"), "e", "hook")
        return display.show_message.call_args_list[:2]

    calls = run(main())
    assert calls[0].args == ("look", "warning", "hook:me")
    assert calls[1].args == ("again", "info", "hook:hook")


@pytest.mark.parametrize("thing", [None, {"action": "continue"}, SimpleNamespace(action="continue")])
def test_results_must_be_results(thing):
    async def main():
        await make().process_hook_result(thing, "e")

    with pytest.raises(AttributeError):
        run(main())


# ── stopping ─────────────────────────────────────────────────────────────────────────────────────


def test_requests_to_stop():
    async def main():
        coordinator = make()
        await coordinator.request_cancel()
        first = coordinator.cancellation.state
        await coordinator.request_cancel(immediate=True)
        coordinator.reset_turn()
        return first, coordinator.cancellation.state

    assert run(main()) == ("graceful", "immediate")


def test_the_states_of_a_token():
    token = CancellationToken()
    assert (token.state, token.is_cancelled, token.is_graceful, token.is_immediate) == ("none", False, False, False)
    assert str(token.state) == "none"
    assert (token.request_graceful(), token.request_graceful()) == (True, False)
    assert (token.state, token.is_cancelled, token.is_graceful) == ("graceful", True, True)
    assert (token.request_immediate(), token.request_immediate(), token.request_graceful()) == (True, False, False)
    assert (token.is_graceful, token.is_immediate) == (False, True)
    token.reset()
    assert token.state == "none"
    assert token.request_cancellation() is None
    assert token.state == "graceful"
    assert type(token.state) is str
    assert CancellationState("graceful") is CancellationState.GRACEFUL
    assert [state.value for state in CancellationState] == ["none", "graceful", "immediate"]


def test_running_tools():
    token = CancellationToken()
    token.register_tool_start("1", "bash")
    token.register_tool_start("2", "bash")
    token.register_tool_complete("unknown")
    assert token.running_tools == {"1", "2"}
    assert token.running_tool_names == ["bash", "bash"]
    token.running_tools.clear()
    assert len(token.running_tools) == 2
    token.register_tool_complete("1")
    token.reset()
    assert (token.running_tools, token.running_tool_names) == (set(), [])


def test_children_follow():
    parent, child, late = CancellationToken(), CancellationToken(), CancellationToken()
    parent.register_child(child)
    parent.register_child(parent)
    parent.request_graceful()
    assert child.is_graceful
    parent.register_child(late)
    assert late.is_graceful
    parent.unregister_child(child)
    parent.request_immediate()
    assert (child.is_immediate, late.is_immediate) == (False, True)
    late.reset()
    assert parent.is_immediate


def test_callbacks_run_when_triggered():
    token, ran = CancellationToken(), []

    async def later():
        ran.append("async")

    token.on_cancel(lambda: ran.append("sync"))
    token.on_cancel(AsyncMock(side_effect=asyncio.CancelledError()))
    token.on_cancel(MagicMock(side_effect=ValueError("x")))
    token.on_cancel(later)
    token.request_immediate()
    assert ran == []
    run(token.trigger_callbacks)
    assert ran == ["sync", "async"]


def test_summary():
    coordinator = make()
    run(lambda: coordinator.mount("tools", object(), name="t"))
    coordinator.register_capability("c", 1)
    shown = coordinator.to_dict()
    assert (shown["tools"], shown["providers"], shown["capabilities"]) == (["t"], [], ["c"])
    assert (shown["has_orchestrator"], shown["has_context"], shown["has_approval_provider"]) == (False, False, False)
    coordinator.approval_system = MagicMock()
    coordinator.display_system = MagicMock()
    assert (coordinator.to_dict()["has_approval_provider"], coordinator.to_dict()["has_display_service"]) == (
        True,
        True,
    )
    coordinator.approval_system = None
    assert coordinator.to_dict()["has_approval_provider"] is False


def test_failing_contributors_are_logged_by_name(caplog):
    coordinator = make()
    coordinator.register_contributor("ch", "culprit", MagicMock(side_effect=ValueError("why")))
    with caplog.at_level(logging.WARNING):
        run(lambda: coordinator.collect_contributions("ch"))
    assert "culprit" in caplog.text
