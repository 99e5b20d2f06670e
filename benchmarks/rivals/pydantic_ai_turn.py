"""The scripted turn with pydantic-ai: a function as the model, one tool."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel


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
