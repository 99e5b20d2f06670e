"""The parts of provider-replay: which requests are equal, what is written of them, and differences in words."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from amplifier._internal.json import redact_secrets
from amplifier.models import (
    ChatRequest,
    Message,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSpec,
)
from amplifier.modules.providers._cassette import Scrubber, canonical_request, first_difference

SECRET = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"


def canonical(
    request: ChatRequest, *ignore: str, placeholders: dict[str, str] | None = None
) -> dict[str, Any]:
    return canonical_request(request, Scrubber(placeholders or {}, {}), ignore)


def conversation(first: str, second: str, *, text: str = "hello", **more: Any) -> ChatRequest:
    return ChatRequest(
        messages=[
            Message(role="user", content=text),
            Message(
                role="assistant",
                content=[
                    ToolCallBlock(id=first, name="look", input={"id": "kept"}),
                    ToolCallBlock(id=second, name="look", input={}),
                ],
            ),
            Message(role="tool", content="saw", tool_call_id=first),
            Message(role="user", content=[ToolResultBlock(tool_call_id=second, output="saw")]),
        ],
        **more,
    )


def test_requests_with_other_call_ids_are_equal():
    one, other = canonical(conversation("a", "b")), canonical(conversation("x", "y"))
    assert one == other
    assert one["messages"][2]["tool_call_id"] == "call-1"
    assert one["messages"][3]["content"][0]["tool_call_id"] == "call-2"
    assert one["messages"][1]["content"][0]["input"] == {"id": "kept"}


def test_requests_with_swapped_results_differ():
    swapped = conversation("a", "b")
    swapped.messages[2].tool_call_id = "b"
    assert canonical(swapped) != canonical(conversation("a", "b"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: str(uuid.uuid4()),
        lambda: uuid.uuid4().hex,
        lambda: f"20261116-{uuid.uuid4().hex[:6]}-{uuid.uuid4().hex[:16]}_explorer",
    ],
    ids=["uuid", "hex", "child session"],
)
def test_random_ids_in_texts_are_numbered(make):
    def text() -> str:
        one, other = make(), make()
        return f'first "{one}", then {other}, then {one} again'

    one, other = (canonical(conversation("a", "b", text=text())) for _ in range(2))
    assert one == other
    assert one["messages"][0]["content"] == 'first "<id 1>", then <id 2>, then <id 1> again'


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.5},
        {"model": "other"},
        {"tools": [ToolSpec(name="t", parameters={})]},
        {"stop": ["x"]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_model_visible_parts_are_compared(change):
    assert canonical(conversation("a", "b", **change)) != canonical(conversation("a", "b"))


@pytest.mark.parametrize(
    "change",
    [{"stream": True}, {"timeout": 5.0}, {"metadata": {"user": "x"}}, {"conversation_id": "x"}],
    ids=lambda change: next(iter(change)),
)
def test_invisible_parts_are_not_compared(change):
    assert canonical(conversation("a", "b", **change)) == canonical(conversation("a", "b"))


def test_ignored_parts_are_not_compared():
    one, other = (conversation("a", "b", text=f"it took {number} ms") for number in (5, 70))
    assert canonical(one) != canonical(other)
    assert canonical(one, r"took \d+ ms") == canonical(other, r"took \d+ ms")


def test_replayed_answer_leads_to_recorded_request():
    # The recorded answer has lost its secret, so the next request of the replay has lost it, too.
    answer = {"type": "text", "text": f"the token is {SECRET}; password=hunter2-hunter2"}
    recorded = ChatRequest(
        messages=[Message(role="assistant", content=[TextBlock(text=answer["text"])])]
    )
    replayed = ChatRequest(
        messages=[
            Message(role="assistant", content=[TextBlock(text=redact_secrets(answer)["text"])])
        ]
    )
    assert canonical(recorded) == canonical(replayed)


# ── differences ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("recorded", "asked", "expected"),
    [
        ({"a": 1}, {"a": 1}, None),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, ("$.b", "2", "3")),
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, ("$.a[2]", "nothing", "3")),
        ({"a": [1, {"b": "x"}, 3]}, {"a": [1, {"b": "y"}]}, ("$.a[1].b", "'x'", "'y'")),
        ({"a": [1, 2]}, {"a": [1]}, ("$.a[1]", "2", "nothing")),
        ({"a": 1}, {}, ("$.a", "1", "nothing")),
        ({}, {"a": None}, ("$.a", "nothing", "None")),
        ({"a": True}, {"a": 1}, ("$.a", "True", "1")),
        ({"a": "x"}, {"a": ["x"]}, ("$.a", "'x'", "['x']")),
    ],
)
def test_first_difference_is_found(recorded, asked, expected):
    assert first_difference(recorded, asked) == expected


def test_long_texts_are_cut_to_difference():
    found = first_difference(
        {"a": "x" * 500 + "old" + "y" * 500}, {"a": "x" * 500 + "new" + "y" * 500}
    )
    assert found is not None
    assert found[1:] == (f"…'{'x' * 40}old{'y' * 37}'…", f"…'{'x' * 40}new{'y' * 37}'…")
