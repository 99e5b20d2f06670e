"""Every call of an answer has an id of its own, whatever the model wrote: in the history, in events and in reports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amplifier import AmplifierSession, ToolResult, on
from amplifier.models import ChatResponse, StreamChunk, TextBlock, ToolCall, ToolCallBlock
from amplifier.testing import MockProvider

pytestmark = pytest.mark.virtual_time


class Echo:
    name = "echo"
    description = "Returns its input."

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002
        await anyio.sleep(10 - input["number"])  # the last call ends first
        return ToolResult(output=input["number"])


class Model:
    """Answers as it is told to, and streams its blocks whole."""

    name = "model"

    def __init__(self, answers: list[ChatResponse]) -> None:
        mock = MockProvider(list(answers))
        self.get_info, self.list_models = mock.get_info, mock.list_models
        self.complete, self.parse_tool_calls = mock.complete, mock.parse_tool_calls

    @asynccontextmanager
    async def stream(
        self, request: Any, **kwargs: Any
    ) -> AsyncIterator[AsyncIterator[StreamChunk]]:
        response = await self.complete(request)

        async def chunks() -> AsyncIterator[StreamChunk]:
            for index, block in enumerate(response.content):
                yield StreamChunk(kind="block_start", index=index, block_type=block.type)
                yield StreamChunk(kind="block_end", index=index, block=block)
            yield StreamChunk(kind="response", response=response)

        yield chunks()


def answer(ids: list[str], first: int, *, in_blocks: bool) -> ChatResponse:
    numbered = list(enumerate(ids, first))
    content: list[Any] = [TextBlock(text="Let me see.")]
    if in_blocks:
        content += [
            ToolCallBlock(id=each, name="echo", input={"number": at}) for at, each in numbered
        ]
    calls = [ToolCall(id=each, name="echo", arguments={"number": at}) for at, each in numbered]
    return ChatResponse(content=content, tool_calls=calls)


def pairs(messages: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """The number that each call was given, and what its result says; checks that ids are unique and results in order."""
    found: list[tuple[int, str]] = []
    owed: list[tuple[str, int]] = []
    used: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            call_id, number = owed.pop(0)
            assert message["tool_call_id"] == call_id
            found.append((number, str(message["content"])))
            continue
        assert not owed
        owed = [
            (call["id"], call["arguments"]["number"]) for call in message.get("tool_calls") or ()
        ]
        blocks = message["content"] if isinstance(message["content"], list) else []
        assert [block["id"] for block in blocks if block["type"] == "tool_call"] == [
            call_id for call_id, _ in owed
        ]
        used += [call_id for call_id, _ in owed]
    assert not owed
    assert all(used)
    assert len(used) == len(set(used))
    return found


names = st.sampled_from(["", " ", "1", "1", "a", "call_1_1_1", "call_1_1_2", "call_1_2_1"])


@settings(max_examples=20)
@given(
    ids=st.lists(st.lists(names, min_size=1, max_size=4), min_size=1, max_size=2),
    in_blocks=st.booleans(),
    is_heard=st.booleans(),
)
async def test_duplicate_and_missing_ids_get_own_results(loop, ids, in_blocks, is_heard):
    told: dict[str, list[tuple[str, int]]] = {
        "tool:pre": [],
        "tool:post": [],
        "content_block:end": [],
    }

    @on(*told)
    async def hear(event: str, data: dict[str, Any]) -> None:
        block = data.get("block") or {
            "type": "tool_call",
            "id": data.get("tool_call_id"),
            "input": data.get("tool_input"),
        }
        if block["type"] == "tool_call":
            told[event].append((block["id"], block["input"]["number"]))

    firsts = [sum(map(len, ids[:at])) for at in range(len(ids))]
    answers = [
        answer(each, first, in_blocks=in_blocks) for each, first in zip(ids, firsts, strict=True)
    ]
    plan = {
        "session": {"orchestrator": loop, "context": "context-simple", "strict": True},
        "providers": [Model([*answers, ChatResponse(content=[TextBlock(text="Done.")])])],
        "tools": [Echo()],
        "hooks": [hear] if is_heard else [],
    }
    async with AmplifierSession(plan) as session:
        assert await session.execute("go") == "Done."
        stored, report = await session.messages(), session.last_turn
    assert report is not None
    count = sum(map(len, ids))
    expected = [(number, str(number)) for number in range(count)]
    assert pairs(stored) == expected
    assert pairs(report.messages) == expected
    assert sorted(use.arguments["number"] for use in report.tool_calls) == list(range(count))
    assert all(use.output == use.arguments["number"] for use in report.tool_calls)
    if is_heard:
        made = {
            (call["id"], call["arguments"]["number"])
            for message in stored
            for call in message.get("tool_calls") or ()
        }
        assert set(told["tool:pre"]) == set(told["tool:post"]) == made
        assert set(told["content_block:end"]) == (made if in_blocks else set())


async def test_id_of_earlier_turn_is_not_reused():
    answers: list[Any] = [
        answer(["1"], 0, in_blocks=True),
        "one",
        answer(["1"], 1, in_blocks=True),
        "two",
    ]
    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [MockProvider(answers)],
        "tools": [Echo()],
    }
    async with AmplifierSession(plan) as session:
        await session.execute("first")
        await session.execute("second")
        assert pairs(await session.messages()) == [(0, "0"), (1, "1")]


async def test_provider_response_is_not_changed():
    given = answer(["1", "1"], 0, in_blocks=True)
    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [MockProvider([given, "Done."])],
        "tools": [Echo()],
    }
    async with AmplifierSession(plan) as session:
        await session.execute("go")
    assert given == answer(["1", "1"], 0, in_blocks=True)
