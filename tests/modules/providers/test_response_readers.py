"""Readers of responses without HTTP: deviations of servers from the API, and unknown blocks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from amplifier.errors import ContentFilterError, InvalidToolCallError, StreamError
from amplifier.models import (
    ChatResponse,
    RedactedThinkingBlock,
    StreamChunk,
    TextBlock,
    ToolCall,
    Usage,
    to_dict,
)
from amplifier.modules.providers._chat_completions import ChatCompletionsReader
from amplifier.modules.providers._responses_api import ResponsesApiReader
from amplifier.modules.providers._wire_format import ResponseReader, SseEvent
from amplifier.modules.providers.anthropic import MessagesApiReader

NOTHING = Usage(input_tokens=0, output_tokens=0, total_tokens=0)


def read(reader: ResponseReader, *events: Any) -> tuple[list[StreamChunk], ChatResponse]:
    chunks: list[StreamChunk] = []
    for event in events:
        chunks += reader.read_event(
            SseEvent(None, event if isinstance(event, str) else json.dumps(event))
        )
    if not reader.is_over:
        chunks += reader.end_of_stream()
    return chunks, reader.response(NOTHING, None)


def delta(finish: str | None = None, **members: Any) -> dict[str, Any]:
    return {"choices": [{"delta": members, "finish_reason": finish}]}


def piece(arguments: Any = None, **members: Any) -> dict[str, Any]:
    name = members.pop("name", None)
    function = {
        **({"name": name} if name else {}),
        **({} if arguments is None else {"arguments": arguments}),
    }
    return {**members, "function": function}


LOOK, COUNT = ("look", {"x": 1}), ("count", {"y": 2})

LIBERTIES: dict[str, list[list[dict[str, Any]]]] = {
    "as the service itself does": [
        [piece("", index=0, id="a", name="look")],
        [piece('{"x"', index=0)],
        [piece(": 1}", index=0)],
        [piece('{"y": 2}', index=1, id="b", name="count")],
    ],
    "both calls in one piece": [
        [
            piece('{"x": 1}', index=0, id="a", name="look"),
            piece('{"y": 2}', index=1, id="b", name="count"),
        ]
    ],
    "pieces of both calls by turns": [
        [piece('{"x"', index=0, id="a", name="look"), piece('{"y"', index=1, id="b", name="count")],
        [piece(": 2}", index=1), piece(": 1}", index=0)],
    ],
    "one index for all calls": [
        [piece('{"x": 1}', index=0, id="a", name="look")],
        [piece('{"y": 2}', index=0, id="b", name="count")],
    ],
    "no index at all": [
        [piece('{"x"', id="a", name="look")],
        [piece(": 1}")],
        [piece('{"y": 2}', id="b", name="count")],
    ],
    "name and id with every piece": [
        [piece('{"x"', index=0, id="a", name="look")],
        [piece(": 1}", index=0, id="a", name="look")],
        [piece('{"y": 2}', index=1, id="b", name="count")],
    ],
    "the id later than the name": [
        [piece('{"x"', index=0, name="look")],
        [piece(": 1}", index=0, id="a")],
        [piece('{"y": 2}', index=1, id="b", name="count")],
    ],
    "arguments as an object": [
        [piece({"x": 1}, index=0, id="a", name="look")],
        [piece({"y": 2}, index=1, id="b", name="count")],
    ],
}


@pytest.mark.parametrize("how", LIBERTIES)
@pytest.mark.parametrize("end", ["[DONE]", None])
def test_chat_calls_are_assembled_from_pieces(how, end):
    events = [delta(tool_calls=pieces) for pieces in LIBERTIES[how]]
    ends = [delta(finish="tool_calls"), *([end] if end else [])]
    chunks, response = read(ChatCompletionsReader(), delta(content="so"), *events, *ends)
    assert response.tool_calls == [
        ToolCall(id="a", name="look", arguments={"x": 1}),
        ToolCall(id="b", name="count", arguments={"y": 2}),
    ]
    assert response.content[0] == TextBlock(text="so")
    assert [c.index for c in chunks if c.kind == "block_start"] == [0, 1, 2]
    assert sorted(c.index for c in chunks if c.kind == "block_end") == [0, 1, 2]


def test_truncated_chat_call_is_not_retryable():
    call = delta(tool_calls=[piece('{"x": "unfinis', index=0, id="a", name="look")])
    with pytest.raises(InvalidToolCallError, match="more output tokens") as caught:
        read(ChatCompletionsReader(), call, delta("length"))
    assert not caught.value.retryable


def test_alternating_thoughts_are_separate_blocks():
    events = [
        delta(reasoning="a"),
        delta(reasoning="b"),
        delta(content="c"),
        delta(reasoning="d"),
        delta("stop"),
    ]
    _, response = read(ChatCompletionsReader(), *events)
    assert [block.type for block in response.content] == ["thinking", "text", "thinking"]
    assert [getattr(block, "thinking", None) for block in response.content] == ["ab", None, "d"]


def test_stream_without_finish_reason_is_interrupted():
    with pytest.raises(StreamError):
        read(ChatCompletionsReader(), delta(content="a"))
    with pytest.raises(StreamError):
        read(ChatCompletionsReader(), delta(content="a"), "[DONE]")


def test_refusal_becomes_text_or_error():
    _, response = read(ChatCompletionsReader(), delta(refusal="I will not."), delta("stop"))
    assert to_dict(response.content[0]) == {"type": "text", "text": "I will not.", "refusal": True}
    with pytest.raises(ContentFilterError):
        read(ChatCompletionsReader(), delta("content_filter"))


def test_only_first_choice_counts():
    two = {"choices": [{"delta": {"content": "a"}}, {"index": 1, "delta": {"content": "b"}}]}
    assert read(ChatCompletionsReader(), two, delta("stop"))[1].content == [TextBlock(text="a")]


# ── Anthropic ────────────────────────────────────────────────────────────────────────────────────


def block(start: dict[str, Any], *deltas: dict[str, Any], index: int = 0) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": item} for item in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def message(*blocks: list[dict[str, Any]], reason: str = "end_turn") -> list[dict[str, Any]]:
    usage = {"input_tokens": 1, "output_tokens": 0}
    return [
        {"type": "message_start", "message": {"id": "m", "model": "claude", "usage": usage}},
        *(event for events in blocks for event in events),
        {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]


def test_unknown_blocks_pass_unchanged():
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    found = {
        "type": "web_search_tool_result",
        "tool_use_id": "s1",
        "content": [{"url": "https://e", "new": {"a": 1}}],
    }
    words = [{"type": "input_json_delta", "partial_json": part} for part in ('{"query"', ': "x"}')]
    _, response = read(MessagesApiReader(), *message(block(search, *words), block(found, index=1)))
    assert [to_dict(item) for item in response.content] == [
        {**search, "input": {"query": "x"}},
        found,
    ]


def test_sealed_thoughts_and_citations_are_kept():
    sealed = block({"type": "redacted_thinking", "data": "zz"})
    cited = block(
        {"type": "text", "text": ""},
        {"type": "text_delta", "text": "so"},
        {"type": "citations_delta", "citation": {"n": 1}},
        {"type": "citations_delta", "citation": {"n": 2}},
        index=1,
    )
    _, response = read(MessagesApiReader(), *message(sealed, cited))
    assert response.content[0] == RedactedThinkingBlock(data="zz")
    assert response.content[1].extra["citations"] == [{"n": 1}, {"n": 2}]


def test_unknown_events_and_deltas_are_skipped():
    future = {"type": "something_new", "index": 0}
    words = block(
        {"type": "text", "text": ""},
        {"type": "new_delta", "x": 1},
        {"type": "text_delta", "text": "so"},
    )
    _, response = read(MessagesApiReader(), future, *message(words), future)
    assert response.content == [TextBlock(text="so")]


def test_final_counts_replace_first_ones():
    reader = MessagesApiReader()
    read(reader, *message())
    assert (reader.counted["input_tokens"], reader.counted["output_tokens"]) == (1, 5)


def test_truncated_call_differs_from_invalid_json():
    start = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    events = block(start, {"type": "input_json_delta", "partial_json": '{"x": "unfin'})
    for reason, retryable in (("max_tokens", False), ("tool_use", True)):
        with pytest.raises(InvalidToolCallError) as caught:
            read(MessagesApiReader(), *message(events, reason=reason))
        assert caught.value.retryable is retryable


# ── Responses ────────────────────────────────────────────────────────────────────────────────────


def done(index: int, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


COMPLETED = {"type": "response.completed", "response": {"status": "completed", "usage": None}}


def test_unknown_items_pass_unchanged():
    search = {
        "type": "web_search_call",
        "id": "ws",
        "status": "completed",
        "action": {"type": "search"},
    }
    _, response = read(ResponsesApiReader(), done(0, search), COMPLETED)
    assert [to_dict(item) for item in response.content] == [search]


def test_finished_items_win_over_pieces():
    """A piece may be lost or a server may send none at all; the finished item counts."""
    parts = [{"type": "output_text", "text": "whole"}, {"type": "refusal", "refusal": "no"}]
    item = {"type": "message", "id": "m", "phase": "final_answer", "content": parts}
    lost = {
        "type": "response.output_text.delta",
        "output_index": 0,
        "content_index": 0,
        "delta": "who",
    }
    chunks, response = read(ResponsesApiReader(), lost, done(0, item), COMPLETED)
    assert [getattr(b, "text", None) for b in response.content] == ["whole", "no"]
    assert response.content[0].extra == {"phase": "final_answer"}
    assert [(c.kind, c.index) for c in chunks] == [
        ("block_start", 0),
        ("block_delta", 0),
        ("block_end", 0),
        ("block_start", 1),
        ("block_end", 1),
    ]


def test_incomplete_response_has_finish_reason():
    incomplete = {
        "type": "response.incomplete",
        "response": {"incomplete_details": {"reason": "max_output_tokens"}},
    }
    item = {"type": "function_call", "id": "f", "call_id": "c", "name": "look", "arguments": '{"x'}
    with pytest.raises(InvalidToolCallError, match="more output tokens"):
        read(ResponsesApiReader(), done(0, item), incomplete)
    words = {"type": "message", "content": [{"type": "output_text", "text": "half"}]}
    assert (
        read(ResponsesApiReader(), done(0, words), incomplete)[1].finish_reason
        == "max_output_tokens"
    )


@pytest.mark.parametrize(
    "arguments", ['{"x": ["\\ud83d", "\\ud83d\\ude00"]}', {"x": ["\ud83d", "\U0001f600"]}]
)
def test_lone_surrogate_in_arguments_is_replaced(arguments):
    """Models cut emojis in half; as it stands nothing could store the call, and the turn would end."""
    call = piece(arguments, index=0, id="a", name="look")
    _, response = read(ChatCompletionsReader(), delta(tool_calls=[call]), delta("tool_calls"))
    assert response.tool_calls == [
        ToolCall(id="a", name="look", arguments={"x": ["\ufffd", "\U0001f600"]})
    ]
    assert to_dict(response)
