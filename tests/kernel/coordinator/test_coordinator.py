"""The coordinator: every property and method a module may use, with its errors, warnings and synonyms."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import anyio
import pytest

from amplifier import HookResult, ModuleCoordinator, SessionStateError
from amplifier.contracts import Coordinator
from amplifier.errors import DeadlineExceeded
from amplifier.models import ContextInjection
from amplifier.plan import Deadlines
from tests._support.small_agent import Echo, Memory

SESSION = SimpleNamespace(
    session_id="s-1", parent_id="p-1", config={"session": {"injection_size_limit": 7}}
)


@pytest.fixture
def coordinator():
    return ModuleCoordinator(SESSION)


# ── properties ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("config", [None, [], "plan", {"session": None}, {"session": []}])
def test_plan_without_limits_is_unlimited(config):
    coordinator = ModuleCoordinator(SimpleNamespace(session_id="s", parent_id=None, config=config))
    assert (coordinator.injection_size_limit, coordinator.injection_budget_per_turn) == (None, None)


def test_assignable_and_free_attributes(coordinator):
    for name in (
        "loader",
        "approval_system",
        "display_system",
        "session_state",
        "attribute_of_a_module",
    ):
        value = object()
        setattr(coordinator, name, value)
        assert getattr(coordinator, name) is value


def test_coordinator_and_views_fulfil_contract(coordinator):
    for host in (coordinator, coordinator.view_for("a")):
        assert isinstance(host, Coordinator)


def test_repr_and_to_dict_show_mounts(coordinator):
    coordinator.mount("tools", Echo())
    coordinator.mount("providers", 1, "mock")
    coordinator.mount("context", Memory())
    coordinator.register_capability("c", 1)
    coordinator.hooks.register("e", len)
    coordinator.display_system = object()
    assert (
        repr(coordinator)
        == "<ModuleCoordinator of session 's-1': 1 tools, 1 providers, 1 handlers>"
    )
    assert coordinator.to_dict() == {
        "tools": ["echo"],
        "providers": ["mock"],
        "has_orchestrator": False,
        "has_context": True,
        "capabilities": ["c"],
        "has_approval_provider": False,
        "has_display_service": True,
    }


# ── mounting ─────────────────────────────────────────────────────────────────────────────────────


async def test_mounting_takes_effect_without_await(coordinator):
    coordinator.mount("tools", "one", "x")
    assert coordinator.get("tools", "x") == "one"
    pending = coordinator.mount("tools", "two", "x")
    assert coordinator.get("tools", "x") == "two"
    assert await pending is None
    gone = coordinator.unmount("tools", "x")
    assert coordinator.get("tools", "x") is None
    assert await gone is None


# ── capabilities, contributions, cancellation ────────────────────────────────────────────────────


async def test_background_work_outside_block_is_refused(coordinator):
    with pytest.raises(SessionStateError, match="exists only inside `async with session:`"):
        coordinator.start_soon(anyio.sleep, 1)

    class Manager:
        async def __aenter__(self):
            raise AssertionError("must not be entered")

        async def __aexit__(self, *args):
            return None

    with pytest.raises(SessionStateError, match="open it with `async with` instead"):
        await coordinator.host(Manager())
    assert coordinator.cleanups.entries == []


# ── hook results ─────────────────────────────────────────────────────────────────────────────────


class Display:
    """Notes what it is shown."""

    def __init__(self):
        self.shown = []

    def show_message(self, text, level, source):
        self.shown.append((text, level, source))


async def process(coordinator, result):
    return await coordinator.process_hook_result(result, "tool:pre", "hooks-a")


async def test_plain_results_are_returned_unchanged(coordinator):
    denial = HookResult(action="deny", reason="no", user_message="Stopped")
    modified = HookResult(action="modify", data={})
    for result in (HookResult(), HookResult(action="continue", data={"k": 1}), modified, denial):
        assert await process(coordinator, result) is result


@pytest.mark.parametrize("action", ["continue", "modify", "inject_context", "deny"])
async def test_user_message_is_shown_under_every_action(coordinator, action):
    coordinator.display_system = display = Display()
    shown = HookResult(action=action, data={}, user_message="Hi", user_message_level="error")
    await process(coordinator, shown)
    shown.user_message_source = "linter"
    await process(coordinator, shown)
    assert display.shown == [("Hi", "error", "hook:hooks-a"), ("Hi", "error", "hook:linter")]


async def test_message_of_question_follows_approval(coordinator):
    class Allowing:
        async def request_approval(self, *question):
            return "allow"

    coordinator.display_system, coordinator.approval_system = display, _ = Display(), Allowing()
    coordinator.mount("context", memory := Memory())
    result = HookResult(action="ask_user", user_message="Hi", data={"k": 1})
    result.context_injections = [ContextInjection(content="kept")]
    result.modified = True
    left = await process(coordinator, result)
    assert (left.action, left.data) == ("modify", {"k": 1})
    assert len(display.shown) == len(memory.messages) == 1


async def test_message_without_display_is_logged(coordinator, caplog):
    caplog.set_level(logging.DEBUG)
    await process(coordinator, HookResult(user_message="Hi", suppress_output=True))
    assert "no display system for a message of hook:hooks-a: Hi" in caplog.text
    assert "asks to suppress output" in caplog.text


@pytest.mark.virtual_time
async def test_hanging_context_exceeds_named_deadline(coordinator):
    class Stuck:
        async def add_message(self, message):
            await anyio.sleep_forever()

    coordinator.mount("context", Stuck())
    coordinator.deadlines = Deadlines(hook=9)
    with pytest.raises(DeadlineExceeded, match="add_message") as caught:
        await process(coordinator, HookResult(action="inject_context", context_injection="x"))
    assert (caught.value.seconds, caught.value.operation) == (9, "context.add_message")
