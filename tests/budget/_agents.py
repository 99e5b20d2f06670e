"""Agents with budgets whose models are functions."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import anyio
import attrs

from amplifier import AmplifierSession, ToolResult
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    ModelInfo,
    ProviderInfo,
    StreamChunk,
    TextBlock,
    ToolCall,
    ToolCallBlock,
    Usage,
)

INPUT = 10
"""Input tokens that a `Model` reports for every call; a request has more by the budget's estimate."""

_ids = itertools.count(1)


@attrs.define
class Answer:
    """What a model answers.

    Attributes:
        calls: Tool calls, as name and input.
        tokens: Output tokens it would like to return; it stops at the limit of the request.
        delay: Seconds before the answer.
        error: Raised instead.
    """

    text: str = "done"
    calls: list[tuple[str, dict[str, Any]]] = attrs.field(factory=list)
    tokens: int = 20
    delay: float = 0.0
    error: Exception | None = None


Script = Callable[[ChatRequest], Answer]


class Model:
    """A provider whose answers are a function of the request; its tokens cost a thousandth of a dollar each."""

    name = "model"

    def __init__(
        self, script: Script = lambda request: Answer(), *, usual: int | None = 1_000
    ) -> None:
        self._script = script
        self._usual = usual
        self.requests: list[ChatRequest] = []
        self.spent = 0

    def get_info(self) -> ProviderInfo:
        defaults: dict[str, Any] = {"model": "small", "context_window": 100_000}
        if self._usual is not None:
            defaults["max_output_tokens"] = self._usual
        return ProviderInfo(
            id=self.name, display_name="Model", capabilities=["tools"], defaults=defaults
        )

    async def list_models(self) -> list[ModelInfo]:
        return []

    def estimate_cost(
        self, request: ChatRequest, *, input_tokens: int, output_tokens: int, **kwargs: Any
    ) -> Decimal | None:
        return Decimal(input_tokens + output_tokens) / 1000

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        self.requests.append(request)
        answer = self._script(request)
        await anyio.sleep(answer.delay)
        if answer.error is not None:
            raise answer.error
        return self._response(request, answer)

    def _response(self, request: ChatRequest, answer: Answer) -> ChatResponse:
        returned = (
            answer.tokens
            if request.max_output_tokens is None
            else min(answer.tokens, request.max_output_tokens)
        )
        calls = [
            ToolCall(id=f"call-{next(_ids)}", name=name, arguments=given)
            for name, given in answer.calls
        ]
        self.spent += INPUT + returned
        return ChatResponse(
            content=[
                TextBlock(text=answer.text),
                *(
                    ToolCallBlock(id=call.id, name=call.name, input=call.arguments)
                    for call in calls
                ),
            ],
            tool_calls=calls or None,
            usage=Usage(
                input_tokens=INPUT,
                output_tokens=returned,
                total_tokens=INPUT + returned,
                cost_usd=Decimal(INPUT + returned) / 1000,
            ),
        )

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return list(response.tool_calls or ())


class StreamingModel(Model):
    """The same in pieces, with the delay of the answer before each of them."""

    pieces = 4

    @asynccontextmanager
    async def stream(self, request: ChatRequest, **kwargs: Any) -> Any:
        self.requests.append(request)
        answer = self._script(request)

        async def chunks() -> Any:
            for _ in range(self.pieces):
                await anyio.sleep(answer.delay)
                yield StreamChunk(kind="block_delta", index=0, block_type="text", text="x" * 30)
            if answer.error is not None:
                raise answer.error
            yield StreamChunk(kind="response", response=self._response(request, answer))

        iterator = chunks()
        try:
            yield iterator
        finally:
            await iterator.aclose()


class Work:
    """A tool that calls a function."""

    description = "Works."
    input_schema: Mapping[str, Any] = {"type": "object"}

    def __init__(
        self, name: str, run: Callable[[dict[str, Any]], Awaitable[Any]] | None = None
    ) -> None:
        self.name = name
        self._run = run
        self.runs = 0

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 — the contract's name
        self.runs += 1
        return ToolResult(output=None if self._run is None else await self._run(input))


def agent(
    model: Any,
    *tools: Any,
    loop: str = "loop-basic",
    budget: Mapping[str, Any] | None,
    **options: Any,
) -> AmplifierSession:
    """A session of built-in modules around a model and tools."""
    session: dict[str, Any] = {
        "orchestrator": {"module": loop, "config": {"max_retries": 0}},
        "context": "context-simple",
    }
    if budget is not None:
        session["budget"] = dict(budget)
    return AmplifierSession(
        {"session": session, "providers": [model], "tools": list(tools)}, **options
    )


def pairs_of(messages: list[Any]) -> tuple[list[str], list[str]]:
    """The ids of tool calls and of tool results in a transcript."""
    calls = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
    return calls, [message["tool_call_id"] for message in messages if message.get("role") == "tool"]
