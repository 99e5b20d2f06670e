"""The scripted turn with pydantic-ai: a function as the model, one tool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from benchmarks.payloads import exchanged_texts
from benchmarks.rivals.pieces import preparing


async def prepare() -> Callable[[], Awaitable[Any]]:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("look", {"n": 0}, tool_call_id="c0")])
        return ModelResponse(parts=[TextPart("Done.")])

    agent = Agent(FunctionModel(model))

    @agent.tool_plain
    async def look(n: int) -> str:
        """Looks."""
        return "seen"

    async def work() -> None:
        result = await agent.run("go")
        assert result.output == "Done."

    return work


async def prepare_long(size: int) -> Callable[[], Awaitable[Any]]:
    """One model call after so many messages."""

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart("Done.")])

    agent = Agent(FunctionModel(model))
    history: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart(text)])
        if at % 2 == 0
        else ModelResponse(parts=[TextPart(text)])
        for at, text in enumerate(exchanged_texts(size))
    ]

    async def work() -> None:
        result = await agent.run("go", message_history=history)
        assert result.output == "Done."

    return work


# ── streamed ──


async def streamed_text(pieces: int, pause: float) -> AsyncIterator[str]:
    """The pieces of one turn, with a pause before each."""

    async def model(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        for _ in range(pieces):
            await asyncio.sleep(pause)
            yield "piece "

    async with Agent(FunctionModel(stream_function=model)).run_stream("go") as result:
        async for text in result.stream_text(delta=True, debounce_by=None):
            yield text


prepare_stream = preparing(streamed_text)
