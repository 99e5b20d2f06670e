"""MockProvider: plays scripted turns and keeps the provider contract."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from amplifier.errors import RateLimitError
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    Message,
    TextBlock,
    ToolCall,
    ToolCallBlock,
)
from amplifier.testing import Delayed, MockProvider


def request(text: str = "hi") -> ChatRequest:
    return ChatRequest(messages=[Message(role="user", content=text)])


async def test_without_a_script_every_call_gets_a_text() -> None:
    provider = MockProvider()
    for _ in range(3):
        response = await provider.complete(request(), unknown_option=1)
        assert response.content == [TextBlock(text="Mock response")]
        assert response.tool_calls is None
        assert provider.parse_tool_calls(response) == []
    assert provider.call_count == 3
    assert provider.options == [{"unknown_option": 1}] * 3
    provider.assert_exhausted()


async def test_a_function_answers_every_request() -> None:
    provider = MockProvider(lambda asked: f"{len(asked.messages)} messages")
    for _ in range(2):
        assert (await provider.complete(request())).content == [TextBlock(text="1 messages")]
    assert provider.call_count == 2
    provider.assert_exhausted()


async def test_turns_are_played_in_order_and_then_no_more() -> None:
    provider = MockProvider(["one", "two"], name="test")
    assert [(await provider.complete(request())).content for _ in range(2)] == [
        [TextBlock(text="one")],
        [TextBlock(text="two")],
    ]
    provider.assert_exhausted()
    with pytest.raises(
        AssertionError, match=r"MockProvider 'test': unexpected call 3, complete\(1 messages\); expected 2"
    ):
        await provider.complete(request())
    with pytest.raises(AssertionError, match="unexpected call 3"):
        provider.assert_exhausted()


async def test_tool_calls_are_in_the_content_and_in_the_list_under_unique_ids() -> None:
    provider = MockProvider(
        [("echo", {"x": 1}), ["Let me look.", ("read", {}), ToolCall(id="own", name="ls", arguments={})]]
    )
    first, second = [await provider.complete(request()) for _ in range(2)]
    assert provider.parse_tool_calls(first) == [ToolCall(id="call_1", name="echo", arguments={"x": 1})]
    assert first.content == [ToolCallBlock(id="call_1", name="echo", input={"x": 1})]
    assert first.finish_reason == "tool_calls"
    assert second.content[0] == TextBlock(text="Let me look.")
    assert [(call.id, call.name) for call in provider.parse_tool_calls(second)] == [("call_2", "read"), ("own", "ls")]


async def test_a_whole_response_is_given_as_it_is_and_not_shared() -> None:
    scripted = ChatResponse(content=[ToolCallBlock(id="a", name="ls", input={})], finish_reason="length")
    provider = MockProvider([scripted])
    response = await provider.complete(request())
    assert response == scripted
    assert response is not scripted
    assert provider.parse_tool_calls(response) == [ToolCall(id="a", name="ls", arguments={})]
    response.tool_calls = []
    assert provider.parse_tool_calls(response) == []


@pytest.mark.parametrize("turn", [RateLimitError("slow down"), RateLimitError])
async def test_an_exception_is_raised_and_the_next_turn_works(turn: Any) -> None:
    with MockProvider([turn, "better"]) as provider:
        with pytest.raises(RateLimitError):
            await provider.complete(request())
        assert (await provider.complete(request())).content == [TextBlock(text="better")]


async def test_a_turn_may_depend_on_the_request() -> None:
    async def later(asked: ChatRequest) -> list[Any]:
        return [("count", {"n": len(asked.messages)})]

    provider = MockProvider([lambda asked: f"you said {asked.messages[0].content}", later])
    assert (await provider.complete(request("hello"))).content == [TextBlock(text="you said hello")]
    assert provider.parse_tool_calls(await provider.complete(request()))[0].arguments == {"n": 1}


async def test_requests_are_remembered_as_they_were() -> None:
    provider, asked = MockProvider(), request("first")
    assert provider.last_request is None
    await provider.complete(asked)
    asked.messages.append(Message(role="user", content="second"))
    assert provider.last_request == provider.requests[0] == request("first")
    assert repr(provider) == "<MockProvider 'mock' called 1 times>"


async def test_it_describes_itself_and_its_model_consistently() -> None:
    provider = MockProvider(name="tiny", defaults={"context_window": 1000})
    info, models = provider.get_info(), await provider.list_models()
    assert info.id == "tiny"
    assert info.defaults["context_window"] == models[0].context_window == 1000
    assert info.defaults["max_output_tokens"] == models[0].max_output_tokens == 4096


@pytest.mark.virtual_time
async def test_delays_add_up_on_the_clock_of_the_loop() -> None:
    provider = MockProvider([Delayed(20, "late"), Delayed(5, RuntimeError("late too"))], delay=1)
    began = anyio.current_time()
    await provider.complete(request())
    assert anyio.current_time() - began == pytest.approx(21)
    with pytest.raises(RuntimeError):
        await provider.complete(request())
    assert anyio.current_time() - began == pytest.approx(27)


async def test_a_turn_that_cannot_be_played_is_refused_with_what_can() -> None:
    with pytest.raises(TypeError, match=r"cannot play 42; expected text, a ToolCall, \(name, arguments\)"):
        await MockProvider([42]).complete(request())  # type: ignore[list-item]  # the mistake under test
    with pytest.raises(TypeError, match="takes a list of turns"):
        MockProvider("hello")
