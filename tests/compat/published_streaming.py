"""A loop with a path for providers that stream, as the published streaming one has it, and such a provider, as text."""

from __future__ import annotations

LOOP = '''
from amplifier_core import ModuleCoordinator
from amplifier_core.message_models import ChatRequest, Message, ToolSpec

__amplifier_module_type__ = "orchestrator"


async def mount(coordinator: ModuleCoordinator, config=None):
    await coordinator.mount("orchestrator", StreamingOrchestrator())


class StreamingOrchestrator:
    """Asks whether the provider streams; if so it reads text from the stream, else it takes whole answers and runs tools."""

    def __init__(self):
        self.paths = []

    async def execute(self, prompt, context, providers, tools, hooks, coordinator=None) -> str:
        await context.add_message({"role": "user", "content": prompt})
        provider = min(providers.values(), key=lambda provider: getattr(provider, "priority", 100))
        while True:
            request = ChatRequest(
                messages=[Message(**message) for message in await context.get_messages_for_request(provider=provider)],
                tools=[ToolSpec(name=t.name, description=t.description, parameters=t.input_schema) for t in tools.values()] or None,
            )
            if hasattr(provider, "stream"):
                self.paths.append("stream")
                return "".join([chunk["content"] async for chunk in provider.stream(request, tools=list(tools.values()))])
            self.paths.append("complete")
            response = await provider.complete(request)
            calls = provider.parse_tool_calls(response)
            message = {"role": "assistant", "content": [block.model_dump() for block in response.content]}
            if calls:
                message["tool_calls"] = [{"id": c.id, "tool": c.name, "arguments": c.arguments} for c in calls]
            await context.add_message(message)
            if not calls:
                return "".join(block.text for block in response.content if block.type == "text")
            for call in calls:
                result = await tools[call.name].execute(call.arguments)
                await context.add_message({"role": "tool", "tool_call_id": call.id, "content": result.get_serialized_output()})
'''

PROVIDER = '''
from amplifier_core import ModuleCoordinator, ProviderInfo

__amplifier_module_type__ = "provider"


async def mount(coordinator: ModuleCoordinator, config=None):
    await coordinator.mount("providers", Speaker(), name="speaker")


class Speaker:
    """A provider of the shape the loop was written for: its stream is an async generator of dicts."""

    name = "speaker"

    def get_info(self):
        return ProviderInfo(id="speaker", display_name="Speaker")

    async def list_models(self):
        return []

    async def complete(self, request, **kwargs):
        raise AssertionError("this provider streams")

    async def stream(self, request, *, tools):
        for word in ("as ", "published"):
            yield {"content": word}

    def parse_tool_calls(self, response):
        return []
'''
