"""Cases for providers: conversations with every role and block. Needs the ``testing`` extra.

A listed conversation has one feature; a drawn one joins several of them. Everything is JSON values and legal: calls have results, and
the last message is the user's or a tool's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
_TEXTS = ["hello", "What is it?", 'é漢字🙂\u2028\r\n\t"\\', "a\nb\u2028c", " ", "{'x': 1}", "<b>&amp;</b>", "x" * 2000]
_TEXT = {"type": "text", "text": "words"}
_HIDDEN = {"type": "text", "text": "words", "visibility": "internal"}
_IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _PIXEL}}
_IMAGE_URL = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
_UNKNOWN = {"type": "hologram", "beam": {"angle": 3}}
_THOUGHT = {"type": "thinking", "thinking": "a thought", "signature": "c2lnbmF0dXJl"}
_THOUGHTS = (
    _THOUGHT,
    {"type": "thinking", "thinking": "an unsigned thought"},
    {"type": "redacted_thinking", "data": "aGlkZGVu"},
    {"type": "reasoning", "content": [], "summary": [{"type": "summary_text", "text": "because"}]},
)


def _user(*content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else list(content), **more}


def _assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def _conversations() -> Iterator[list[dict[str, Any]]]:
    user, end = _user("Hello."), _user("Go on.")
    brief, kind = {"role": "system", "content": "Be brief."}, {"role": "system", "content": "Be kind."}
    call = {"type": "tool_call", "id": "toolu_one", "name": "look", "input": {"text": "é", "n": [None]}}
    other = {"type": "tool_call", "id": "toolu_two", "name": "count", "input": {}}
    result = {"type": "tool_result", "tool_call_id": "toolu_one", "output": {"seen": [1, None]}}
    seen = {"role": "tool", "tool_call_id": "toolu_one", "name": "look", "content": "seen"}
    counted = {"role": "tool", "tool_call_id": "toolu_two", "name": "count", "content": "seen"}
    for instruction in (brief, {**brief, "role": "developer"}, {**brief, "content": [_TEXT]}):
        yield [instruction, user]
    yield [brief, kind, user]
    yield [user, _assistant(_TEXT), brief, end]
    for content in ("", *_TEXTS, "words " * 400):
        yield [_user(content)]
    for blocks in ([_TEXT], [_TEXT, _TEXT], [_HIDDEN, _TEXT], [_IMAGE], [_TEXT, _IMAGE_URL], [_TEXT, _UNKNOWN]):
        yield [_user(*blocks)]
    yield [user, end]
    yield [_user("Hello.", name="ann", metadata={"trace": {"id": 1}})]
    yield [user, {"role": "assistant", "content": "Hello."}, end]
    yield [user, {"role": "assistant", "content": "One."}, _assistant(_TEXT), end]
    for thought in (*_THOUGHTS, _HIDDEN):
        yield [user, _assistant(thought, _TEXT), end]
    yield [user, _assistant(_TEXT, _UNKNOWN), end]
    yield [user, {"role": "function", "name": "look", "content": "seen"}, end]
    yield [user, _assistant(call), seen]
    yield [user, _assistant(_THOUGHT, _TEXT, call), seen, end]
    yield [user, _assistant(call, other), seen, counted, end]
    yield [user, _assistant(call), {**seen, "content": ""}, end]
    yield [user, _assistant(call), {**seen, "content": [result]}]
    for output in (result["output"], "", ["a", "b"], None, 3):
        yield [user, _assistant(call), _user({**result, "output": output})]


def listed_requests(facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Short conversations with one feature each."""
    yield from ({"messages": messages} for messages in _conversations())


def requests(facts: dict[str, Any]) -> SearchStrategy[Any]:
    """Several of the conversations one after the other, each with call ids of its own, and options."""
    options = {
        "temperature": st.sampled_from([0.0, 0.5]),
        "top_p": st.just(0.9),
        "max_output_tokens": st.sampled_from([64, 4096]),
        "stop": st.just(["END"]),
        "metadata": st.just({"trace": {"id": 7}}),
        "conversation_id": st.just("conversation-1"),
        "reasoning_effort": st.sampled_from(["low", "high"]),
        "tool_choice": st.sampled_from(["auto", "none"]),
    }
    parts = st.lists(st.sampled_from(list(_conversations())), min_size=1, max_size=4)
    return st.fixed_dictionaries(
        {
            "messages": parts.map(_joined),
            "options": st.fixed_dictionaries({}, optional=options),
            "tools": st.booleans(),
        }
    )


def _joined(parts: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    own = [json.loads(json.dumps(part).replace("toolu_", f"toolu_case{number}x")) for number, part in enumerate(parts)]
    return [message for part in own for message in part]


def dialogues(facts: dict[str, Any]) -> SearchStrategy[Any]:
    """The user's messages, turn by turn: texts from the module's own source, and common ones."""
    known = [text for text in facts.get("texts", []) if text.strip()]
    usual = ["Hello.", "Please use a tool.", "Use the tool look and then count.", "Think step by step.", "And now?"]
    options = [{}, {}, {"conformance_unknown": 1}, {"extended_thinking": True, "zebra": None}]
    return st.fixed_dictionaries(
        {
            "words": st.lists(st.sampled_from([*usual, *known]), min_size=3, max_size=5),
            "tools": st.booleans() | st.just(True),
            "options": st.sampled_from(options),
        }
    )


def listed_dialogues(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Usual conversations: a tool call in every turn, the same compacted, plain answers, and no tools offered."""
    tool = "Please use a tool."
    return [
        {"words": [tool] * 12, "tools": True, "options": {}},
        {"words": [f"{tool} This is turn {turn}." for turn in "abcd"], "tools": True, "options": {}, "compacts": True},
        {"words": ["Hello.", "Hello.", tool, "Thanks."], "tools": True, "options": {"conformance_unknown": 1}},
        {"words": ["Hello.", tool], "tools": False, "options": {}},
    ]
