"""What is judged about providers: blocks traced through their code, responses by themselves, and responses to concurrent requests."""

from __future__ import annotations

import copy
from decimal import Decimal

import pytest

from amplifier.conformance.checks.provider.answers import (
    calls_of,
    continued,
    problem_with,
    request_from,
)
from amplifier.conformance.checks.provider.behaviour import check_mixture
from amplifier.conformance.checks.provider.wire import lost_part, lost_signature, traced_content, unsigned
from amplifier.conformance.engine.cases.provider import listed_requests
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolCallBlock,
    Usage,
)

THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "seal"}
TEXT = {"type": "text", "text": "so it is"}


def traced(function):
    with traced_content(lambda name: name == __file__) as seen:
        function()
    return seen


def answer(*blocks, **more):
    usage = Usage(input_tokens=1, output_tokens=2, total_tokens=3)
    return ChatResponse(**{"content": list(blocks), "usage": usage, **more})


def receive():
    parts = [dict(THOUGHT), dict(TEXT)]
    return copy.copy(parts)


def test_a_signature_that_is_missing_in_the_response_is_found():
    seen = traced(receive)
    assert lost_signature(seen, answer(ThinkingBlock(thinking="hm", signature="seal")), set()) is None
    assert lost_signature(seen, answer(ThinkingBlock(thinking="another")), set()) is None
    assert "seal" in (lost_signature(seen, answer(ThinkingBlock(thinking="hm")), set()) or "")
    assert lost_signature(seen, answer(ThinkingBlock(thinking="hm")), {"hm"}) is None


def test_blocks_that_are_dropped_or_reordered_are_found():
    seen = traced(receive)
    thought, text = ThinkingBlock(thinking="hm", signature="seal"), TextBlock(text="so it is")
    assert lost_part(seen, answer(thought, text), set()) is None
    assert lost_part(seen, answer(thought, TextBlock(text="And so it is.")), set()) is None
    assert lost_part(seen, answer(TextBlock(text="something else")), set()) is None
    assert lost_part(seen, answer(text), set()) is not None
    assert lost_part(seen, answer(text, thought), set()) is not None


def test_a_thought_that_is_passed_on_without_its_signature_is_found():
    def strip():
        part = dict(THOUGHT)
        part.pop("signature")
        return part

    assert unsigned(traced(strip), {"hm": "seal"}) is not None
    assert unsigned(traced(receive), {"hm": "seal"}) is None
    assert unsigned(traced(lambda: None), {"hm": "seal"}) is None


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
    following = continued(ChatRequest(messages=[Message(role="user", content="x")]), response, "unused")
    assert [message.role for message in following.messages] == ["user", "assistant", "tool"]
    assert [call.id for call in calls_of(response)] == ["a"]


def test_there_is_a_request_for_every_role_and_every_block():
    requests = [request_from(case) for case in listed_requests({})]
    roles = {message.role for request in requests for message in request.messages}
    blocks = {
        b.type for request in requests for m in request.messages if isinstance(m.content, list) for b in m.content
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


def test_two_calls_of_one_tool_around_another_are_in_order():
    names = ("look", "count", "look")

    def receive_calls():
        return [
            dict(TEXT),
            *({"type": "tool_use", "id": f"c{n}", "name": name, "input": {}} for n, name in enumerate(names)),
        ]

    seen = traced(receive_calls)
    calls = [ToolCallBlock(id=f"c{n}", name=name, input={}) for n, name in enumerate(names)]
    assert lost_part(seen, answer(TextBlock(text="so it is"), *calls), set()) is None
    assert lost_part(seen, answer(TextBlock(text="so it is"), calls[1], calls[0], calls[2]), set()) is not None


class Faults:
    """Collects the clauses that a rule reports."""

    def __init__(self) -> None:
        self.clauses: list[str] = []

    def fault(self, clause: str, what: str) -> None:
        self.clauses.append(clause)


def said(text: str) -> ChatResponse:
    return ChatResponse(content=[TextBlock(text=text)])


@pytest.mark.parametrize(
    ("alone", "together", "found"),
    [
        (["1zebra"] * 3, "1zebra", []),
        (["1zebra"] * 3, "2zebra", ["P14"]),
        (["1zebra"] * 3, "nothing", ["P14"]),
        (["1zebra"] * 3, "1zebra and more", ["P14"]),
        (["1zebra at noon", "1zebra at noon", "1zebra at one"], "1zebra at one", []),
        (["a", "b", "c"], "d", []),
    ],
)
def test_a_difference_is_reported_only_if_neither_time_nor_chance_explains_it(alone, together, found):
    faults = Faults()
    check_mixture(faults, 1, [said(text) for text in alone], said(together))  # type: ignore[arg-type]
    assert faults.clauses == found
