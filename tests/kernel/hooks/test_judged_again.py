"""What was allowed is what runs: gates and questions are about the input that hooks have left."""

from __future__ import annotations

from typing import Any

import pytest

from amplifier import AmplifierSession, ApprovalQuestion, HookResult, agent, on, tool
from amplifier.testing import MockApprovalSystem, MockProvider, MockTool

pytestmark = pytest.mark.virtual_time

LOOPS = ["loop-basic", "loop-streaming", "loop-events"]


def changing(path: str, priority: int) -> Any:
    @on("tool:pre", priority=priority)
    async def change(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(action="modify", data={**data, "tool_input": {"path": path}})

    return change


def asking(priority: int) -> Any:
    @on("tool:pre", priority=priority)
    async def ask(event: str, data: dict[str, Any]) -> HookResult:
        prompt = f"{priority}: {data['tool_input']['path']}"
        return HookResult(
            action="ask_user", approval_prompt=prompt, context_injection="once", user_message="once"
        )

    return ask


def plan_of(deleted: MockTool, hooks: list[Any], loop: str = "loop-basic") -> dict[str, Any]:
    return {
        "session": {"orchestrator": loop, "context": "context-simple", "strict": True},
        "providers": [MockProvider([("delete", {"path": "old"}), "Done."])],
        "tools": [deleted],
        "hooks": hooks,
    }


@pytest.mark.parametrize("loop", LOOPS)
async def test_a_question_is_about_the_input_that_later_hooks_leave(loop):
    person, deleted, seen = MockApprovalSystem(["Allow"] * 2), MockTool("delete"), []

    @on("tool:pre", priority=2)
    async def look(event: str, data: dict[str, Any]) -> None:
        seen.append(data["tool_input"]["path"])

    hooks = [asking(1), look, changing("new", 3), asking(4)]
    async with AmplifierSession(plan_of(deleted, hooks, loop), approval_system=person) as session:
        await session.execute("go")
    assert [request["prompt"] for request in person.requests] == ["4: new", "1: new"]
    assert seen == ["old"]  # observers are told once
    assert [call["path"] for call in deleted.calls] == ["new"]


async def test_a_gate_that_let_the_earlier_input_pass_judges_the_one_that_is_left():
    deleted = MockTool("delete")

    @on("tool:pre", gate=True)
    async def judge(event: str, data: dict[str, Any]) -> HookResult:
        is_bad = data["tool_input"]["path"] == "new"
        return HookResult(action="deny", reason="not that one") if is_bad else HookResult()

    async with AmplifierSession(plan_of(deleted, [judge, changing("new", 1)])) as session:
        await session.execute("go")
        assert session.last_turn is not None
        assert session.last_turn.tool_calls[0].error == "denied: not that one"
    assert deleted.calls == []


async def test_hooks_that_change_the_input_in_turns_are_denied():
    deleted = MockTool("delete")

    @on("tool:pre", gate=True)
    async def clean(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(
            action="modify", data={**data, "tool_input": {"path": data["tool_input"]["path"] + "!"}}
        )

    async with AmplifierSession(plan_of(deleted, [clean, changing("new", 1)])) as session:
        await session.execute("go")
        assert session.last_turn is not None
        assert "change the input in turns" in session.last_turn.tool_calls[0].error
    assert deleted.calls == []


async def test_a_question_that_the_final_input_does_not_need_is_not_asked():
    person, deleted = MockApprovalSystem(["Deny"]), MockTool("delete")

    @on("tool:pre")
    async def ask(event: str, data: dict[str, Any]) -> HookResult:
        is_asked = data["tool_input"]["path"] == "old"
        return HookResult(action="ask_user", approval_prompt="?") if is_asked else HookResult()

    async with AmplifierSession(
        plan_of(deleted, [ask, changing("new", 1)]), approval_system=person
    ) as session:
        await session.execute("go")
    assert person.requests == []
    assert [call["path"] for call in deleted.calls] == ["new"]


# ── one question for one call ──


ALLOWING = {"module": "hooks-approval", "config": {"tools": {"delete": "allow"}}}


@pytest.mark.parametrize(
    ("plan", "shown"),
    [
        *(({"session": {"orchestrator": {"module": loop}}}, "path: a") for loop in LOOPS),
        ({"hooks": [ALLOWING]}, '{"path": "a"}'),
    ],
    ids=[*LOOPS, "allowed by the plan"],
)
@pytest.mark.parametrize("is_allowed", [True, False])
async def test_a_marked_function_of_an_agent_that_asks_is_asked_about_once(
    plan, shown, is_allowed, tmp_path, monkeypatch
):
    # The places below the current folder are looked through before a path is judged.
    monkeypatch.chdir(tmp_path)
    asked, deleted = [], []

    @tool(approve=True)
    async def delete(path: str) -> str:
        """Deletes."""
        deleted.append(path)
        return "ok"

    def approve(question: ApprovalQuestion) -> bool:
        asked.append(str(question))
        return is_allowed

    provider = MockProvider([[("delete", {"path": "a"}), ("delete", {"path": "b"})], "Done."])
    async with agent(provider, tools=[delete], approve=approve, plan=plan) as session:
        await session.execute("go")
    assert len(asked) == 2
    assert shown in asked[0]
    assert deleted == (["a", "b"] if is_allowed else [])


@pytest.mark.parametrize("priority", [-1000, 0, 1000])
@pytest.mark.parametrize(
    "change", [{"tool_input": {"path": "new"}}, {"note": 1}, {"tool_name": "look"}]
)
async def test_no_hook_passes_a_call_off_as_another_one(priority, change):
    """A hook that returns a part of the payload, or another name, changes neither which tool runs nor which one is judged."""
    ran: list[str] = []
    seen: list[Any] = []

    @tool(approve=True)
    async def delete(path: str) -> str:
        """Delete a file."""
        ran.append(path)
        return path

    async def look(path: str) -> str:
        """Look at a file."""
        return path

    @on("tool:pre", priority=priority)
    async def careless(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(action="modify", data=change)

    @on("tool:pre", priority=2000)
    async def watch(event: str, data: dict[str, Any]) -> None:
        seen.append((data.get("tool_name"), data.get("tool_call_id"), data.get("tool_input")))

    model = MockProvider([("delete", {"path": "old"}), "Done."])
    async with agent(model, tools=[delete, look], hooks=[careless, watch]) as session:
        await session.execute("go")  # there is no one to ask
        assert session.last_turn is not None
        (call,) = session.last_turn.tool_calls
    assert (ran, call.tool, "No approval system" in call.error) == ([], "delete", True)
    assert seen == [("delete", "call_1", change.get("tool_input", {"path": "old"}))]
