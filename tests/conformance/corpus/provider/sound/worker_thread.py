"""Sound: an engine that can do one thing at a time, in a thread of its own that cleanup ends; asyncio alone."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from amplifier.models import ChatResponse, ModelInfo, ProviderInfo, TextBlock, ThinkingBlock, ToolCall, Usage

__amplifier_module_type__ = "provider"
__amplifier_backends__ = ("asyncio",)


def generate(prompt):
    return prompt[::-1]


class EngineProvider:
    name = "engine"

    def __init__(self, hooks, config):
        self.hooks = hooks
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self.limit = config.get("max_output_tokens", 512)

    def get_info(self):
        return ProviderInfo(
            id="engine", display_name="Engine", defaults={"context_window": 4096, "max_output_tokens": self.limit}
        )

    async def list_models(self):
        return [ModelInfo(id="engine", display_name="Engine", context_window=4096, max_output_tokens=self.limit)]

    async def complete(self, request, **kwargs):
        last = request.messages[-1].content
        prompt = last if isinstance(last, str) else "".join(getattr(block, "text", "") for block in last)
        thoughts = [
            block
            for message in request.messages
            if isinstance(message.content, list)
            for block in message.content
            if isinstance(block, ThinkingBlock)
        ]
        text = await asyncio.get_running_loop().run_in_executor(self.executor, generate, prompt)
        content = [ThinkingBlock(thinking=t.thinking, signature=t.signature) for t in thoughts]
        content.append(TextBlock(text=text))
        usage = Usage(input_tokens=len(prompt), output_tokens=len(text), total_tokens=len(prompt) + len(text))
        counts = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
        await self.hooks.emit("llm:response", {"provider": "engine", "usage": counts})
        return ChatResponse(content=content, usage=usage)

    def parse_tool_calls(self, response):
        return [ToolCall(id=c.id, name=c.name, arguments=c.arguments) for c in response.tool_calls or ()]

    async def aclose(self):
        self.executor.shutdown(wait=False, cancel_futures=True)


async def mount(coordinator, config):
    provider = EngineProvider(coordinator.hooks, config)
    await coordinator.mount("providers", provider, name="engine")
    return provider.aclose
