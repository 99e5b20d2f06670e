"""Streams in pieces.

Planted: a last piece of less than sixteen characters is not sent.
"""

import json
import uuid

import anyio
import anyio.lowlevel

from amplifier.models import (
    ChatResponse,
    ModelInfo,
    ProviderInfo,
    StreamChunk,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolCallBlock,
    Usage,
    to_dict,
)

__amplifier_module_type__ = "provider"


def as_wire(message):
    content = message.content if isinstance(message.content, str) else [to_dict(block) for block in message.content]
    return {"role": message.role, "content": content, "tool_call_id": message.tool_call_id}


class Reply:
    """One streamed answer: a context manager, and an iterator that closes itself."""

    def __init__(self, chunks):
        self.chunks = chunks

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        await self.aclose()

    def __aiter__(self):
        return self

    async def __anext__(self):
        try:
            return await self.chunks.__anext__()
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self):
        with anyio.CancelScope(shield=True):
            await self.chunks.aclose()


class Parrot:
    name = "parrot"

    def __init__(self, hooks, config):
        self.hooks = hooks
        self.window = config.get("context_window", 32_000)

    def get_info(self):
        defaults = {"model": "parrot-1", "context_window": self.window, "max_output_tokens": 2048}
        return ProviderInfo(id=self.name, display_name="Parrot", capabilities=["tools"], defaults=defaults)

    async def list_models(self):
        return [ModelInfo(id="parrot-1", display_name="Parrot", context_window=self.window, max_output_tokens=2048)]

    def stream(self, request, **kwargs):
        return Reply(self.chunks(request))

    async def chunks(self, request):
        response = await self.answer(request)
        for index, block in enumerate(response.content):
            yield StreamChunk(kind="block_start", index=index, block_type=block.type)
            whole = {"thinking": "thinking", "text": "text"}.get(block.type)
            text = getattr(block, whole) if whole else json.dumps(block.input)
            for start in range(0, len(text) - len(text) % 16, 16):
                await anyio.lowlevel.checkpoint()
                piece = text[start : start + 16]
                yield StreamChunk(kind="block_delta", index=index, block_type=block.type, text=piece)
            yield StreamChunk(kind="block_end", index=index, block_type=block.type, block=block)
        yield StreamChunk(kind="response", response=response)

    async def complete(self, request, **kwargs):
        return await self.answer(request)

    async def answer(self, request):
        wire = [as_wire(message) for message in request.messages]
        await anyio.lowlevel.checkpoint()
        last = wire[-1] if wire else {"role": "user", "content": ""}
        text = json.dumps(last["content"], default=str)
        blocks = [ThinkingBlock(thinking="I repeat it.", signature=f"sig-{len(text)}"), TextBlock(text=text[:500])]
        if request.tools and last["role"] == "user":
            for tool in request.tools:
                blocks.append(ToolCallBlock(id=f"call_{uuid.uuid4().hex}", name=tool.name, input={"text": text[:50]}))
        asked, answered = sum(len(json.dumps(each, default=str)) for each in wire) // 4, len(text) // 4 + 1
        await self.hooks.emit(
            "llm:response",
            {
                "provider": self.name,
                "model": "parrot-1",
                "usage": {"input_tokens": asked, "output_tokens": answered},
            },
        )
        calls = [ToolCall(id=each.id, name=each.name, arguments=each.input) for each in blocks[2:]]
        usage = Usage(input_tokens=asked, output_tokens=answered, total_tokens=asked + answered)
        return ChatResponse(content=blocks, tool_calls=calls or None, usage=usage)

    def parse_tool_calls(self, response):
        if response.tool_calls is not None:
            return list(response.tool_calls)
        return [
            ToolCall(id=each.id, name=each.name, arguments=each.input)
            for each in response.content
            if each.type == "tool_call"
        ]


async def mount(coordinator, config):
    await coordinator.mount("providers", Parrot(coordinator.hooks, config))
