"""The scripted turn with openai-agents: a scripted model, one tool, tracing switched off."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from benchmarks.payloads import exchanged_texts

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
                arguments='{"n": 0}', call_id="c0", name="look", type="function_call", id="f0", status="completed"
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
        result = await Runner.run(agent, [*history, {"role": "user", "content": "go"}], run_config=options)
        assert result.final_output == "Done."

    return work
