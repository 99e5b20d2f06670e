"""What is judged about providers: responses by themselves, and the requests that are sent."""

from __future__ import annotations

import copy
from decimal import Decimal

import pytest

from amplifier.conformance.engine.cases import listed_requests
from amplifier.conformance.oracles.provider_rules import (
    calls_of,
    continued,
    problem_with,
    request_from,
)
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    Message,
    TextBlock,
    ToolCall,
    ToolCallBlock,
    Usage,
)


def answer(*blocks, **more):
    usage = Usage(input_tokens=1, output_tokens=2, total_tokens=3)
    return ChatResponse(**{"content": list(blocks), "usage": usage, **more})


CALL = ToolCallBlock(id="a", name="look", input={"n": 1})


@pytest.mark.parametrize(
    ("response", "clause"),
    [
        (None, "P4"),
        ({"content": []}, "P4"),
        (answer(TextBlock(text="x"), usage=None), "P5"),
        (answer(usage=Usage(input_tokens=1, output_tokens=2, total_tokens=4)), "P5"),
        (answer(usage=Usage(input_tokens=-1, output_tokens=2, total_tokens=1)), "P5"),
        (answer(ToolCallBlock(id="a", name="look", input={"n": {1, 2}})), "P6"),
        (answer(ToolCallBlock(id=" ", name="look", input={})), "P9"),
        (answer(CALL, copy.deepcopy(CALL)), "P9"),
        (answer(CALL, tool_calls=[ToolCall(id="b", name="look", arguments={"n": 1})]), "P10"),
    ],
)
def test_a_response_that_breaks_a_clause_by_itself_is_found(response, clause):
    found = problem_with(response)
    assert found is not None
    assert found[0] == clause


def test_a_valid_response_has_no_problem_and_is_continued_with_results():
    response = answer(CALL, tool_calls=[ToolCall(id="a", name="look", arguments={"n": 1})])
    assert response.usage is not None
    response.usage.cost_usd = Decimal("0.1")
    assert problem_with(response) is None
    following = continued(
        ChatRequest(messages=[Message(role="user", content="x")]), response, "unused"
    )
    assert [message.role for message in following.messages] == ["user", "assistant", "tool"]
    assert [call.id for call in calls_of(response)] == ["a"]


def test_there_is_a_request_for_every_role_and_every_block():
    requests = [request_from(case) for case in listed_requests({})]
    roles = {message.role for request in requests for message in request.messages}
    blocks = {
        b.type
        for request in requests
        for m in request.messages
        if isinstance(m.content, list)
        for b in m.content
    }
    assert roles == {"system", "developer", "user", "assistant", "function", "tool"}
    assert blocks >= {
        "text",
        "thinking",
        "redacted_thinking",
        "tool_call",
        "tool_result",
        "image",
        "reasoning",
        "hologram",
    }
