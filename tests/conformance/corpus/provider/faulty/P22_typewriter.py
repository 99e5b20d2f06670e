"""A provider that streams a fixed text word by word; at most two answers are written at the same time.

Fault: a stream that its reader leaves early, with a break inside `async with`, keeps its slot; after two such streams the provider
never answers again.
"""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel

from amplifier import ChatRequest, ChatResponse, ModelInfo, ProviderInfo, TextBlock, ToolCall, Usage, to_dict
from amplifier.models import StreamChunk

__amplifier_module_type__ = "provider"
MODEL = "typewriter"


class WordStream:
    """An async context manager and an async iterator over the same chunks."""

    def __init__(self, slots: anyio.Semaphore, response: ChatResponse, text: str) -> None:
        self._slots = slots
        self._holds = False
        words = [word + " " for word in text.split()]
        words[-1] = words[-1].rstrip()
        self._chunks = [
            StreamChunk(kind="block_start", index=0, block_type="text"),
            *(StreamChunk(kind="block_delta", index=0, block_type="text", text=word) for word in words),
            StreamChunk(kind="block_end", index=0, block_type="text", block=TextBlock(text=text)),
            StreamChunk(kind="response", response=response),
        ]

    async def __aenter__(self) -> WordStream:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._chunks.clear()

    def __aiter__(self) -> WordStream:
        return self

    async def __anext__(self) -> StreamChunk:
        if not self._chunks:
            self._let_go()
            raise StopAsyncIteration
        if not self._holds:
            await self._slots.acquire()
            self._holds = True
        try:
            await anyio.lowlevel.checkpoint()
        except BaseException:
            self._let_go()
            self._chunks.clear()
            raise
        chunk = self._chunks.pop(0)
        if not self._chunks:
            self._let_go()
        return chunk

    def _let_go(self) -> None:
        if self._holds:
            self._holds = False
            self._slots.release()


class TypewriterProvider:
    name = "typewriter"

    def __init__(self, hooks: Any, text: str) -> None:
        self._hooks = hooks
        self._text = text
        self._slots = anyio.Semaphore(2)

    def get_info(self) -> ProviderInfo:
        defaults = {"model": MODEL, "context_window": 10_000, "max_output_tokens": 100}
        return ProviderInfo(id=self.name, display_name="Typewriter", capabilities=["streaming"], defaults=defaults)

    async def list_models(self) -> list[ModelInfo]:
        return [ModelInfo(id=MODEL, display_name="Typewriter", context_window=10_000, max_output_tokens=100)]

    def _response(self, request: ChatRequest) -> ChatResponse:
        asked = sum(len(str(each.content)) for each in request.messages) // 4 + 1
        answered = len(self._text) // 4 + 1
        usage = Usage(input_tokens=asked, output_tokens=answered, total_tokens=asked + answered)
        return ChatResponse(content=[TextBlock(text=self._text)], usage=usage, finish_reason="stop")

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        await self._hooks.emit("llm:request", {"provider": self.name, "model": MODEL})
        async with self._slots:
            await anyio.lowlevel.checkpoint()
            response = self._response(request)
        await self._hooks.emit(
            "llm:response", {"provider": self.name, "model": MODEL, "status": "ok", "usage": to_dict(response.usage)}
        )
        return response

    def stream(self, request: ChatRequest, **kwargs: Any) -> WordStream:
        return WordStream(self._slots, self._response(request), self._text)

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return list(response.tool_calls or [])


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    text = str((config or {}).get("text") or "The quick brown fox jumps over the lazy dog.")
    await coordinator.mount("providers", TypewriterProvider(coordinator.hooks, text))
