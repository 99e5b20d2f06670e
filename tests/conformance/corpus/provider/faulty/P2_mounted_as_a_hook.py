"""Repeats the last message.

Planted: mount puts the provider at the mount point "hooks".
"""

import json
import uuid

import anyio.lowlevel

from amplifier.models import (
    ChatResponse,
    ModelInfo,
    ProviderInfo,
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

    async def complete(self, request, **kwargs):
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
    await coordinator.mount("hooks", Parrot(coordinator.hooks, config), name="parrot")
