"""Answers with an outline of the conversation, computed locally; answers are cached, since the outline of a long one takes time.

Fault: the key of the cache is the newest user message alone; the same words in another conversation, or under another system
message, get the answer of the first one.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Any

from amplifier import ChatRequest, ChatResponse, Message, ModelInfo, ProviderInfo, TextBlock, ToolCall, Usage, to_dict

__amplifier_module_type__ = "provider"
logger = logging.getLogger(__name__)
MODEL = "outline-1"


def text_of(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    return " ".join(block.text for block in message.content if isinstance(block, TextBlock))


class OutlineProvider:
    name = "outline"

    def __init__(self, hooks: Any, cache_size: int) -> None:
        self._hooks = hooks
        self._cache: OrderedDict[str, str] = OrderedDict()
        self._cache_size = cache_size

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(
            id=self.name,
            display_name="Outline",
            defaults={"model": MODEL, "context_window": 32_000, "max_output_tokens": 1_000},
        )

    async def list_models(self) -> list[ModelInfo]:
        return [ModelInfo(id=MODEL, display_name="Outline", context_window=32_000, max_output_tokens=1_000)]

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        await self._hooks.emit("llm:request", {"provider": self.name, "model": MODEL})
        newest = next((text_of(each) for each in reversed(request.messages) if each.role == "user"), "")
        text = self._cache.get(newest)
        if text is None:
            text = self._outline(request)
            self._cache[newest] = text
            if len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
        asked = sum(len(text_of(each)) for each in request.messages) // 4 + 1
        usage = Usage(input_tokens=asked, output_tokens=len(text) // 4 + 1, total_tokens=asked + len(text) // 4 + 1)
        await self._hooks.emit(
            "llm:response", {"provider": self.name, "model": MODEL, "status": "ok", "usage": to_dict(usage)}
        )
        return ChatResponse(content=[TextBlock(text=text)], usage=usage, finish_reason="stop")

    def _outline(self, request: ChatRequest) -> str:
        lines = []
        for number, message in enumerate(request.messages, 1):
            words = text_of(message).split()[:6]
            lines.append(f"{number}. {message.role}: {' '.join(words)}")
        return "\n".join(lines)[:2_000] or "There is nothing to outline."

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return list(response.tool_calls or [])


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    await coordinator.mount("providers", OutlineProvider(coordinator.hooks, int((config or {}).get("cache_size", 64))))
