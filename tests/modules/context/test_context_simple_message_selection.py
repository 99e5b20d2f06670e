"""The compacted view: laws that hold for every transcript and every budget, and what they look like in practice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import attrs
from hypothesis import event, given
from hypothesis import strategies as st

from amplifier.modules.context import SOURCE, ContextOptions, count_tokens
from amplifier.modules.context.simple import SimpleContext

NOTE = "left out]"


# ── transcripts ──────────────────────────────────────────────────────────────────────────────────


@attrs.define
class Transcript:
    """Messages whose ``name`` is their position, and what belongs together by construction.

    Attributes:
        together: Positions of a call's message and of all its results.
        orphans: Positions of results that answer nothing.
    """

    messages: list[dict[str, Any]] = attrs.field(factory=list)
    together: list[list[int]] = attrs.field(factory=list)
    orphans: list[int] = attrs.field(factory=list)

    def add(self, **message: Any) -> int:
        position = len(self.messages)
        self.messages.append({**message, "name": str(position)})
        return position


def texts() -> st.SearchStrategy[str]:
    return st.one_of(
        st.text(max_size=20),
        st.builds(lambda t, n: t * n, st.text("aé中 \n", min_size=1), st.integers(1, 400)),
    )


def contents() -> st.SearchStrategy[Any]:
    blocks = st.one_of(
        st.builds(lambda t: {"type": "text", "text": t}, texts()),
        st.builds(lambda t: {"type": "thinking", "thinking": t, "signature": "s"}, texts()),
        st.builds(lambda t: {"type": "of the future", "payload": [t]}, texts()),
        st.just({"type": "image", "source": {"data": "A" * 50}}),
        st.sampled_from([{}, {"type": None}, "bare text", None, 7]),
    )
    return st.one_of(st.none(), texts(), st.lists(blocks, max_size=3))


@st.composite
def transcripts(draw: st.DrawFn) -> Transcript:
    """Whole turns, broken ones, instructions in between, results late or missing, results of nothing."""
    transcript = Transcript()
    for turn in range(draw(st.integers(0, 8))):
        match draw(
            st.sampled_from(
                ["prompt", "prompt", "words", "calls", "calls", "calls", "system", "orphan"]
            )
        ):
            case "prompt":
                transcript.add(role="user", content=draw(contents()), metadata={"n": draw(texts())})
            case "words":
                transcript.add(role="assistant", content=draw(contents()))
            case "system":
                transcript.add(
                    role=draw(st.sampled_from(["system", "developer"])), content=draw(contents())
                )
            case "orphan":
                transcript.orphans.append(
                    transcript.add(
                        role="tool", tool_call_id=f"unknown {turn}", content=draw(texts())
                    )
                )
            case "calls":
                draw_calls(draw, transcript, turn)
    return transcript


def draw_calls(draw: st.DrawFn, transcript: Transcript, turn: int) -> None:
    ids = [f"call {turn}.{number}" for number in range(draw(st.integers(1, 3)))]
    given = draw(texts())
    listed = [{"id": call, "name": "t", "arguments": {"given": given}} for call in ids]
    functions = [
        {"id": call, "function": {"name": "t", "arguments": json.dumps({"given": given})}}
        for call in ids
    ]
    blocks = [
        {"type": "tool_call", "id": call, "name": "t", "input": {"given": given}} for call in ids
    ]
    form: dict[str, Any] = draw(
        st.sampled_from(
            [
                {"content": None, "tool_calls": listed},
                {"content": None, "tool_calls": functions},
                {"content": blocks},
                {"content": blocks, "tool_calls": listed},
                {
                    "content": [
                        {"type": "tool_use", "id": call, "name": "t", "input": {}} for call in ids
                    ]
                },
            ]
        )
    )
    group = [transcript.add(role="assistant", **form)]
    answered = draw(st.permutations(ids))[: draw(st.integers(0, len(ids)))]
    if draw(st.booleans()):
        for call in answered:
            group.append(transcript.add(role="tool", tool_call_id=call, content=draw(contents())))
            if draw(st.integers(0, 4)) == 0:
                transcript.add(role=draw(st.sampled_from(["user", "system"])), content="in between")
    elif answered:
        key = draw(st.sampled_from(["tool_call_id", "tool_use_id"]))
        results = [
            {"type": "tool_result", key: call, "content": draw(texts())} for call in answered
        ]
        group.append(transcript.add(role="user", content=results))
    transcript.together.append(group)


def options() -> st.SearchStrategy[ContextOptions]:
    return st.sampled_from(
        [
            ContextOptions(),
            ContextOptions(compaction_threshold=1.0, compaction_target=1.0),
            ContextOptions(compaction_threshold=1.0, compaction_target=0.1),
            ContextOptions(compaction_threshold=0.3, compaction_target=0.2, chars_per_token=1),
        ]
    )


def budgets() -> st.SearchStrategy[int]:
    return st.one_of(st.integers(-10, 60), st.integers(60, 600), st.integers(600, 5000))


async def view_of(
    messages: Sequence[dict[str, Any]], budget: int, options: ContextOptions | None = None
) -> Any:
    context = SimpleContext(options)
    await context.set_messages(list(messages))
    view = await context.get_messages_for_request(budget)
    assert await context.get_messages() == messages, "a view changes nothing stored"
    return view


def said(view: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The view without the message that says what is left out."""
    notes = [message for message in view if (message.get("metadata") or {}).get("source") == SOURCE]
    assert len(notes) <= 1
    return [message for message in view if message not in notes]


def positions(view: list[dict[str, Any]]) -> list[int]:
    return [int(message["name"]) for message in said(view)]


# ── laws ─────────────────────────────────────────────────────────────────────────────────────────


@given(transcript=transcripts(), budget=budgets(), options=options())
async def test_view_keeps_order_instructions_pairs_and_newest(transcript, budget, options):
    view = await view_of(transcript.messages, budget, options)
    shown = positions(view)
    assert shown == sorted(set(shown)), "conversation order, nothing twice"
    for position, message in enumerate(transcript.messages):
        if message["role"] in ("system", "developer"):
            assert position in shown
    for group in transcript.together:
        assert len({position in shown for position in group}) == 1, (
            f"{group} was torn apart in {shown}"
        )
    assert not set(shown) & set(transcript.orphans)
    rest = [
        position
        for position in range(len(transcript.messages))
        if position not in transcript.orphans
    ]
    assert shown[-1:] == rest[-1:], "the newest message is the last"
    event("compacted" if len(shown) < len(rest) else "whole")


@given(transcript=transcripts(), budget=budgets(), options=options())
async def test_view_fits_whenever_skeleton_fits(transcript, budget, options):
    view = await view_of(transcript.messages, budget, options)
    tokens = sum(count_tokens(message, options.chars_per_token) for message in view)
    if tokens > budget:
        skeletons = [skeleton(transcript.messages[position]) for position in positions(view)]
        assert sum(count_tokens(message, options.chars_per_token) for message in skeletons) > budget
        event("no view could fit")
    elif NOTE in json.dumps(view):
        event("shortened to fit")


def skeleton(message: dict[str, Any]) -> dict[str, Any]:
    """A message with a note of forty characters in every place that may hold text, and nothing beyond the contract."""
    kept: dict[str, Any] = {
        name: message[name] for name in ("role", "name", "tool_call_id") if name in message
    }
    content = message.get("content")
    calls = message.get("tool_calls", [])
    return {
        **kept,
        "content": [_noted(block) for block in content] if isinstance(content, list) else "." * 40,
        "tool_calls": [
            {**call, "arguments": {"given": "." * 40}} for call in json.loads(json.dumps(calls))
        ],
    }


def _noted(block: Any) -> Any:
    if isinstance(block, dict) and block.get("type") in ("tool_call", "tool_use"):
        return {**block, "input": {"given": "." * 40}}
    if isinstance(block, dict) and block.get("type") == "tool_result":
        return {**block, "content": "." * 40}
    return {"type": "text", "text": "." * 40}


@given(transcript=transcripts(), budget=budgets(), options=options())
async def test_shown_messages_are_original_or_annotated(transcript, budget, options):
    view = await view_of(transcript.messages, budget, options)
    for message in said(view):
        original = transcript.messages[int(message["name"])]
        assert message["role"] == original["role"]
        assert message.get("tool_call_id") == original.get("tool_call_id")
        assert ids_in(message) == ids_in(original)
        if message != original and {**original, **message} == original:
            assert set(original) - set(message) == {"metadata"}, (
                "only fields beyond the contract are left out unsaid"
            )
        elif message != original:
            assert NOTE in json.dumps(message, ensure_ascii=False)


def ids_in(message: dict[str, Any]) -> list[Any]:
    content = message["content"] if isinstance(message.get("content"), list) else []
    in_blocks = [block.get("id") for block in content if isinstance(block, dict) and "id" in block]
    return [call["id"] for call in message.get("tool_calls", [])] + in_blocks


@given(transcript=transcripts(), budget=budgets(), options=options())
async def test_conversation_within_threshold_is_whole(transcript, budget, options):
    whole = [
        m for position, m in enumerate(transcript.messages) if position not in transcript.orphans
    ]
    tokens = sum(count_tokens(message, options.chars_per_token) for message in whole)
    view = await view_of(
        transcript.messages, int(tokens / options.compaction_threshold) + 1, options
    )
    assert view == whole


@given(transcript=transcripts(), budget=budgets(), options=options())
async def test_view_begins_with_prompt_of_turn(transcript, budget, options):
    shown = positions(await view_of(transcript.messages, budget, options))
    spoken = [
        position
        for position in shown
        if transcript.messages[position]["role"] not in ("system", "developer")
    ]
    prompts = [
        position
        for position, message in enumerate(transcript.messages)
        if message["role"] == "user" and not any(position in group for group in transcript.together)
    ]
    if spoken and prompts and prompts[0] < spoken[-1]:
        # Only a conversation that began without a prompt may be shown so, and only from its beginning.
        assert spoken[0] in prompts or spoken[0] < prompts[0]


# ── in practice ──────────────────────────────────────────────────────────────────────────────────


def turn(number: int, calls: int = 2, size: int = 100) -> list[dict[str, Any]]:
    ids = [f"{number}.{call}" for call in range(calls)]
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call, "name": "look"} for call in ids],
        },
        *({"role": "tool", "tool_call_id": call, "content": "x" * size} for call in ids),
    ]


async def test_view_prefix_is_stable_over_requests():
    context = SimpleContext(ContextOptions(compaction_threshold=0.8, compaction_target=0.4))
    await context.add_message({"role": "system", "content": "be brief"})
    beginnings = []
    view: list[dict[str, Any]] = []
    for number in range(120):
        await context.add_message({"role": "user", "content": f"question {number} " * 5})
        await context.add_message({"role": "assistant", "content": f"answer {number} " * 5})
        view = await context.get_messages_for_request(2000)
        assert sum(count_tokens(message, 4) for message in view) <= 1600
        beginnings.append(view[2]["content"])
        assert view[1]["content"].startswith("question 0")
    # About 5400 tokens were added in all; the view begins elsewhere once for every 800 of them above its limit.
    assert len(set(beginnings)) <= 8
    assert len(view) > 15


async def test_long_turn_keeps_question():
    history = [
        {"role": "user", "content": "find the bug"},
        *(m for n in range(50) for m in turn(n)),
    ]
    view = await view_of(history, 600)
    assert view[0] == history[0]
    assert view[1]["content"].endswith("left out]")
    assert view[2]["role"] == "assistant"
    assert 5 < len(view) < 60
    assert view[-1] == history[-1]


async def test_old_long_turn_fades_gradually():
    history = [
        {"role": "user", "content": "find the bug"},
        *(m for n in range(50) for m in turn(n)),
    ]
    view = await view_of(
        [*history, {"role": "user", "content": "and now?"}], 800
    )  # down to the target, half of it
    assert view[0]["content"] == "find the bug"
    assert len(view) > 10


async def test_reused_id_belongs_to_latest_call():
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "first"},
        {
            "role": "assistant",
            "content": "a" * 2000,
            "tool_calls": [{"id": "same", "name": "look"}],
        },
        {"role": "tool", "tool_call_id": "same", "content": "1"},
        {"role": "user", "content": "second"},
        {"role": "assistant", "content": "b", "tool_calls": [{"id": "same", "name": "look"}]},
        {"role": "tool", "tool_call_id": "same", "content": "2"},
    ]
    assert said(await view_of(history, 200)) == [history[0], *history[3:]]


async def test_late_result_keeps_its_call():
    call, answer = turn(1, calls=1)
    between = [{"role": "user", "content": f"meanwhile {number} " * 10} for number in range(30)]
    view = await view_of([{"role": "user", "content": "begin"}, call, *between, answer], 200)
    assert view[:2] == [{"role": "user", "content": "begin"}, call]
    assert view[-1] == answer
    assert len(view) < 10


async def test_result_before_call_is_orphan():
    late: dict[str, Any] = {"role": "tool", "tool_call_id": "1.0", "content": "too early"}
    assert await view_of([late, *turn(1)], 5000) == turn(1)


async def test_tool_message_without_id_stays():
    history = [{"role": "tool", "content": "from somewhere"}, {"role": "user", "content": "hello"}]
    assert await view_of(history, 5000) == history


async def test_long_results_are_shortened_first():
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "q" * 800},
        *turn(1, calls=3, size=40_000),
    ]
    view = await view_of(history, 3000)
    assert view[0] == history[0]
    assert view[1] == history[1]
    for message in view[2:]:
        text = message["content"]
        assert text.startswith("x" * 1000)
        assert text.endswith("x" * 500)
        missing = int(text.split("\n[")[1].split(" characters left out]\n")[0])
        assert missing + text.count("x") == 40_000
    assert 2700 < sum(count_tokens(message, 4) for message in view) <= 3000


async def test_shortened_json_arguments_stay_json():
    arguments = json.dumps({"path": "a.py", "text": "t" * 20_000})
    call = {"id": "1", "type": "function", "function": {"name": "write", "arguments": arguments}}
    history: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1"},
    ]
    view = await view_of(history, 700)
    cut = json.loads(view[0]["tool_calls"][0]["function"]["arguments"])
    assert cut["path"] == "a.py"
    assert NOTE in cut["text"]


async def test_signed_thought_is_whole_or_absent():
    thought = {"type": "thinking", "thinking": "t" * 4000, "signature": "seal"}
    history: list[dict[str, Any]] = [
        {"role": "assistant", "content": [thought, {"type": "text", "text": "u" * 4000}]}
    ]
    assert (await view_of(history, 1500))[0]["content"][0] == thought
    assert (await view_of(history, 300))[0]["content"][0] == {
        "type": "text",
        "text": "[thinking left out]",
    }


async def test_impossible_budget_is_exceeded_with_warning(caplog):
    history = [{"role": "system", "content": "s" * 500}, {"role": "user", "content": "u" * 500}]
    with caplog.at_level("WARNING"):
        view = await view_of(history, 1)
    assert [message["content"] for message in view] == ["[500 characters left out]"] * 2
    assert "cannot be shortened to 1 tokens" in caplog.text
