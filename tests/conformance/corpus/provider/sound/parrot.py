"""Repeats what it was told and calls every tool it is offered when it is asked to."""

import uuid

from amplifier import ChatResponse, ModelInfo, ProviderInfo, TextBlock, ToolCall, ToolCallBlock, Usage

__amplifier_module_type__ = "provider"


def text_of(message):
    if isinstance(message.content, str):
        return message.content
    return " ".join(getattr(block, "text", "") for block in message.content)


class Parrot:
    name = "parrot"

    def __init__(self, hooks):
        self.hooks = hooks

    def get_info(self):
        defaults = {"context_window": 8000, "max_output_tokens": 1000}
        return ProviderInfo(id="parrot", display_name="Parrot", defaults=defaults)

    async def list_models(self):
        return [ModelInfo(id="parrot", display_name="Parrot", context_window=8000, max_output_tokens=1000)]

    async def complete(self, request, **kwargs):
        said = text_of(request.messages[-1])
        blocks = [TextBlock(text=f"You said: {said}")]
        if "tool" in said:
            for tool in request.tools or []:
                blocks.append(ToolCallBlock(id=f"call_{uuid.uuid4().hex}", name=tool.name, input={"text": said}))
        return await self.answer(request, blocks)

    async def answer(self, request, blocks):
        calls = [ToolCall(id=b.id, name=b.name, arguments=dict(b.input)) for b in blocks if b.type == "tool_call"]
        asked = sum(len(text_of(message)) for message in request.messages) // 4
        given = 10 * len(blocks)
        usage = Usage(input_tokens=asked, output_tokens=given, total_tokens=asked + given)
        told = {"input_tokens": asked, "output_tokens": given}
        await self.hooks.emit("llm:response", {"provider": self.name, "status": "ok", "usage": told})
        return ChatResponse(content=blocks, tool_calls=calls or None, usage=usage)

    def parse_tool_calls(self, response):
        return list(response.tool_calls or [])


async def mount(coordinator, config):
    provider = Parrot(coordinator.hooks)
    await coordinator.mount("providers", provider, name=provider.name)
