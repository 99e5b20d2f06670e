"""P22: read without a block it goes on after its reader was cancelled, as if nothing had happened."""

from contextlib import asynccontextmanager

import anyio.lowlevel

from amplifier.models import (
    ChatResponse,
    ModelInfo,
    ProviderInfo,
    StreamChunk,
    TextBlock,
    ToolCall,
    Usage,
)

__amplifier_module_type__ = "provider"


class Words:
    """One answer: a context manager and an iterator over one generator."""

    def __init__(self, chunks):
        self.chunks = chunks

    async def __aenter__(self):
        return self.chunks

    async def __aexit__(self, *error):
        await self.chunks.aclose()

    def __aiter__(self):
        return self

    async def __anext__(self):
        await anyio.lowlevel.checkpoint()
        return await anext(self.chunks)

    async def aclose(self):
        await self.chunks.aclose()


class StreamingProvider:
    name = "words"

    def __init__(self, hooks, window):
        self.hooks = hooks
        self.window = window

    def get_info(self):
        defaults = {"context_window": self.window, "max_output_tokens": self.window // 4}
        return ProviderInfo(id=self.name, display_name="Words", capabilities=["streaming"], defaults=defaults)

    async def list_models(self):
        return [
            ModelInfo(id="words", display_name="Words", context_window=self.window, max_output_tokens=self.window // 4)
        ]

    def stream(self, request, **kwargs):
        return Words(self._chunks(request))

    async def _chunks(self, request):
        words = ["There", " are ", str(len(request.messages)), " messages."]
        yield StreamChunk(kind="block_start", index=0, block_type="text")
        for word in words:
            await anyio.lowlevel.checkpoint()
            yield StreamChunk(kind="block_delta", index=0, block_type="text", text=word)
        block = TextBlock(text="".join(words))
        yield StreamChunk(kind="block_end", index=0, block_type="text", block=block)
        asked = len(request.messages) * 10
        usage = Usage(input_tokens=asked, output_tokens=4, total_tokens=asked + 4)
        await self.hooks.emit("llm:response", {"usage": {"input_tokens": asked, "output_tokens": 4}})
        yield StreamChunk(kind="response", response=ChatResponse(content=[block], usage=usage))

    async def complete(self, request, **kwargs):
        response = None
        async with self.stream(request, **kwargs) as chunks:
            async for chunk in chunks:
                response = chunk.response
        return response

    def parse_tool_calls(self, response):
        if response.tool_calls is not None:
            return list(response.tool_calls)
        return [ToolCall(id=b.id, name=b.name, arguments=b.input) for b in response.content if b.type == "tool_call"]


@asynccontextmanager
async def mount(coordinator, config):
    provider = StreamingProvider(coordinator.hooks, config.get("context_window", 16_000))
    await coordinator.mount("providers", provider)
    yield provider
