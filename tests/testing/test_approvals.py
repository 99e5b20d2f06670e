"""MockApprovalSystem and MockDisplaySystem: scripted answers, remembered questions and messages."""

from __future__ import annotations

import pytest

from amplifier.errors import ApprovalTimeoutError
from amplifier.testing import MockApprovalSystem


async def test_without_a_script_every_question_gets_its_own_default() -> None:
    system = MockApprovalSystem()
    assert await system.request_approval("May I?", ["Allow", "Deny"], 300, "deny") == "Deny"
    assert await system.request_approval("May I?", ["Allow", "Deny"], 300, "allow") == "Allow"
    system.assert_exhausted()


async def test_a_script_is_answered_in_order_and_questions_are_remembered() -> None:
    with MockApprovalSystem(["Allow once", ApprovalTimeoutError("too late")]) as system:
        assert await system.request_approval("A?", ["Allow once"], 1.5, "deny") == "Allow once"
        with pytest.raises(ApprovalTimeoutError):
            await system.request_approval("B?", [], 2, "allow")
    assert [request["prompt"] for request in system.requests] == ["A?", "B?"]
    assert system.requests[0] == {"prompt": "A?", "options": ["Allow once"], "timeout": 1.5, "default": "deny"}
    assert repr(system) == "<MockApprovalSystem asked 2 times>"


async def test_a_function_answers_every_question() -> None:
    async def answer(prompt: str) -> str:
        return f"Allow {prompt}"

    system = MockApprovalSystem(answer)
    assert [await system.request_approval(prompt, [], 1, "deny") for prompt in "ab"] == ["Allow a", "Allow b"]
    assert len(system.requests) == 2
    system.assert_exhausted()
