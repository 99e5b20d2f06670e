"""Approvals: every gate in order, the kernel's own deadline, failing closed, what "always" covers. Time is virtual."""

from __future__ import annotations

import anyio
import pytest

from amplifier import HookResult, ModuleCoordinator
from amplifier.errors import ModelError
from amplifier.models import ApprovalGate, from_dict
from amplifier.testing import MockApprovalSystem
from tests._support.small_agent import give_up_after, takes

pytestmark = pytest.mark.virtual_time


def made(*answers):
    coordinator = ModuleCoordinator(approval_system=MockApprovalSystem(answers))
    events = []

    def note(event, data):
        if event.startswith("approval:"):
            events.append((event, data))

    coordinator.hooks.register("*", note, name="listener of the test")
    return coordinator, coordinator.approval_system, events


def asked_nobody(prompt):
    return anyio.sleep_forever()


def question(**changes):
    return HookResult(action="ask_user", **{"approval_prompt": "Run rm?", **changes})


def gates(*names, **changes):
    return HookResult(
        action="ask_user",
        approval_gates=[
            ApprovalGate(hook_name=name, prompt=f"{name}?", **changes) for name in names
        ],
    )


async def ask(coordinator, result, event="tool:pre", hook="hooks-guard"):
    return await coordinator.process_hook_result(result, event, hook)


# ── one question ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("answer", ["Allow", "allow once", "ALLOW ALWAYS", "allow"])
async def test_allowing_answer_continues_with_payload(answer):
    coordinator, asker, events = made(answer)
    result = await ask(
        coordinator,
        question(
            approval_options=["Allow", "No"],
            approval_timeout=7,
            approval_default="allow",
            data={"k": 1},
        ),
    )
    assert (result.action, result.data) == ("continue", {"k": 1})
    asked = {"prompt": "Run rm?", "options": ["Allow", "No"], "timeout": 7, "default": "allow"}
    assert asker.requests == [asked]
    assert [event for event, _ in events] == ["approval:required", "approval:granted"]


async def test_prompt_and_options_have_defaults():
    """A long prompt is shortened in the reason."""
    coordinator, asker, _ = made("deny", "deny")
    await ask(coordinator, HookResult(action="ask_user"))
    assert (
        asker.requests[0].items()
        >= {"prompt": "Allow this operation?", "options": ["Allow", "Deny"]}.items()
    )
    result = await ask(coordinator, question(approval_prompt="x" * 300))
    assert result.reason == f"User denied: {'x' * 200}…[truncated]"
    assert asker.requests[1]["prompt"] == "x" * 300


async def test_events_carry_hook_event_question_and_outcome():
    coordinator, _, events = made("Deny")
    await ask(coordinator, question(approval_timeout=9, approval_default="allow"))
    about = {
        "hook_name": "hooks-guard",
        "event": "tool:pre",
        "prompt": "Run rm?",
        "options": ["Allow", "Deny"],
    }
    (_, required), (_, denied) = events
    assert required.items() >= {**about, "timeout": 9.0, "default": "allow"}.items()
    assert (
        denied.items() >= {**about, "reason": "User denied: Run rm?", "remembered": False}.items()
    )


async def test_sync_approval_system_is_called_too():
    class Sync:
        def request_approval(self, prompt, options, timeout, default):
            return "allow"

    assert (await ask(ModuleCoordinator(approval_system=Sync()), question())).action == "continue"


# ── time ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["scope", "native"])
async def test_cancelled_turn_cancels_question(how):
    coordinator, _, events = made(asked_nobody)
    came_back = []

    async def asking():
        came_back.append(await ask(coordinator, question(approval_default="allow")))

    await give_up_after(3, how, asking)
    assert came_back == []
    assert [event for event, _ in events] == ["approval:required"]


# ── failures ─────────────────────────────────────────────────────────────────────────────────────


async def test_interrupt_in_system_is_not_denial():
    coordinator, _, _ = made(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        await ask(coordinator, question())


# ── several gates ────────────────────────────────────────────────────────────────────────────────


async def test_each_gate_has_its_own_deadline():
    coordinator, _, _ = made(asked_nobody, asked_nobody)
    with takes(8):
        assert (
            await ask(coordinator, gates("a", "b", timeout=4, default="allow"))
        ).action == "continue"


async def test_gates_are_asked_despite_action():
    """Only a denial keeps them from being asked."""
    coordinator, asker, _ = made("deny")
    result = gates("a")
    result.action = "continue"
    assert (await ask(coordinator, result)).action == "deny"
    result.action, result.reason = "deny", "already decided"
    denied = await ask(coordinator, result)
    assert (denied.action, denied.reason) == ("deny", "already decided")
    assert len(asker.requests) == 1


# ── always ───────────────────────────────────────────────────────────────────────────────────────


async def test_always_is_remembered_and_announced():
    coordinator, asker, events = made("Allow always")
    for _ in range(3):
        assert (await ask(coordinator, question())).action == "continue"
    assert len(asker.requests) == 1
    assert [event for event, _ in events] == ["approval:required"] + ["approval:granted"] * 3
    assert [data.get("remembered") for _, data in events] == [None, True, True, True]


@pytest.mark.parametrize("first", ["allow", "allow once", "deny"])
async def test_only_always_is_remembered(first):
    coordinator, asker, _ = made(first, "deny")
    await ask(coordinator, question())
    assert (await ask(coordinator, question())).action == "deny"
    assert len(asker.requests) == 2


async def test_always_holds_in_its_own_session_only():
    first, _, _ = made("Allow always")
    second, asker, _ = made("deny")
    await ask(first, question())
    assert (await ask(second, question())).action == "deny"
    assert len(asker.requests) == 1


# ── a deadline that is none ──────────────────────────────────────────────────────────────────────

NO_DEADLINES = [float("nan"), float("inf"), -float("inf"), 0, 0.0, -1, True, "5", [5]]


@pytest.mark.parametrize("is_gate", [False, True])
@pytest.mark.parametrize("seconds", NO_DEADLINES, ids=repr)
async def test_question_with_wrong_timeout_is_denied(seconds, is_gate, caplog):
    coordinator, system, events = made("Allow")
    result = gates("hooks-guard") if is_gate else question()
    if is_gate:
        result.approval_gates[0].timeout = seconds
    else:
        result.approval_timeout = seconds
    denied = await ask(coordinator, result)
    assert denied.action == "deny"
    assert "approval_timeout: a timeout must be" in (denied.reason or "")
    assert repr(seconds) in (denied.reason or "")
    assert (system.requests, events) == ([], [])
    assert "'hooks-guard'" in caplog.text


@pytest.mark.parametrize("form", ["result", "gate", "dict", "gate in a dict"])
@pytest.mark.parametrize("seconds", NO_DEADLINES, ids=repr)
async def test_wrong_timeout_is_invalid_answer(seconds, form):
    coordinator, system, _ = made("Allow")
    failed = []

    def ask_wrongly(event, data):
        if form == "dict":
            return {"action": "ask_user", "approval_timeout": seconds}
        gate = ApprovalGate(prompt="?")
        gate.timeout = seconds
        if form == "gate in a dict":
            return {"action": "ask_user", "approval_gates": [gate]}
        result = HookResult(action="ask_user", approval_gates=[gate] if form == "gate" else [])
        result.approval_timeout = seconds
        return result

    coordinator.hooks.register("tool:pre", ask_wrongly, name="wrong")
    coordinator.hooks.register("hook:failed", lambda event, data: failed.append(data["hook_name"]))
    result = await coordinator.hooks.emit("tool:pre", {"tool_name": "rm"})
    assert result.action == "deny"
    assert result.reason is not None
    assert result.reason.startswith(
        "Hook handler returned invalid response: approval_timeout: a timeout must be"
    )
    assert repr(seconds) in result.reason
    assert failed == ["wrong"]
    assert system.requests == []


@pytest.mark.parametrize("value", [True, False])
def test_bool_is_not_timeout(value):
    """True would be one second to answer, which no person makes, and then the default."""
    for make in (
        lambda: question(approval_timeout=value),
        lambda: ApprovalGate(prompt="x", timeout=value),
    ):
        with pytest.raises(ModelError, match=r"timeout: expected a number of seconds"):
            make()
    with pytest.raises(ModelError, match="approval_timeout"):
        from_dict(HookResult, {"action": "ask_user", "approval_timeout": value})
