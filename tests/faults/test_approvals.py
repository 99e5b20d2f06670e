"""Faults F50–F55: approvals without an answer, that fail, that come in twos, and that meet a redaction."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from amplifier import HookResult
from amplifier.errors import ApprovalTimeoutError
from tests._support.small_agent import agent, heard, takes

pytestmark = pytest.mark.virtual_time


class Person:
    """An approval system that gives fixed answers, an exception among them raised; None hangs."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked: list[str] = []

    async def request_approval(self, prompt, options, timeout, default):
        self.asked.append(prompt)
        answer = self.answers.pop(0)
        if answer is None:
            await anyio.sleep_forever()
        if isinstance(answer, BaseException):
            raise answer
        return answer


def question(prompt="sure?", **fields):
    return HookResult(action="ask_user", approval_prompt=prompt, **fields)


async def decided(system, result=None):
    async with agent(approval_system=system) as session:
        return await session.coordinator.process_hook_result(
            result or question(), "tool:pre", "gate"
        )


@pytest.mark.parametrize(("default", "action"), [("deny", "deny"), ("allow", "continue")])
async def test_f50_kernel_ends_wait_for_answer(default, action):
    system = Person(None)
    session = agent(approval_system=system)
    events = heard(session, "approval:required", "approval:granted", "approval:denied")
    async with session:
        with takes(0.2):
            result = await session.coordinator.process_hook_result(
                question(approval_timeout=0.2, approval_default=default), "tool:pre", "gate"
            )
    assert result.action == action
    outcome = "approval:granted" if default == "allow" else "approval:denied"
    assert [event for event, _ in events] == ["approval:required", outcome]
    assert f"{'allowed' if default == 'allow' else 'denied'} by default" in events[1][1]["reason"]


@pytest.mark.parametrize(
    ("error", "default", "action"),
    [
        (ApprovalTimeoutError("t"), "deny", "deny"),
        (ApprovalTimeoutError("t"), "allow", "continue"),
        (TimeoutError("t"), "allow", "deny"),
        (OSError("t"), "allow", "deny"),
        (asyncio.CancelledError(), "allow", "deny"),
    ],
    ids=["gave up, deny", "gave up, allow", "TimeoutError", "OSError", "made-up cancellation"],
)
async def test_f51_failing_approval_system_denies(error, default, action):
    """The default is for time that ran out, which only the kernel or an ApprovalTimeoutError can report."""
    result = await decided(Person(error), question(approval_default=default))
    assert result.action == action


async def test_f51_malformed_approval_system_denies():
    class Raises:
        def request_approval(self, *args):
            raise asyncio.CancelledError

    assert (await decided(Raises())).action == "deny"
    assert (await decided(object())).action == "deny"


ALLOWING = ["Allow", "allow", "ALLOW", "Allow once", "Allow always", "ALLOW ALWAYS"]
DENYING = [
    "Deny",
    "deny",
    "",
    " ",
    "yes",
    "y",
    "true",
    "ok",
    "allowed",
    "Allow ",
    "allow,deny",
    "Allow forever",
]


@pytest.mark.parametrize("answer", ALLOWING)
async def test_f52_only_allowing_answer_allows(answer):
    assert (await decided(Person(answer))).action == "continue"


@pytest.mark.parametrize("answer", [*DENYING, True, 1, {"action": "Allow"}])
async def test_f52_every_other_answer_denies(answer):
    assert len(ALLOWING) + len(DENYING) == 18
    assert (await decided(Person(answer))).action == "deny"


@pytest.mark.parametrize("default", ["deny", "allow"])
async def test_f53_question_without_approval_system_denies(default):
    result = await decided(None, question(approval_default=default))
    assert result.action == "deny"
    assert "No approval system" in (result.reason or "")


def asking(session, *names):
    for name in names:
        session.coordinator.hooks.register(
            "tool:pre", lambda event, data, name=name: question(f"{name}?"), name=f"gate {name}"
        )


@pytest.mark.parametrize(
    ("answers", "asked", "action"),
    [
        (("Allow", "Allow"), ["a?", "b?"], "continue"),
        (("Allow", "Deny"), ["a?", "b?"], "deny"),
        (("Deny", "Allow"), ["a?"], "deny"),
        (("Allow", OSError("x")), ["a?", "b?"], "deny"),
    ],
)
async def test_f54_every_gate_asks_and_any_denies(answers, asked, action):
    system = Person(*answers)
    session = agent(approval_system=system)
    events = heard(session, "approval:required")
    async with session:
        asking(session, "a", "b")
        merged = await session.coordinator.hooks.emit("tool:pre", {"tool_name": "bash"})
        assert [gate.hook_name for gate in merged.approval_gates] == ["gate a", "gate b"]
        result = await session.coordinator.process_hook_result(merged, "tool:pre")
    assert system.asked == asked
    assert result.action == action
    assert [data["hook_name"] for _, data in events] == ["gate a", "gate b"][: len(asked)]


async def test_f54_always_covers_same_question_only():
    system = Person("Allow always", "Deny", "Deny", "Deny", "Deny")
    async with agent(approval_system=system) as session:
        process = session.coordinator.process_hook_result
        assert (await process(question(), "tool:pre", "gate")).action == "continue"
        assert (await process(question(), "tool:pre", "gate")).action == "continue"
        assert system.asked == ["sure?"]
        others: list[Any] = [
            (question("sure? "), "tool:pre", "gate"),
            (question(), "tool:post", "gate"),
            (question(), "tool:pre", "another"),
            (question(approval_options=["Allow", "Deny", "Allow always"]), "tool:pre", "gate"),
        ]
        assert [(await process(*other)).action for other in others] == ["deny"] * 4


@pytest.mark.parametrize("redacts_first", [True, False])
async def test_f55_approved_call_keeps_shown_redaction(redacts_first):
    system = Person("Allow")
    async with agent(approval_system=system) as session:
        hooks = session.coordinator.hooks
        redact = HookResult(action="modify", data={"tool_input": "[SAFE]"})
        hooks.register("tool:pre", lambda event, data: redact, priority=-1 if redacts_first else 1)
        hooks.register("tool:pre", lambda event, data: question(f"run {data['tool_input']}?"))
        merged = await hooks.emit("tool:pre", {"tool_input": "secret"})
        assert merged.action == "ask_user"
        result = await session.coordinator.process_hook_result(merged, "tool:pre")
    assert system.asked == ["run [SAFE]?"], "a question is about what runs"
    assert result.action == "modify"
    assert result.data is not None
    assert result.data["tool_input"] == "[SAFE]"
