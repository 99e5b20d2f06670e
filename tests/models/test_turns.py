"""One fold from the events of a turn to what happened."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.events import PROVIDER_REQUEST, PROVIDER_RESPONSE, TOOL_ERROR, TOOL_POST
from amplifier.models import TextDelta, ToolFinished, ToolStarted, TurnEvent
from amplifier.models.answers import PartialAnswer, answer_format
from amplifier.models.turns import ModelAnswer, ToolOutcome, TurnEvents, TurnRecord


def asked() -> TurnEvent:
    return TurnEvent(name=PROVIDER_REQUEST, data={})


def wrote(text: str) -> TextDelta:
    return TextDelta(name="content_block:delta", data={}, text=text)


def answered(**data: Any) -> TurnEvent:
    return TurnEvent(name=PROVIDER_RESPONSE, data=data)


CALL = {"tool_name": "bash", "tool_call_id": "1"}


def finished(name: str = TOOL_POST, **data: Any) -> ToolFinished:
    return ToolFinished(name=name, data={**data, **CALL}, **CALL, success=name == TOOL_POST)


def test_texts_of_model_calls_are_separated():
    """The final answer appears once."""
    record = TurnRecord()
    events = [
        asked(),
        wrote("Let me"),
        wrote(" look."),
        answered(),
        asked(),
        wrote("Done."),
        answered(),
    ]
    assert "".join(map(record.add, events)) == "Let me look.\n\nDone."
    assert record.rest("Done.") == ""


def test_unstreamed_answer_is_rest():
    record = TurnRecord()
    for event in (asked(), wrote("Let me look."), answered(), asked(), answered()):
        record.add(event)
    assert record.rest("Done.") == "\n\nDone."
    assert record.rest("Done.") == ""


def test_unfinished_text_is_incomplete_answer_only():
    record = TurnRecord()
    for event in (asked(), wrote("one"), answered(), asked(), wrote("two")):
        record.add(event)
    assert record.unfinished == "two"


def folded(length: int) -> Callable[[], object]:
    """A fold that has much text, and takes one piece more."""
    record = TurnRecord()
    record.add(wrote("x" * length))
    return lambda: record.add(wrote("piece"))


def reported(length: int) -> Callable[[], object]:
    """The same for a provider that reports pieces, which a loop reports once more."""
    events = TurnEvents()

    def report(text: str, again: str) -> object:
        piece = {"request_id": "1", "block_type": "text", "text": text}
        events("llm:stream_block_delta", piece)
        return events("content_block:delta", {"block_type": "text", "delta": again})

    report("x" * length, "x")
    return lambda: report("piece", "x")


def parsed(length: int) -> Callable[[], object]:
    """The same for an answer with a type."""
    partial = PartialAnswer(answer_format({"type": "object"}))
    partial.add('{"a": "' + "x" * length)
    return lambda: partial.add("piece")


@pytest.mark.parametrize("having", [folded, reported, parsed])
def test_piece_cost_ignores_answer_length(having):
    length = 1_000_000
    add = having(length)
    add()
    tracemalloc.start()
    try:
        add()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < length / 50


@pytest.mark.parametrize("size", [1, 2, 3, 20])
def test_text_reported_twice_comes_once(size):
    """Provider and loop report the same text in different pieces."""
    text = "It rains today."
    events = TurnEvents()
    seen = [
        events(
            "llm:stream_block_delta",
            {"request_id": "1", "block_type": "text", "text": text[at : at + 4]},
        )
        for at in range(0, len(text), 4)
    ]
    seen += [
        events("content_block:delta", {"block_type": "text", "delta": text[at : at + size]})
        for at in range(0, len(text), size)
    ]
    assert "".join(event.text for event in seen if isinstance(event, TextDelta)) == text
    more = events("content_block:delta", {"block_type": "text", "delta": " More."})
    assert isinstance(more, TextDelta)


def test_usage_adds_up_over_calls():
    """Model and stop reason are those of the latest call."""
    record = TurnRecord()
    usage = {"input_tokens": 10, "output_tokens": 5, "cost_usd": "0.25"}
    record.add(
        answered(
            provider="one", usage=usage, response={"model": "m-1", "finish_reason": "tool_calls"}
        )
    )
    record.add(
        answered(
            provider="one", usage={**usage, "cost_usd": None}, response={"finish_reason": "length"}
        )
    )
    assert (record.input_tokens, record.output_tokens, record.cost) == (20, 10, Decimal("0.25"))
    assert (record.provider, record.model, record.stop_reason) == ("one", "m-1", "length")


def test_rejected_call_counts_as_call():
    record = TurnRecord()
    record.add(
        finished(
            TOOL_ERROR, tool_input={"a": 1}, error={"type": "NotFound", "message": "no tool bash"}
        )
    )
    use = record.tools["1"]
    assert (use.tool, use.arguments, use.success, use.error) == (
        "bash",
        {"a": 1},
        False,
        "no tool bash",
    )
    assert use.shown(100) == "Error: no tool bash"


def test_call_output_is_text_and_shortened():
    record = TurnRecord()
    given: dict[str, Any] = {**CALL, "tool_input": {"command": "ls"}}
    record.add(ToolStarted(name="tool:pre", data=given, **given))
    assert record.tools["1"].success is None
    record.add(finished(result={"success": True, "output": {"stdout": "x" * 50}}))
    use = record.tools["1"]
    assert use.output == {"stdout": "x" * 50}
    assert use.shown(20) == '{"stdout":"xxxxxxxxx\n… 43 characters are not shown'


@pytest.mark.parametrize(
    ("event", "data", "status"),
    [
        (TOOL_POST, {"result": {"success": True}}, "ok"),
        (TOOL_POST, {}, "ok"),
        (TOOL_POST, {"tool_result": {"success": False}}, "error"),
        (TOOL_ERROR, {"error": {"type": "Denied"}}, "denied"),
        (TOOL_ERROR, {"error": {"type": "Withheld"}}, "denied"),
        (TOOL_ERROR, {"error": {"type": "Cancelled"}}, "cancelled"),
        (TOOL_ERROR, {"error": "broken"}, "error"),
        (TOOL_ERROR, {}, "error"),
    ],
)
def test_status_of_tool_call(event, data, status):
    assert ToolOutcome.read(event, data).status == status


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
members = st.sampled_from(
    ["cost_usd", "input_tokens", "model", "finish_reason", "error", "message", "type", "success"]
)
values = plain | st.lists(plain, max_size=2) | st.dictionaries(members, plain, max_size=3)
names = st.sampled_from(
    ["usage", "response", "provider", "model", "result", "tool_result", "error", "tool_input"]
)


@given(st.dictionaries(names, values))
def test_payload_of_any_form_is_read(data):
    answer = ModelAnswer.read(data)
    assert answer.cost is None or answer.cost.is_finite()
    assert answer.input_tokens is None or answer.input_tokens >= 0
    for event in (TOOL_POST, TOOL_ERROR):
        assert ToolOutcome.read(event, data).status in ("ok", "error", "denied", "cancelled")
    record = TurnRecord()
    record.add(answered(**data))
    record.add(finished(TOOL_ERROR, **data))
    assert record.tools["1"].error


def test_deeply_nested_error_does_not_raise():
    error: Any = {}
    for _ in range(100_000):
        error = {"inner": error}
    assert ToolOutcome.read(TOOL_ERROR, {"error": error}).status == "error"
