"""A loop in the shape of the published streaming one, with its path for providers that stream, as text."""

from __future__ import annotations

LOOP = '''
import asyncio

from amplifier_core import ModuleCoordinator
from amplifier_core.events import ORCHESTRATOR_COMPLETE, PROVIDER_ERROR
from amplifier_core.llm_errors import LLMError
from amplifier_core.message_models import ChatRequest, Message, ToolSpec

__amplifier_module_type__ = "orchestrator"


async def mount(coordinator: ModuleCoordinator, config=None):
    await coordinator.mount("orchestrator", StreamingOrchestrator(config or {}))


class StreamingOrchestrator:
    """Asks whether the provider streams; if so it reads text from the stream, else it takes whole answers and runs tools."""

    def __init__(self, config):
        self.config = config
        self.stream_delay = config.get("stream_delay", 0)
        self.paths = []

    async def execute(self, prompt, context, providers, tools, hooks, coordinator=None) -> str:
        answer, error = "", None
        try:
            async for token in self._execute_stream(prompt, context, providers, tools, hooks, coordinator):
                answer += token
        except Exception as caught:
            error = caught
        await hooks.emit(ORCHESTRATOR_COMPLETE, {"orchestrator": "loop-streaming", "status": "error" if error else "success"})
        if error:
            raise error
        return answer

    async def _execute_stream(self, prompt, context, providers, tools, hooks, coordinator):
        await context.add_message({"role": "user", "content": prompt})
        provider_name, provider = min(providers.items(), key=lambda item: getattr(item[1], "priority", 100))
        while True:
            if coordinator.cancellation.is_cancelled:
                return
            messages = await context.get_messages_for_request(provider=provider)
            request = ChatRequest(
                messages=[Message(**message) for message in messages],
                tools=[ToolSpec(name=t.name, description=t.description, parameters=t.input_schema) for t in tools.values()] or None,
            )
            if hasattr(provider, "stream"):
                self.paths.append("stream")
                async for chunk in self._stream_from_provider(provider, request, context, tools, hooks, coordinator, provider_name):
                    if coordinator.cancellation.is_immediate:
                        return
                    yield chunk
                if await self._has_pending_tools(context):
                    await self._process_tools(context, tools, hooks)
                    continue
                break
            self.paths.append("complete")
            response = await provider.complete(request)
            calls = provider.parse_tool_calls(response)
            message = {"role": "assistant", "content": [block.model_dump() for block in response.content]}
            if calls:
                message["tool_calls"] = [{"id": c.id, "tool": c.name, "arguments": c.arguments} for c in calls]
            await context.add_message(message)
            if not calls:
                yield "".join(block.text for block in response.content if block.type == "text")
                return
            for call in calls:
                result = await tools[call.name].execute(call.arguments)
                await context.add_message({"role": "tool", "tool_call_id": call.id, "content": result.get_serialized_output()})

    async def _stream_from_provider(self, provider, request, context, tools, hooks, coordinator, provider_name):
        full_response = ""
        try:
            stream_iter = provider.stream(request, tools=list(tools.values()))
        except LLMError as error:
            await hooks.emit(PROVIDER_ERROR, {"provider": provider_name, "error": {"type": type(error).__name__, "msg": str(error)}})
            raise
        async for chunk in stream_iter:
            if coordinator.cancellation.is_immediate:
                if full_response:
                    await context.add_message({"role": "assistant", "content": full_response})
                return
            block_type = chunk.get("block_type")
            if block_type and block_type != "text":
                continue
            token = chunk.get("content", "")
            if token:
                if self.config.get("stop_at_first_piece"):
                    coordinator.cancellation.request_immediate()
                yield token
                full_response += token
                await asyncio.sleep(self.stream_delay)
        if full_response:
            await context.add_message({"role": "assistant", "content": full_response})

    async def _has_pending_tools(self, context) -> bool:
        return False

    async def _process_tools(self, context, tools, hooks) -> None:
        pass
'''

PROVIDER = '''
from amplifier_core import ModuleCoordinator, ProviderInfo

__amplifier_module_type__ = "provider"


async def mount(coordinator: ModuleCoordinator, config=None):
    await coordinator.mount("providers", Speaker((config or {}).get("words", [])), name="speaker")


class Speaker:
    """A provider of the shape the loop was written for: its stream is an async generator of dicts."""

    name = "speaker"

    def __init__(self, words):
        self.words = words

    def get_info(self):
        return ProviderInfo(id="speaker", display_name="Speaker")

    async def list_models(self):
        return []

    async def complete(self, request, **kwargs):
        raise AssertionError("this provider streams")

    async def stream(self, request, *, tools):
        for word in self.words:
            yield {"content": word}

    def parse_tool_calls(self, response):
        return []
'''
