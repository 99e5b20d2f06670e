"""Modules for the benchmarks: as small as they can be, the same for both kernels."""

from __future__ import annotations

from typing import Any


def modules_for(library: Any, *, tools: int = 1, steps: int = 1, handlers: int = 0) -> dict[str, Any]:
    """Mount functions by module id.

    Args:
        library: Whose data types to use.
        tools: How many tools the model calls at once.
        steps: How often it does before it answers.
        handlers: How many handlers listen to every event of the turn.
    """
    core = _message_models(library)

    async def mount_loop(coordinator: Any, config: dict[str, Any]) -> None:
        await coordinator.mount("orchestrator", Loop(coordinator, core))

    async def mount_context(coordinator: Any, config: dict[str, Any]) -> None:
        await coordinator.mount("context", Memory())

    async def mount_provider(coordinator: Any, config: dict[str, Any]) -> None:
        await coordinator.mount("providers", Provider(library, core, tools, steps), name="bench")

    async def mount_tool(coordinator: Any, config: dict[str, Any]) -> None:
        await coordinator.mount("tools", Tool(library), name="look")

    async def mount_hooks(coordinator: Any, config: dict[str, Any]) -> None:
        async def handler(event: str, data: dict[str, Any]) -> Any:
            return library.HookResult(action="continue")

        for number in range(handlers):
            for event in EVENTS:
                coordinator.hooks.register(event, handler, name=f"bench-{number}")

    return {
        "loop-bench": mount_loop,
        "context-bench": mount_context,
        "provider-bench": mount_provider,
        "tool-bench": mount_tool,
        "hooks-bench": mount_hooks,
    }


EVENTS = ("prompt:submit", "provider:request", "provider:response", "tool:pre", "tool:post", "prompt:complete")


def _message_models(library: Any) -> Any:
    return (
        library
        if hasattr(library, "ChatResponse") and hasattr(library, "Usage")
        else __import__(f"{library.__name__}.message_models", fromlist=["x"])
    )


class Provider:
    """Wants tools for so many steps, then answers."""

    name = "bench"

    def __init__(self, library: Any, core: Any, tools: int, steps: int) -> None:
        self._library, self._core, self._tools, self._steps = library, core, tools, steps
        self._calls = 0

    def get_info(self) -> Any:
        return self._library.ProviderInfo(id="bench", display_name="Bench")

    async def list_models(self) -> list[Any]:
        return []

    async def complete(self, request: Any, **options: Any) -> Any:
        core = self._core
        self._calls += 1
        usage = core.Usage(input_tokens=10, output_tokens=5, total_tokens=15)
        if self._calls % (self._steps + 1):
            calls = [core.ToolCall(id=f"c{n}", name="look", arguments={"n": n}) for n in range(self._tools)]
            blocks = [core.ToolCallBlock(id=c.id, name=c.name, input=c.arguments) for c in calls]
            return core.ChatResponse(content=blocks, tool_calls=calls, usage=usage)
        return core.ChatResponse(content=[core.TextBlock(text="Done.")], usage=usage)

    def parse_tool_calls(self, response: Any) -> list[Any]:
        return response.tool_calls or []


class Tool:
    """Has always seen it."""

    name = "look"
    description = "Looks."

    def __init__(self, library: Any) -> None:
        self._library = library

    async def execute(self, input: dict[str, Any]) -> Any:  # noqa: A002 — the contract's name
        return self._library.ToolResult(success=True, output="seen")


class Memory:
    """Keeps messages in a list."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    async def add_message(self, message: dict[str, Any]) -> None:
        self.messages.append(message)

    async def get_messages(self) -> list[dict[str, Any]]:
        return list(self.messages)

    async def get_messages_for_request(self, token_budget: int | None = None, provider: Any = None) -> list[Any]:
        return list(self.messages)

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        self.messages = list(messages)

    async def clear(self) -> None:
        self.messages = []


class Loop:
    """The scripted turn: per step one model call and the tools it wants, events around both."""

    def __init__(self, coordinator: Any, core: Any) -> None:
        self._coordinator, self._core = coordinator, core

    async def execute(self, prompt: str, context: Any, providers: Any, tools: Any, hooks: Any, **_: Any) -> str:
        core, emit = self._core, hooks.emit
        process = self._coordinator.process_hook_result
        await process(await emit("prompt:submit", {"prompt": prompt}), "prompt:submit", "loop")
        await context.clear()
        await context.add_message({"role": "user", "content": prompt})
        provider = next(iter(providers.values()))
        while True:
            messages = [core.Message(**message) for message in await context.get_messages_for_request()]
            request = core.ChatRequest(messages=messages)
            await process(await emit("provider:request", {"provider": "bench"}), "provider:request", "loop")
            response = await provider.complete(request)
            await emit("provider:response", {"provider": "bench", "tool_calls": bool(response.tool_calls)})
            calls = provider.parse_tool_calls(response)
            if not calls:
                await emit("prompt:complete", {"prompt": prompt, "response": "Done."})
                return "Done."
            await context.add_message({"role": "assistant", "content": ""})
            for call in calls:
                data = {"tool_name": call.name, "tool_call_id": call.id, "tool_input": call.arguments}
                await process(await emit("tool:pre", data), "tool:pre", "loop")
                result = await tools[call.name].execute(call.arguments)
                await process(await emit("tool:post", {**data, "result": result.output}), "tool:post", "loop")
                await context.add_message({"role": "tool", "tool_call_id": call.id, "content": str(result.output)})
