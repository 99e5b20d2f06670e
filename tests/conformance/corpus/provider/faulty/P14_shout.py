"""A provider that answers in capital letters and tells how long it has been thinking.

Fault: the text under work is kept on the provider between two awaits; of two calls at the same time the first returns the answer
to the second one's question.
"""

from __future__ import annotations

from typing import Any

import anyio

from amplifier import ChatRequest, ChatResponse, ModelInfo, ProviderInfo, TextBlock, ToolCall, Usage, to_dict

__amplifier_module_type__ = "provider"
MODEL = "shout-1"


class ShoutProvider:
    name = "shout"

    def __init__(self, hooks: Any, delay: float) -> None:
        self._hooks = hooks
        self._delay = delay
        self._draft = ""

    def get_info(self) -> ProviderInfo:
        defaults = {"model": MODEL, "context_window": 4_000, "max_output_tokens": 400}
        return ProviderInfo(id=self.name, display_name="Shout", defaults=defaults)

    async def list_models(self) -> list[ModelInfo]:
        return [ModelInfo(id=MODEL, display_name="Shout", context_window=4_000, max_output_tokens=400)]

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        await self._hooks.emit("llm:request", {"provider": self.name, "model": MODEL})
        self._draft = self._newest_text(request)
        await anyio.sleep(self._delay)
        text = self._draft.upper()[:1_500] or "?"
        asked = sum(len(str(each.content)) for each in request.messages) // 4 + 1
        answered = len(text) // 4 + 1
        usage = Usage(input_tokens=asked, output_tokens=answered, total_tokens=asked + answered)
        await self._hooks.emit(
            "llm:response", {"provider": self.name, "model": MODEL, "status": "ok", "usage": to_dict(usage)}
        )
        return ChatResponse(
            content=[TextBlock(text=text)],
            usage=usage,
            finish_reason="stop",
        )

    def _newest_text(self, request: ChatRequest) -> str:
        for message in reversed(request.messages):
            if message.role != "user":
                continue
            if isinstance(message.content, str):
                return message.content
            return " ".join(block.text for block in message.content if isinstance(block, TextBlock))
        return ""

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return list(response.tool_calls or [])


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    delay = float((config or {}).get("delay", 0.05))
    await coordinator.mount("providers", ShoutProvider(coordinator.hooks, delay))
