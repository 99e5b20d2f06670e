"""ScriptedOrchestrator: scripted answers inside a complete turn."""

from __future__ import annotations

import anyio
import pytest

from amplifier.testing import EventRecorder, MockContextManager, ScriptedOrchestrator


async def test_responses_are_given_in_order_and_then_no_more() -> None:
    loop = ScriptedOrchestrator(responses=["Response 1", "Response 2"])
    assert await loop.execute("a") == "Response 1"
    with pytest.raises(AssertionError, match="1 of 2 responses never played: 'Response 2'"):
        loop.assert_exhausted()
    assert await loop.execute("b") == "Response 2"
    loop.assert_exhausted()
    with pytest.raises(AssertionError, match=r"unexpected call 3, execute\('c'\); expected 2 responses"):
        await loop.execute("c")
    assert loop.prompts == ["a", "b", "c"]
    assert repr(loop) == "<ScriptedOrchestrator called 3 times>"


async def test_a_turn_stores_the_conversation_and_emits_the_events_of_the_contract() -> None:
    context, hooks = MockContextManager(), EventRecorder()
    with ScriptedOrchestrator(["yes"]) as loop:
        await loop.execute(prompt="well?", context=context, providers={}, tools={}, hooks=hooks, coordinator=None)
    assert context.messages == [{"role": "user", "content": "well?"}, {"role": "assistant", "content": "yes"}]
    assert hooks.events == [
        ("execution:start", {"prompt": "well?"}),
        ("execution:end", {"response": "yes", "status": "completed"}),
        ("orchestrator:complete", {"orchestrator": "ScriptedOrchestrator", "turn_count": 1, "status": "success"}),
    ]
    assert loop.calls[0].keys() == {"prompt", "context", "providers", "tools", "hooks", "coordinator"}


async def test_a_response_may_be_an_exception_or_a_function_of_the_prompt() -> None:
    async def shout(prompt: str) -> str:
        return prompt.upper()

    hooks = EventRecorder()
    with ScriptedOrchestrator([LookupError("lost"), str.title, shout]) as loop:
        with pytest.raises(LookupError, match="lost"):
            await loop.execute("a", hooks=hooks)
        assert await loop.execute("quiet") == "Quiet"
        assert await loop.execute("quiet") == "QUIET"
    assert [data.get("status") for _, data in hooks.events] == [None, "error", "incomplete"]


@pytest.mark.virtual_time
async def test_a_cancelled_turn_emits_its_end() -> None:
    hooks = EventRecorder()
    with anyio.move_on_after(1) as scope:
        await ScriptedOrchestrator(["late"], delay=60).execute("a", hooks=hooks)
    assert scope.cancelled_caught
    assert [data.get("status") for _, data in hooks.events] == [None, "cancelled", "cancelled"]


async def test_what_is_not_text_is_refused() -> None:
    with pytest.raises(TypeError, match="takes a list of responses"):
        ScriptedOrchestrator("hello")
    with pytest.raises(TypeError, match="cannot answer with 42"):
        await ScriptedOrchestrator([42]).execute("a")  # type: ignore[list-item]  # the mistake under test
