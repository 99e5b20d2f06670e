"""Requests of one session begin alike, byte for byte; what breaks that is told with its reason, its size and its price."""

from __future__ import annotations

import itertools
from decimal import Decimal
from typing import Any

import orjson
from hypothesis import event, given
from hypothesis import strategies as st

from amplifier import AmplifierSession
from amplifier.models import HookResult, to_dict
from amplifier.testing import EventRecorder, MockProvider, MockTool


def session(
    provider: Any, loop: str = "loop-basic", context: Any = "context-simple", tools: Any = ()
) -> AmplifierSession:
    orchestrator = {"module": loop, "config": {"system_prompt": "Be brief."}}
    plan = {
        "session": {"orchestrator": orchestrator, "context": context},
        "providers": [provider],
        "tools": [*tools],
    }
    return AmplifierSession(plan)


def record(opened: AmplifierSession) -> EventRecorder:
    recorder = EventRecorder()
    for name in ("context:cache_break", "context:compaction"):
        opened.coordinator.hooks.register(name, recorder, name="recorder")
    return recorder


def written(request: Any) -> tuple[bytes, list[bytes]]:
    return orjson.dumps([to_dict(tool) for tool in request.tools or ()]), [
        orjson.dumps(to_dict(message)) for message in request.messages
    ]


async def test_unchanged_prefix_emits_no_event(loop):
    provider = MockProvider([("look", {"path": "a"}), "Seen."] * 3)
    async with session(provider, loop, tools=[MockTool("look"), MockTool("other")]) as opened:
        recorder = record(opened)
        for number in range(3):
            await opened.execute(f"Look, time {number}.")
    assert recorder.get_events("context:cache_break") == []
    requests = [written(request) for request in provider.requests]
    for (tools, before), (tools_then, then) in itertools.pairwise(requests):
        assert tools == tools_then
        assert then[: len(before)] == before


async def test_one_time_hook_message_is_not_break():
    provider = MockProvider(["One.", "Two.", "Three."])

    def remind(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(action="inject_context", context_injection="It is late.", ephemeral=True)

    async with session(provider) as opened:
        recorder = record(opened)
        opened.coordinator.hooks.register("provider:request", remind, name="remind")
        for number in range(3):
            await opened.execute(f"Go on, {number}.")
    assert "It is late." in str(provider.last_request.messages)
    assert recorder.get_events("context:cache_break") == []


async def test_mounted_tool_breaks_cache():
    provider = MockProvider(["One.", "Two.", "Three."])
    async with session(provider, tools=[MockTool("look")]) as opened:
        recorder = record(opened)
        await opened.execute("word " * 400)
        await opened.coordinator.mount("tools", MockTool("other"))
        await opened.execute("Go on.")
        await opened.execute("Go on.")
    [(_, told)] = recorder.get_events("context:cache_break")
    assert (told["reason"], told["same_messages"]) == ("tools", 0)
    assert told["tokens"] > 400
    assert Decimal(told["cost_usd"]) >= 0


async def test_compaction_breaks_cache_with_both_events():
    context = {"module": "context-simple", "config": {"summary_seconds": None}}
    provider = MockProvider(
        lambda request: "word " * 100, defaults={"context_window": 3000, "max_output_tokens": 1000}
    )
    async with session(provider, context=context) as opened:
        recorder = record(opened)
        for number in range(20):
            await opened.execute(f"Request {number}: " + "word " * 100)
    breaks, compactions = (
        recorder.get_events("context:cache_break"),
        recorder.get_events("context:compaction"),
    )
    assert 0 < len(breaks) == len(compactions) < 10, "one for each, and few of them"
    assert {told["reason"] for _, told in breaks} == {"messages"}
    assert {told["same_messages"] for _, told in breaks} == {2}, (
        "the instructions and the first request stay where they are"
    )


@given(
    sizes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), min_size=2, max_size=8),
    mounted=st.sets(st.integers(1, 7), max_size=2),
    asked=st.sets(st.integers(1, 7), max_size=2),
)
async def test_changed_prefix_always_emits_event(sizes, mounted, asked):
    """Turns with tool results of drawn sizes in a small window, between which tools are mounted and compactions asked for."""
    window = {"context_window": 3000, "max_output_tokens": 1000}
    broken: list[bool] = []
    recorder = EventRecorder()

    def answer(request: Any) -> Any:
        broken.append(bool(recorder.get_events("context:cache_break")))
        recorder.clear()
        return "Seen." if request.messages[-1].role == "tool" else [("look", {})]

    provider = MockProvider(answer, defaults=window)
    found = iter(words for _, words in sizes)
    look = MockTool("look", respond=lambda given: "seen " * next(found))
    context = {"module": "context-simple", "config": {"summary_seconds": None}}
    async with session(provider, context=context, tools=[look]) as opened:
        for name in ("context:cache_break", "context:compaction"):
            opened.coordinator.hooks.register(name, recorder, name="recorder")
        for number, (words, _) in enumerate(sizes):
            if number in mounted:
                await opened.coordinator.mount("tools", MockTool(f"tool_{number}"))
            if number in asked:
                await opened.coordinator.get("context").compact()
            await opened.execute(f"Request {number} " + "word " * words)
    requests = [written(request) for request in provider.requests]
    for is_told, (before, then) in zip(broken[1:], itertools.pairwise(requests), strict=True):
        is_same = then[0] == before[0] and then[1][: len(before[1])] == before[1]
        assert is_told is not is_same
        event("broken" if is_told else "alike")
