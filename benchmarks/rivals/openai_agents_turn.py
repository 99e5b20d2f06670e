"""The scripted turn with openai-agents: a scripted model, one tool, tracing switched off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from agents import (
    Agent,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
)

from benchmarks.payloads import exchanged_texts
from benchmarks.rivals.pieces import preparing

set_tracing_disabled(True)


class Scripted(Model):
    """Wants the tool first, then answers."""

    def __init__(self, calls: int = 0) -> None:
        self._calls = calls

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        self._calls += 1
        output: Any
        if self._calls % 2:
            output = ResponseFunctionToolCall(
                arguments='{"n": 0}',
                call_id="c0",
                name="look",
                type="function_call",
                id="f0",
                status="completed",
            )
        else:
            text = ResponseOutputText(annotations=[], text="Done.", type="output_text", logprobs=[])
            output = ResponseOutputMessage(
                id="m0", content=[text], role="assistant", status="completed", type="message"
            )
        usage = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
        return ModelResponse(output=[output], usage=usage, response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError


@function_tool
async def look(n: int) -> str:
    """Looks."""
    return "seen"


async def prepare() -> Callable[[], Awaitable[Any]]:
    agent = Agent(name="bench", model=Scripted(), tools=[look])
    options = RunConfig(tracing_disabled=True)

    async def work() -> None:
        result = await Runner.run(agent, "go", run_config=options)
        assert result.final_output == "Done."

    return work


async def prepare_long(size: int) -> Callable[[], Awaitable[Any]]:
    """One model call after so many messages."""
    history: list[Any] = [
        {"role": "user" if at % 2 == 0 else "assistant", "content": text}
        for at, text in enumerate(exchanged_texts(size))
    ]
    options = RunConfig(tracing_disabled=True)

    async def work() -> None:
        agent = Agent(name="bench", model=Scripted(calls=1))
        result = await Runner.run(
            agent, [*history, {"role": "user", "content": "go"}], run_config=options
        )
        assert result.final_output == "Done."

    return work


# ── streamed ──


class ScriptedStream(Scripted):
    """Sends pieces with a pause before each."""

    def __init__(self, pieces: int, pause: float) -> None:
        super().__init__()
        self._pieces = pieces
        self._pause = pause

    async def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        for number in range(self._pieces):
            await asyncio.sleep(self._pause)
            yield ResponseTextDeltaEvent(
                content_index=0, delta="piece ", item_id="m0", output_index=0, sequence_number=number,
                type="response.output_text.delta", logprobs=[],
            )  # fmt: skip
        text = ResponseOutputText(
            annotations=[], text="piece " * self._pieces, type="output_text", logprobs=[]
        )
        message = ResponseOutputMessage(
            id="m0", content=[text], role="assistant", status="completed", type="message"
        )
        response = Response(
            id="r0", created_at=0, model="bench", object="response", output=[message], parallel_tool_calls=False,
            tool_choice="auto", tools=[],
        )  # fmt: skip
        yield ResponseCompletedEvent(
            response=response, sequence_number=self._pieces, type="response.completed"
        )


async def streamed_text(pieces: int, pause: float) -> AsyncIterator[str]:
    """The pieces of one turn."""
    agent = Agent(name="bench", model=ScriptedStream(pieces, pause))
    result = Runner.run_streamed(agent, "go", run_config=RunConfig(tracing_disabled=True))
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            yield event.data.delta


prepare_stream = preparing(streamed_text)
