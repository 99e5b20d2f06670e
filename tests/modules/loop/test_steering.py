"""Messages that come while a turn runs: taken in at the next step, never lost without an error."""

from __future__ import annotations

from typing import Any

import pytest

from amplifier import AmplifierSession, on, tool
from amplifier.errors import SessionStateError
from amplifier.modules.loop._messages import unfinished_turn


def plan_of(
    loop: str, *responses: Any, tools: list[Any] | None = None, hooks: list[Any] | None = None
) -> dict[str, Any]:
    return {
        "session": {"orchestrator": {"module": loop}, "context": {"module": "context-simple"}},
        "providers": [{"module": "provider-mock", "config": {"responses": list(responses)}}],
        "tools": tools or [],
        "hooks": hooks or [],
    }


def spoken(messages: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [
        (message["role"], message["content"]) for message in messages if message["role"] == "user"
    ]


async def test_message_during_tool_is_in_next_request(loop: str):
    seen: list[dict[str, Any]] = []

    @tool
    async def look() -> str:
        """Look around."""
        session.steer("in blue, please")
        session.steer("and large")
        return "seen"

    @on("orchestrator:steering_injected")
    async def listen(event: str, data: dict[str, Any]) -> None:
        seen.append(
            {key: data[key] for key in ("orchestrator", "content", "iteration", "queued_remaining")}
        )

    asks = {"tool_calls": [{"name": "look", "arguments": {}}]}
    session = AmplifierSession(plan_of(loop, asks, "Done.", tools=[look], hooks=[listen]))
    async with session:
        assert await session.execute("paint it") == "Done."
        messages = await session.messages()
    assert [message["role"] for message in messages] == [
        "user",
        "assistant",
        "tool",
        "user",
        "user",
        "assistant",
    ]
    assert spoken(messages)[1:] == [("user", "in blue, please"), ("user", "and large")]
    about = {"orchestrator": loop, "iteration": 2}
    assert seen == [
        {**about, "content": "in blue, please", "queued_remaining": 1},
        {**about, "content": "and large", "queued_remaining": 0},
    ]


async def test_message_with_last_answer_is_answered():
    @on("provider:response")
    async def late(event: str, data: dict[str, Any]) -> None:
        if data["iteration"] == 1:
            session.steer("one more thing")

    session = AmplifierSession(plan_of("loop-streaming", "First.", "Second.", hooks=[late]))
    async with session:
        assert await session.execute("go") == "Second."
        assert spoken(await session.messages()) == [("user", "go"), ("user", "one more thing")]


async def test_message_without_reading_turn_is_refused():
    heard: list[str] = []

    @on("prompt:complete")
    async def too_late(event: str, data: dict[str, Any]) -> None:
        with pytest.raises(SessionStateError, match="no turn is running that would read"):
            session.steer("too late")
        heard.append(event)

    session = AmplifierSession(plan_of("loop-basic", "Done.", hooks=[too_late]))
    async with session:
        with pytest.raises(SessionStateError, match="no turn is running"):
            session.steer("too early")
        await session.execute("go")
        assert heard == ["prompt:complete"]
        assert spoken(await session.messages()) == [("user", "go")]


@pytest.mark.parametrize("message", ["", " \n", None])
async def test_invalid_message_is_refused(message: Any):
    problems: list[Exception] = []

    @on("provider:request")
    async def steer(event: str, data: dict[str, Any]) -> None:
        try:
            session.steer(message)
        except ValueError as problem:
            problems.append(problem)

    session = AmplifierSession(plan_of("loop-basic", "Done.", hooks=[steer]))
    async with session:
        await session.execute("go")
    assert len(problems) == 1


async def test_stopped_turn_takes_no_messages():
    @on("provider:response")
    async def stop(event: str, data: dict[str, Any]) -> None:
        session.steer("go on")
        session.coordinator.cancellation.request_graceful()

    session = AmplifierSession(plan_of("loop-basic", "First.", "Second.", hooks=[stop]))
    async with session:
        assert await session.execute("go") == "First."
        assert spoken(await session.messages()) == [("user", "go")]


async def test_loop_without_steering_is_reported():
    class Loop:
        async def execute(self, prompt: str) -> str:
            with pytest.raises(
                SessionStateError, match="orchestrator Loop takes no messages while a turn runs"
            ):
                session.steer("hey")
            return "done"

    session = AmplifierSession({"session": {"orchestrator": Loop(), "context": "context-simple"}})
    async with session:
        assert await session.execute("go") == "done"


def test_resumed_turn_begins_with_its_prompt():
    inside = {"role": "user", "content": "in blue", "metadata": {"source": "steering"}}
    stored: list[dict[str, Any]] = [
        {"role": "user", "content": "paint it"},
        {"role": "assistant", "content": "So."},
        inside,
    ]
    unfinished = unfinished_turn(stored)
    assert unfinished is not None
    assert (unfinished.prompt, unfinished.iterations) == ("paint it", 1)
