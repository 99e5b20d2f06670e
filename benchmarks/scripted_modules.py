"""Modules for the benchmarks: as small as they can be, the same for both kernels."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import attrs

from benchmarks.handlers import looking

EVENTS = (
    "prompt:submit",
    "provider:request",
    "provider:response",
    "tool:pre",
    "tool:post",
    "prompt:complete",
)


@attrs.frozen(kw_only=True)
class Script:
    """What happens in a turn.

    Attributes:
        tools: How many tools the model calls at once.
        steps: How often it does before it answers.
        handlers: How many handlers listen to every event of the turn.
        pausing: The model lets others run before it answers, as a model at the other end of a network would.
        tool: What the tool does before it has seen it.
        trivial: The loop does nothing at all.
        gather: Runs the tools of one step side by side.
        pause: Lets others run.
    """

    tools: int = 1
    steps: int = 1
    handlers: int = 0
    pausing: bool = False
    tool: Callable[[], Awaitable[Any]] | None = None
    trivial: bool = False
    gather: Callable[[list[Awaitable[Any]]], Awaitable[list[Any]]]
    pause: Callable[[], Awaitable[Any]]


def modules_for(library: Any, **options: Any) -> dict[str, Any]:
    """Mount functions by module id; ``library`` is whose data types to use, the rest a `Script`."""
    script, core = Script(**options), _message_models(library)

    async def mount_loop(coordinator: Any, config: dict[str, Any]) -> None:
        await coordinator.mount(
            "orchestrator", Nothing() if script.trivial else Loop(coordinator, core, script)
        )

    async def mount_context(coordinator: Any, config: dict[str, Any]) -> None:
        await coordinator.mount("context", Memory())

    async def mount_provider(coordinator: Any, config: dict[str, Any]) -> None:
        await coordinator.mount("providers", Provider(library, core, script), name="bench")

    async def mount_tool(coordinator: Any, config: dict[str, Any]) -> None:
        await coordinator.mount("tools", Tool(library, script), name="look")

    async def mount_hooks(coordinator: Any, config: dict[str, Any]) -> None:
        handler = looking(partial(library.HookResult, action="continue"))
        for number in range(script.handlers):
            for event in EVENTS:
                coordinator.hooks.register(event, handler, name=f"bench-{number}")

    return {
        "loop-bench": mount_loop,
        "context-bench": mount_context,
        "provider-bench": mount_provider,
        "tool-bench": mount_tool,
        "hooks-bench": mount_hooks,
    }


def _message_models(library: Any) -> Any:
    """Where the library keeps its message classes: at the top, or in a module of that name."""
    if hasattr(library, "ChatResponse") and hasattr(library, "Usage"):
        return library
    return importlib.import_module(f"{library.__name__}.message_models")


class Provider:
    """Wants tools for so many steps, then answers."""

    name = "bench"

    def __init__(self, library: Any, core: Any, script: Script) -> None:
        self._library, self._core, self._script = library, core, script

    def get_info(self) -> Any:
        return self._library.ProviderInfo(id="bench", display_name="Bench")

    async def list_models(self) -> list[Any]:
        return []

    async def complete(self, request: Any, **options: Any) -> Any:
        core, script = self._core, self._script
        if script.pausing:
            await script.pause()
        usage = core.Usage(input_tokens=10, output_tokens=5, total_tokens=15)
        if self._steps_since_the_prompt(request) < script.steps:
            calls = [
                core.ToolCall(id=f"c{n}", name="look", arguments={"n": n})
                for n in range(script.tools)
            ]
            blocks = [core.ToolCallBlock(id=c.id, name=c.name, input=c.arguments) for c in calls]
            return core.ChatResponse(content=blocks, tool_calls=calls, usage=usage)
        return core.ChatResponse(content=[core.TextBlock(text="Done.")], usage=usage)

    def _steps_since_the_prompt(self, request: Any) -> int:
        steps = 0
        for message in reversed(request.messages):
            if message.role == "user":
                break
            steps += message.role == "assistant"
        return steps

    def parse_tool_calls(self, response: Any) -> list[Any]:
        return response.tool_calls or []


class Tool:
    """Has always seen it."""

    name = "look"
    description = "Looks."

    def __init__(self, library: Any, script: Script) -> None:
        self._library, self._work = library, script.tool

    async def execute(self, input: dict[str, Any]) -> Any:  # noqa: A002 — the contract's name
        if self._work is not None:
            await self._work()
        return self._library.ToolResult(success=True, output="seen")


class Memory:
    """Keeps messages in a list."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    async def add_message(self, message: dict[str, Any]) -> None:
        self.messages.append(message)

    async def get_messages(self) -> list[dict[str, Any]]:
        return list(self.messages)

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any = None
    ) -> list[Any]:
        return list(self.messages)

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        self.messages = list(messages)

    async def clear(self) -> None:
        self.messages = []


class Nothing:
    """A loop that answers at once."""

    async def execute(self, prompt: str, **_: Any) -> str:
        return "x"


class Loop:
    """The scripted turn: per step one model call and the tools it wants, events around both.

    With one step and one tool: two model calls, eight events, and five results of hooks handed to the kernel. Several
    tools of one step run side by side, as in the published loops.
    """

    def __init__(self, coordinator: Any, core: Any, script: Script) -> None:
        self._coordinator, self._core, self._gather = coordinator, core, script.gather

    async def execute(
        self, prompt: str, context: Any, providers: Any, tools: Any, hooks: Any, **_: Any
    ) -> str:
        core, emit = self._core, hooks.emit
        process = self._coordinator.process_hook_result
        await process(await emit("prompt:submit", {"prompt": prompt}), "prompt:submit", "loop")
        await context.clear()
        await context.add_message({"role": "user", "content": prompt})
        provider = next(iter(providers.values()))
        while True:
            messages = [
                core.Message(**message) for message in await context.get_messages_for_request()
            ]
            request = core.ChatRequest(messages=messages)
            await process(
                await emit("provider:request", {"provider": "bench"}), "provider:request", "loop"
            )
            response = await provider.complete(request)
            await emit(
                "provider:response", {"provider": "bench", "tool_calls": bool(response.tool_calls)}
            )
            calls = provider.parse_tool_calls(response)
            if not calls:
                await emit("prompt:complete", {"prompt": prompt, "response": "Done."})
                return "Done."
            await context.add_message({"role": "assistant", "content": ""})
            if len(calls) == 1:
                outputs = [await self._call(calls[0], tools, emit, process)]
            else:
                outputs = await self._gather(
                    [self._call(call, tools, emit, process) for call in calls]
                )
            for call, output in zip(calls, outputs, strict=True):
                await context.add_message(
                    {"role": "tool", "tool_call_id": call.id, "content": str(output)}
                )

    async def _call(self, call: Any, tools: Any, emit: Any, process: Any) -> Any:
        data = {"tool_name": call.name, "tool_call_id": call.id, "tool_input": call.arguments}
        await process(await emit("tool:pre", data), "tool:pre", "loop")
        result = await tools[call.name].execute(call.arguments)
        await process(
            await emit("tool:post", {**data, "result": result.output}), "tool:post", "loop"
        )
        return result.output
