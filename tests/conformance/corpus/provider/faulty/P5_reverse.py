"""A provider that answers with the words of the newest message in reverse order; used in demonstrations of budgets.

Fault: the usage of a response is the running total of the provider, not what this call consumed; whoever adds usages counts early
calls again and again.
"""

from __future__ import annotations

from typing import Any

from amplifier import ChatRequest, ChatResponse, ModelInfo, ProviderInfo, TextBlock, ToolCall, Usage, to_dict

__amplifier_module_type__ = "provider"
MODEL = "reverse-1"


def words_of(content: Any) -> list[str]:
    if isinstance(content, str):
        return content.split()
    return [word for block in content if isinstance(block, TextBlock) for word in block.text.split()]


class Meter:
    """Counts tokens; a word is a token here."""

    def __init__(self) -> None:
        self.input = 0
        self.output = 0

    def count(self, asked: int, answered: int) -> Usage:
        self.input += asked
        self.output += answered
        return Usage(input_tokens=self.input, output_tokens=self.output, total_tokens=self.input + self.output)


class ReverseProvider:
    name = "reverse"

    def __init__(self, hooks: Any) -> None:
        self._hooks = hooks
        self._meter = Meter()

    def get_info(self) -> ProviderInfo:
        defaults = {"model": MODEL, "context_window": 16_000, "max_output_tokens": 2_000}
        return ProviderInfo(id=self.name, display_name="Reverse", defaults=defaults)

    async def list_models(self) -> list[ModelInfo]:
        return [ModelInfo(id=MODEL, display_name="Reverse", context_window=16_000, max_output_tokens=2_000)]

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        await self._hooks.emit("llm:request", {"provider": self.name, "model": MODEL})
        newest = words_of(request.messages[-1].content) if request.messages else []
        limit = request.max_output_tokens or 2_000
        answer = list(reversed(newest))[:limit] or ["Nothing."]
        asked = sum(len(words_of(each.content)) for each in request.messages) + 1
        usage = self._meter.count(asked, len(answer))
        report = {"provider": self.name, "model": MODEL, "status": "ok", "usage": to_dict(usage)}
        await self._hooks.emit("llm:response", report)
        return ChatResponse(content=[TextBlock(text=" ".join(answer))], usage=usage, finish_reason="stop")

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return list(response.tool_calls or [])


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    await coordinator.mount("providers", ReverseProvider(coordinator.hooks))
