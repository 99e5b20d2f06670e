"""Sound: says again what was said last, calls a tool when asked to, and has no state at all."""

import uuid

from amplifier import ChatResponse, ModelInfo, ProviderInfo, TextBlock, ToolCall, ToolCallBlock, Usage

__amplifier_module_type__ = "provider"


class EchoProvider:
    name = "echo"

    def __init__(self, hooks):
        self.hooks = hooks

    def get_info(self):
        return ProviderInfo(
            id="echo", display_name="Echo", defaults={"context_window": 8000, "max_output_tokens": 1000}
        )

    async def list_models(self):
        return [ModelInfo(id="echo-1", display_name="Echo 1", context_window=8000, max_output_tokens=1000)]

    async def complete(self, request, **kwargs):
        text = text_of(request.messages[-1])
        blocks = [TextBlock(text=f"You said: {text}")]
        calls = None
        if request.tools and "tool" in text:
            call = ToolCall(id=f"call_{uuid.uuid4().hex}", name=request.tools[0].name, arguments={"text": text})
            blocks.append(ToolCallBlock(id=call.id, name=call.name, input=call.arguments))
            calls = [call]
        asked = sum(len(text_of(message)) for message in request.messages) // 4
        given = len(text) // 4 + 1
        usage = Usage(input_tokens=asked, output_tokens=given, total_tokens=asked + given)
        await self.hooks.emit(
            "llm:response",
            {"provider": self.name, "status": "ok", "usage": {"input_tokens": asked, "output_tokens": given}},
        )
        return ChatResponse(content=blocks, tool_calls=calls, usage=usage, finish_reason="stop")

    def parse_tool_calls(self, response):
        return list(response.tool_calls or [])


def text_of(message):
    if isinstance(message.content, str):
        return message.content
    return " ".join(block.text for block in message.content if block.type == "text")


async def mount(coordinator, config):
    await coordinator.mount("providers", EchoProvider(coordinator.hooks), name="echo")
