"""A tiny model of its own: answers from the words it was given, reckoned in threads, two at a time, and it streams."""

import hashlib
import threading
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread

from amplifier import (
    ChatResponse,
    ModelInfo,
    ProviderInfo,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolCallBlock,
    Usage,
    to_json,
)
from amplifier.errors import LLMTimeoutError
from amplifier.models import StreamChunk

__amplifier_module_type__ = "provider"


class Counter:
    def __init__(self):
        self._lock = threading.Lock()
        self._value = 0

    def next(self):
        with self._lock:
            self._value += 1
            return self._value


class LocalWords:
    name = "local-words"

    def __init__(self, hooks, config, prefix):
        self.hooks = hooks
        self.slots = anyio.Semaphore(config.get("slots", 2))
        self.seconds = config.get("seconds", 30)
        self.calls = Counter()
        self.prefix = prefix

    def get_info(self):
        return ProviderInfo(
            id=self.name, display_name="Local words", defaults=dict(context_window=16_000, max_output_tokens=500)
        )

    async def list_models(self):
        return [ModelInfo(id="words", display_name="Words", context_window=16_000, max_output_tokens=500)]

    def reckon(self, request):
        words = [word for message in request.messages for word in self.words(message)]
        digest = hashlib.sha256(to_json(request).encode()).hexdigest()
        blocks = [ThinkingBlock(thinking=f"{len(words)} words", signature=digest[:16])]
        blocks.append(TextBlock(text=" ".join(words[-12:]) or "Nothing was said."))
        calls = []
        for spec in (request.tools or [])[: len(words) % 3]:
            call = ToolCall(id=f"{self.prefix}-{self.calls.next()}", name=spec.name, arguments={"words": words[-3:]})
            calls.append(call)
            blocks.append(ToolCallBlock(id=call.id, name=call.name, input=dict(call.arguments)))
        spent = Usage(input_tokens=len(words), output_tokens=len(blocks) * 4, total_tokens=len(words) + len(blocks) * 4)
        return ChatResponse(content=blocks, tool_calls=calls or None, usage=spent, finish_reason="stop")

    @staticmethod
    def words(message):
        if isinstance(message.content, str):
            return message.content.split()
        found = []
        for block in message.content or []:
            found += str(getattr(block, "text", "") or getattr(block, "output", "") or "").split()
        return found

    async def complete(self, request, **options):
        await self.hooks.emit("llm:request", {"provider": self.name, "message_count": len(request.messages)})
        async with self.slots:
            try:
                with anyio.fail_after(self.seconds):
                    response = await anyio.to_thread.run_sync(self.reckon, request)
            except TimeoutError as error:
                raise LLMTimeoutError("reckoning took too long", provider=self.name, retryable=True) from error
        spent = response.usage
        told = {"input_tokens": spent.input_tokens, "output_tokens": spent.output_tokens}
        await self.hooks.emit("llm:response", {"provider": self.name, "usage": told, "status": "ok"})
        return response

    def parse_tool_calls(self, response):
        return list(response.tool_calls or ())


@asynccontextmanager
async def mount(coordinator, config):
    provider = LocalWords(coordinator.hooks, config or {}, prefix=f"w{coordinator.session_id[:8]}-{id(coordinator):x}")
    await coordinator.mount("providers", provider, name=provider.name)
    yield
