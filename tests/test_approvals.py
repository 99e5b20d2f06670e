"""Approvals as an application meets them: which calls of an agent are asked about, and what the question holds."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import attrs
import pytest

from amplifier import ApprovalQuestion, agent, on, tool
from amplifier.errors import PlanError
from amplifier.models import HookResult
from amplifier.testing import MockApprovalSystem, script


@tool(read_only=True)
def look(x: int) -> int:
    """Look at it."""
    return x


@tool(approve=False)
def harmless(x: int) -> int:
    """Do something that no one minds."""
    return x


@tool(approve=lambda x: x > 1)
def sometimes(x: int) -> int:
    """Do it."""
    return x


@tool(approve=True)
def always(x: int) -> int:
    """Do it."""
    return x


@tool(approve=True, read_only=True)
def secret(x: int) -> int:
    """Read something private."""
    return x


def undeclared(x: int) -> int:
    """Do it."""
    return x


@attrs.frozen
class City:
    name: str


@attrs.define
class Person:
    """Answers questions with one answer, and keeps them."""

    answer: bool = True
    questions: list[ApprovalQuestion] = attrs.Factory(list)

    def __call__(self, question: ApprovalQuestion) -> bool:
        self.questions.append(question)
        return self.answer


@pytest.mark.parametrize(
    ("function", "x", "is_asked"),
    [
        (look, 1, False),
        (harmless, 1, False),
        (sometimes, 1, False),
        (sometimes, 2, True),
        (always, 1, True),
        (secret, 1, True),
        (undeclared, 1, True),
    ],
)
@pytest.mark.parametrize("options", [{}, {"budget": {"tool_calls": 9}}], ids=["plain", "metered"])
async def test_approve_asks_about_declared_tools_only(function, x, is_asked, options):
    person = Person()
    calls = script((function.__name__, {"x": x}), "Done.")
    async with agent(calls, tools=[function], approve=person, **options) as session:
        await session.execute("go")
        (call,) = session.last_turn.tool_calls
    assert (call.success, call.output) == (True, x)
    assert len(person.questions) == is_asked


@pytest.mark.parametrize("answer", [True, False])
async def test_typed_answer_is_never_asked_about(answer):
    person = Person(answer=answer)
    model = script(("final_result", {"name": "Oslo"}))
    async with agent(model, approve=person) as session:
        assert await session.execute("Where?", result_type=City) == City("Oslo")
    assert person.questions == []


async def test_other_gates_skip_typed_answer():
    @on("tool:pre", gate=True)
    def ask(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(action="ask_user", approval_prompt="Really?")

    person = Person(answer=False)
    model = script(("final_result", {"name": "Oslo"}))
    async with agent(model, hooks=[ask], approve=person) as session:
        assert await session.execute("Where?", result_type=City) == City("Oslo")
    assert person.questions == []


async def test_tool_named_like_answer_is_asked_about():
    """Only the tool that the loop offers passes. One of the application under its name does not."""

    @tool(name="final_result")
    def pretender(x: int) -> int:
        """Pretend."""
        return x

    person = Person(answer=False)
    model = script(("final_result", {"x": 1}), ("final_result_", {"name": "Oslo"}))
    async with agent(model, tools=[pretender], approve=person) as session:
        assert await session.execute("Where?", result_type=City) == City("Oslo")
    assert [question.tool for question in person.questions] == ["final_result"]


async def test_question_contains_its_subject():
    person = Person()
    async with agent(
        script(("undeclared", {"x": 1}), "Done."), tools=[undeclared], approve=person
    ) as session:
        await session.execute("go")
    (question,) = person.questions
    assert str(question) == question.text
    assert question.text.startswith(
        "Allow the tool undeclared of module tool-undeclared to run?\n  x: 1\n"
    )
    assert (question.tool, dict(question.arguments), question.module) == (
        "undeclared",
        {"x": 1},
        "tool-undeclared",
    )
    assert question.reason == "no rule is about this call of undeclared"
    assert question.seconds == 300


async def test_question_of_other_gate_names_tool():
    @on("tool:pre", gate=True)
    def ask(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(action="ask_user", approval_prompt="Really?")

    person = Person()
    async with agent(
        script(("look", {"x": 1}), "Done."), tools=[look], hooks=[ask], approve=person
    ) as session:
        await session.execute("go")
    assert [(question.text, question.tool) for question in person.questions] == [
        ("Really?", "look")
    ]


async def test_marked_function_asks_without_approval_module():
    system = MockApprovalSystem(["Allow once"])
    seen: list[str] = []

    @on("approval:required")
    def watch(event: str, data: dict[str, Any]) -> None:
        seen.append(data["prompt"])

    async with agent(
        script(("always", {"x": 1}), "Done."), tools=[always], hooks=[watch]
    ) as session:
        session.coordinator.approval_system = system
        await session.execute("go")
        assert session.last_turn.tool_calls[0].success
    assert seen == ['Allow always with {"x": 1}?']


async def test_unanswered_question_is_logged_by_name(caplog):
    asked = anyio.Event()

    async def away(question: ApprovalQuestion) -> bool:
        assert question.seconds == 0.01
        asked.set()
        await anyio.sleep_forever()
        return True

    model = script(("undeclared", {"x": 1}), "Done.")
    with caplog.at_level(logging.WARNING):
        async with agent(model, tools=[undeclared], approve=away, approval_timeout=0.01) as session:
            await session.execute("go")
            (call,) = session.last_turn.tool_calls
    assert asked.is_set()
    assert not call.success
    assert "no one answered the question about the call of undeclared within 0.01 s" in caplog.text


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"approval_timeout": 5}, "approval_timeout: it needs approve=; got 5"),
        (
            {"approval_timeout": 5, "approve": "deny", "hooks": ["hooks-approval"]},
            "approval_timeout: set it in the config of your hooks-approval; got 5",
        ),
        ({"approval_timeout": "soon", "approve": "deny"}, "approval_timeout: expected"),
    ],
)
def test_timeout_without_question_is_refused(options, problem):
    with pytest.raises(PlanError, match="agent") as caught:
        agent("offline", **options)
    assert problem in str(caught.value)
