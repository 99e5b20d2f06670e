"""tool-recall: what a view no longer shows can be found and read again, over any context."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from amplifier import AmplifierSession
from amplifier.modules.tools.recall import RecallTool
from amplifier.testing import MockContextManager, MockProvider


class Host:
    """A coordinator that has a context."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def get(self, point: str) -> Any:
        return self._context


async def tool_over(messages: list[dict[str, Any]]) -> RecallTool:
    context = MockContextManager()
    await context.set_messages(messages)
    return RecallTool(Host(context))  # type: ignore[arg-type]


CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "The harbour opens at seven; never sail before."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "name": "tide", "arguments": {"port": "Brest"}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": "low water " * 2000 + "at 06:12"},
    {"role": "assistant", "content": [{"type": "text", "text": "Low water at Brest: 06:12."}]},
]


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("harbour", {1}),
        ("brest", {2, 4}),
        ('Brest OR harbour) "', {1, 2, 4}),
        ("nowhere", set()),
        ("", set()),
        ("%", set()),
    ],
)
async def test_words_are_found_anywhere(query, numbers):
    result = await (await tool_over(CONVERSATION)).execute({"query": query})
    assert {hit["number"] for hit in result.output["found"]} == numbers
    assert result.output["messages"] == 4


async def test_hit_shows_surrounding_text():
    result = await (await tool_over(CONVERSATION)).execute({"query": "06"})
    hit = next(hit for hit in result.output["found"] if hit["number"] == 3)
    assert hit["text"].startswith("…")
    assert hit["text"].endswith("at 06:12")
    assert len(hit["text"]) < 600


async def test_message_is_read_in_pieces():
    tool = await tool_over(CONVERSATION)
    text, left, offset = "", 1, 0
    while left:
        result = await tool.execute({"number": 3, "offset": offset})
        text += result.output["text"]
        left, offset = result.output["characters_left"], len(text)
    assert text == CONVERSATION[2]["content"]
    assert (
        (await tool.execute({"number": 2})).output["text"].startswith('{"tool_calls": [{"id": "1"')
    )


async def test_missing_message_is_reported():
    result = await (await tool_over(CONVERSATION)).execute({"number": 5})
    assert result.error == {
        "message": "there is no message 5; the conversation has 4",
        "type": "NotFound",
    }


async def test_model_rereads_compacted_text():
    word = "rhododendron"

    def answer(request: Any) -> Any:
        last = request.messages[-1]
        if last.role == "tool":
            return str(last.content)
        if "Which" in str(last.content):
            assert word not in str(request.messages), "the view no longer has it"
            return ("recall", {"query": "flower of the gate"})
        return "noted " * 60

    context = {"module": "context-simple", "config": {"max_tokens": 2000, "summary_seconds": None}}
    provider = MockProvider(answer, defaults={"context_window": 2000, "max_output_tokens": 0})
    plan = {
        "session": {"orchestrator": "loop-basic", "context": context},
        "providers": [provider],
        "tools": ["tool-recall"],
    }
    with anyio.fail_after(300):
        async with AmplifierSession(plan) as session:
            await session.execute("Hello there.")
            await session.execute(f"The flower of the gate is the {word}.")
            for number in range(30):
                await session.execute(f"Step {number}: " + "words " * 30)
            assert word in await session.execute("Which flower was it?")
