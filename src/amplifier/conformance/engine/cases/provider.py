"""Strategies for providers: conversations with every role and block, and answers with calls. Needs the ``testing`` extra.

Everything drawn is JSON values and legal: calls have results, and the last message is the user's or a tool's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
_TEXTS = st.sampled_from(
    ["hello", "What is it?", "é漢字🙂", "a\nb\u2028c", " ", "{'x': 1}", "<b>&amp;</b>", "x" * 2000]
)
_IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
_IMAGE_URL = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
_UNKNOWN = {"type": "hologram", "beam": {"angle": 3}}
_VISIBLE = st.sampled_from([None, None, "internal", "developer", "user"])


def _text_blocks() -> SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda text, who: {"type": "text", "text": text, **({} if who is None else {"visibility": who})},
        _TEXTS,
        _VISIBLE,
    )


def _thoughts() -> SearchStrategy[dict[str, Any]]:
    return st.one_of(
        st.builds(
            lambda n: {"type": "thinking", "thinking": f"thought {n}", "signature": f"sig-{n}=="}, st.integers(0, 9)
        ),
        st.just({"type": "thinking", "thinking": "unsigned thought"}),
        st.builds(lambda n: {"type": "redacted_thinking", "data": f"redacted-{n}"}, st.integers(0, 9)),
        st.just({"type": "reasoning", "content": [], "summary": [{"type": "summary_text", "text": "because"}]}),
    )


def _user() -> SearchStrategy[dict[str, Any]]:
    blocks = st.lists(_text_blocks() | st.sampled_from([_IMAGE, _IMAGE_URL, _UNKNOWN]), min_size=1, max_size=3)
    return st.builds(lambda content: {"role": "user", "content": content}, st.one_of(_TEXTS, st.just(""), blocks))


def _instructions() -> SearchStrategy[dict[str, Any]]:
    content = _TEXTS | st.lists(_text_blocks(), min_size=1, max_size=2)
    return st.builds(
        lambda role, content: {"role": role, "content": content}, st.sampled_from(["system", "developer"]), content
    )


def _assistant() -> SearchStrategy[dict[str, Any]]:
    blocks = st.lists(_thoughts() | _text_blocks() | st.just(_UNKNOWN), min_size=1, max_size=3)
    return st.builds(lambda content: {"role": "assistant", "content": content}, _TEXTS | blocks)


@st.composite
def _tool_turns(draw: st.DrawFn, number: int) -> list[dict[str, Any]]:
    """An assistant's message with calls, and their results in one of the usual forms."""
    arguments = st.sampled_from([{}, {"text": "x"}, {"n": [1, {"deep": None}]}, {"é": "🙂"}])
    calls = [
        {
            "type": "tool_call",
            "id": f"toolu_case{number}x{index}",
            "name": draw(st.sampled_from(["look", "count"])),
            "input": draw(arguments),
        }
        for index in range(draw(st.integers(1, 3)))
    ]
    content = [*draw(st.lists(_thoughts() | _text_blocks(), max_size=2)), *calls]
    turn: list[dict[str, Any]] = [{"role": "assistant", "content": content}]
    form = draw(st.sampled_from(["text", "blocks", "user"]))
    outputs = st.sampled_from(["done", "", {"seen": [1, None]}, ["a", "b"], None, 3])
    results = [{"type": "tool_result", "tool_call_id": call["id"], "output": draw(outputs)} for call in calls]
    if form == "user":
        return [*turn, {"role": "user", "content": results}]
    for result, call in zip(results, calls, strict=True):
        output: Any = "done" if form == "text" else [result]
        turn.append({"role": "tool", "tool_call_id": call["id"], "name": call["name"], "content": output})
    return turn


@st.composite
def requests(draw: st.DrawFn, facts: dict[str, Any]) -> dict[str, Any]:
    """Requests with every role and block type."""
    messages: list[dict[str, Any]] = draw(st.lists(_instructions(), max_size=2))
    messages.append(draw(_user()))
    for number in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["assistant", "tools", "tools", "instructions", "function"]))
        if kind == "tools":
            messages += draw(_tool_turns(number))
        elif kind == "function":
            messages.append({"role": "function", "name": "look", "content": "an old kind of result"})
        else:
            messages.append(draw(_assistant() if kind == "assistant" else _instructions()))
        if draw(st.booleans()):
            messages.append(draw(_user()))
    if messages[-1]["role"] not in ("user", "tool"):
        messages.append(draw(_user()))
    options = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "temperature": st.sampled_from([0.0, 0.5]),
                "top_p": st.just(0.9),
                "max_output_tokens": st.sampled_from([64, 4096]),
                "stop": st.just(["END"]),
                "metadata": st.just({"trace": {"id": 7}}),
                "conversation_id": st.just("conversation-1"),
                "reasoning_effort": st.sampled_from(["low", "high"]),
                "tool_choice": st.sampled_from(["auto", "none"]),
            },
        )
    )
    return {"messages": messages, "options": options, "tools": draw(st.booleans())}


def _words(facts: dict[str, Any]) -> SearchStrategy[str]:
    """Prompts: texts from the module's own source, and common ones."""
    known = [text for text in facts.get("texts", []) if text.strip()]
    usual = ["Hello.", "Please use a tool.", "Use the tool look and then count.", "Think step by step.", "And now?"]
    return st.sampled_from([*usual, *known])


def dialogues(facts: dict[str, Any]) -> SearchStrategy[Any]:
    """The user's messages, turn by turn."""
    return st.fixed_dictionaries(
        {
            "words": st.lists(_words(facts), min_size=3, max_size=5),
            "tools": st.booleans() | st.just(True),
            "options": st.sampled_from(
                [{}, {}, {"conformance_unknown": 1}, {"extended_thinking": True, "zebra": None}]
            ),
        }
    )


def answers(facts: dict[str, Any]) -> SearchStrategy[Any]:
    """Answers with calls, as lists of blocks."""
    arguments = st.sampled_from([{}, {"text": "x"}, {"text": "x"}, {"n": [1, {"deep": None}]}, {"é": "🙂", "b": False}])
    call = st.builds(
        lambda name, given: {"name": name, "input": given}, st.sampled_from(["look", "count", "a.b-c"]), arguments
    )
    block = st.one_of(call, call, _text_blocks(), _thoughts())
    return st.fixed_dictionaries(
        {"blocks": st.lists(block, max_size=6), "id": st.sampled_from(["call", "0", "toolu_é"])}
    )


# ── listed ──


def listed_requests(facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Short conversations with one feature each."""
    user, end = {"role": "user", "content": "Hello."}, {"role": "user", "content": "Go on."}
    picture = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    call = {"type": "tool_call", "id": "toolu_one", "name": "look", "input": {"text": "é", "n": [None]}}
    other = {"type": "tool_call", "id": "toolu_two", "name": "count", "input": {}}
    results = [{"type": "tool_result", "tool_call_id": "toolu_one", "output": {"seen": [1, None]}}]
    text = {"type": "text", "text": "words"}
    thought = {"type": "thinking", "thinking": "a thought", "signature": "c2lnbmF0dXJl"}
    reasoning = {"type": "reasoning", "content": [], "summary": [{"type": "summary_text", "text": "because"}]}
    unknown = {"type": "hologram", "beam": {"angle": 3}}

    def tool(**more: Any) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": "toolu_one", "name": "look", "content": "seen", **more}

    def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
        return {"role": "assistant", "content": list(blocks)}

    conversations = {
        "a system message": [{"role": "system", "content": "Be brief."}, user],
        "a developer message": [{"role": "developer", "content": "Be brief."}, user],
        "instructions as blocks": [{"role": "system", "content": [text]}, user],
        "instructions in the middle": [user, assistant(text), {"role": "system", "content": "Be brief."}, end],
        "an empty text": [{"role": "user", "content": ""}],
        "text of many alphabets": [{"role": "user", "content": 'é漢字🙂\u2028\r\n\t"\\'}],
        "a long text": [{"role": "user", "content": "words " * 400}],
        "a user's blocks": [{"role": "user", "content": [text, text]}],
        "a picture": [{"role": "user", "content": [{"type": "image", "source": picture}]}],
        "a picture by its address": [
            {
                "role": "user",
                "content": [text, {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}],
            }
        ],
        "an assistant's text": [user, {"role": "assistant", "content": "Hello."}, end],
        "a thought": [user, assistant(thought, text), end],
        "a thought without a signature": [user, assistant({"type": "thinking", "thinking": "a thought"}, text), end],
        "a redacted thought": [user, assistant({"type": "redacted_thinking", "data": "aGlkZGVu"}, text), end],
        "reasoning": [user, assistant(reasoning, text), end],
        "a call and its result": [user, assistant(call), tool()],
        "a call with text": [user, assistant(thought, text, call), tool(), end],
        "two calls": [user, assistant(call, other), tool(), tool(tool_call_id="toolu_two", name="count"), end],
        "a result as a block": [user, assistant(call), tool(content=results)],
        "a result in a user's message": [user, assistant(call), {"role": "user", "content": results}],
        "a result that is empty": [user, assistant(call), tool(content=""), end],
        "a function's message": [user, {"role": "function", "name": "look", "content": "seen"}, end],
        "a block of an unknown type": [{"role": "user", "content": [text, unknown]}],
        "an assistant's block of an unknown type": [user, assistant(text, unknown), end],
        "a text as a block": [{"role": "user", "content": [text]}],
        "two messages of a user": [user, end],
        "two messages of an assistant": [user, {"role": "assistant", "content": "One."}, assistant(text), end],
        "two instructions": [
            {"role": "system", "content": "Be brief."},
            {"role": "system", "content": "Be kind."},
            user,
        ],
        "a message with metadata": [{**user, "name": "ann", "metadata": {"trace": {"id": 1}}}],
    }
    for messages in conversations.values():
        yield {"messages": messages}


def listed_dialogues(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Usual conversations: a tool call in every turn, the same compacted, plain answers, and no tools offered."""
    tool = "Please use a tool."
    return [
        {"words": [tool] * 12, "tools": True, "options": {}},
        {"words": [f"{tool} This is turn {turn}." for turn in "abcd"], "tools": True, "options": {}, "compacts": True},
        {"words": ["Hello.", "Hello.", tool, "Thanks."], "tools": True, "options": {"conformance_unknown": 1}},
        {"words": ["Hello.", tool], "tools": False, "options": {}},
    ]
