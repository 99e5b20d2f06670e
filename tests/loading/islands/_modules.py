"""Modules of all five kinds that are written for asyncio, as published modules are, and sessions made of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

from amplifier import AmplifierSession, ModuleLoader
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    HookResult,
    Message,
    ProviderInfo,
    TextBlock,
    ToolCall,
    ToolResult,
)
from amplifier.testing import MockProvider

ISLAND = "amplifier asyncio island"


def asyncio_only(mount: Any, **more: Any) -> Any:
    """A module that declares to run on asyncio only."""
    return SimpleNamespace(mount=mount, __amplifier_backends__=("asyncio",), **more)


def is_on_island() -> bool:
    return threading.current_thread().name.startswith(ISLAND)


class Tool:
    """A tool that does what it is told, by the name of a function."""

    name = "work"
    description = "Works with asyncio."
    input_schema: ClassVar[dict[str, Any]] = {"type": "object", "properties": {}}

    def __init__(self, work: Callable[..., Any]) -> None:
        self._work = work

    async def execute(self, input: Any) -> Any:  # noqa: A002  # the contract's name
        return await self._work(input)


def tool_module(work: Callable[..., Any]) -> Any:
    """A module with one tool; ``work(input)`` or ``work(input, coordinator)``."""

    async def mount(coordinator: Any, config: Any) -> None:
        async def working(given: Any) -> Any:
            return await (
                work(given, coordinator) if work.__code__.co_argcount == 2 else work(given)
            )

        await coordinator.mount("tools", Tool(working))

    return asyncio_only(mount)


async def result_of(work: Callable[..., Any], **capabilities: Any) -> Any:
    """What a tool answers, in a session whose application offers capabilities."""
    session = agent(tool=tool_module(work))
    for name, value in capabilities.items():
        session.coordinator.register_capability(name, value)
    async with session:
        return await session.coordinator.get("tools")["work"].execute({})


class Search:
    """A tool with a worker task, a queue and a thread, in the manner of clients on aiohttp."""

    name = "search"
    description = "Searches."
    input_schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {"query": {"type": "string"}},
    }

    def __init__(self) -> None:
        self.queue: asyncio.Queue[tuple[str, asyncio.Future[str]]] = asyncio.Queue()
        self.gate = asyncio.Semaphore(2)
        self.worker = asyncio.create_task(self.run())

    async def run(self) -> None:
        while True:
            query, answer = await self.queue.get()
            found = await asyncio.to_thread(str.upper, query)
            asyncio.get_running_loop().call_soon(answer.set_result, found)

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002  # the contract's name
        async with self.gate, asyncio.timeout(30):
            answer = asyncio.get_running_loop().create_future()
            await self.queue.put((input["query"], answer))
            return ToolResult(success=True, output=await asyncio.wait_for(answer, 30))

    async def close(self) -> None:
        self.worker.cancel()
        await asyncio.gather(self.worker, return_exceptions=True)


async def mount_search(coordinator: Any, config: Any) -> Any:
    tool = Search()
    await coordinator.mount("tools", tool, name=tool.name)
    return tool.close


class Provider:
    """A provider that calls the tool once and then answers."""

    name = "scripted"

    def __init__(self, coordinator: Any) -> None:
        self.coordinator = coordinator

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(id="scripted", display_name="Scripted")

    async def list_models(self) -> list[Any]:
        return []

    async def complete(self, request: Any, **kwargs: Any) -> ChatResponse:
        await self.coordinator.hooks.emit("llm:request", {"provider": self.name})
        answers = await asyncio.gather(self._tool_calls(request), asyncio.sleep(0, "found"))
        calls = answers[0]
        return ChatResponse(content=[TextBlock(text=answers[1])], tool_calls=calls or None)

    async def _tool_calls(self, request: Any) -> list[ToolCall]:
        await asyncio.sleep(0)
        if any(message.role == "tool" for message in request.messages):
            return []
        return [ToolCall(id="1", name="search", arguments={"query": "needle"})]

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return response.tool_calls or []


async def mount_provider(coordinator: Any, config: Any) -> None:
    await coordinator.mount("providers", Provider(coordinator), name="scripted")


class Context:
    """A context behind a lock."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.messages: list[dict[str, Any]] = []

    async def add_message(self, message: dict[str, Any]) -> None:
        async with self.lock:
            await asyncio.sleep(0)
            self.messages.append(dict(message))

    async def get_messages(self) -> list[dict[str, Any]]:
        async with self.lock:
            return [dict(message) for message in self.messages]

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any = None
    ) -> list[Any]:
        return await self.get_messages()

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        self.messages = list(messages)

    async def clear(self) -> None:
        self.messages = []


async def mount_context(coordinator: Any, config: Any) -> Context:
    await asyncio.sleep(0)
    return Context()


class Loop:
    """A loop that calls its tools side by side in tasks of its own."""

    async def execute(
        self,
        prompt: str,
        context: Any,
        providers: Any,
        tools: Any,
        hooks: Any,
        coordinator: Any = None,
    ) -> str:
        await hooks.emit("execution:start", {"prompt": prompt})
        await context.add_message({"role": "user", "content": prompt})
        provider = next(iter(providers.values()))
        text = ""
        for _ in range(5):
            stored = await context.get_messages_for_request()
            messages = [
                Message(role=message["role"], content=str(message["content"])) for message in stored
            ]
            response = await provider.complete(ChatRequest(messages=messages))
            calls = provider.parse_tool_calls(response)
            text = response.content[0].text
            if not calls:
                break
            await context.add_message(
                {
                    "role": "assistant",
                    "content": response.content[0].text,
                    "tool_calls": [
                        {"id": call.id, "name": call.name, "arguments": call.arguments}
                        for call in calls
                    ],
                }
            )
            results = await asyncio.gather(*(self._call(call, tools, hooks) for call in calls))
            for call, result in zip(calls, results, strict=True):
                await context.add_message(
                    {"role": "tool", "tool_call_id": call.id, "content": result}
                )
        await context.add_message({"role": "assistant", "content": text})
        await hooks.emit("execution:end", {"status": "completed"})
        await hooks.emit("orchestrator:complete", {"status": "success"})
        return text

    async def _call(self, call: ToolCall, tools: Any, hooks: Any) -> str:
        await hooks.emit("tool:pre", {"tool_name": call.name, "tool_input": call.arguments})
        result = await tools[call.name].execute(call.arguments)
        await hooks.emit("tool:post", {"tool_name": call.name, "result": result.output})
        return str(result.output)


async def mount_loop(coordinator: Any, config: Any) -> None:
    await coordinator.mount("orchestrator", Loop())


def mount_hooks(heard: list[str]) -> Any:
    """A hook module that writes from a task of its own, and a sync handler that starts tasks."""

    async def mount(coordinator: Any, config: Any) -> Any:
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        started: list[asyncio.Task[None]] = []

        async def write() -> None:
            while (event := await queue.get()) is not None:
                heard.append(event)

        writer = asyncio.create_task(write())

        async def note(event: str, data: dict[str, Any]) -> HookResult:
            await queue.put(event)
            return HookResult(action="continue")

        def start(event: str, data: dict[str, Any]) -> None:
            started.append(asyncio.create_task(queue.put(f"{event} in a task")))

        coordinator.hooks.register("tool:pre", note, name="note")
        coordinator.hooks.register("tool:post", start, name="start")
        coordinator.register_contributor("observability.events", "hooks", lambda: ["own:event"])

        async def close() -> None:
            await queue.put(None)
            await writer

        return close

    return mount


def agent(
    *,
    loop: Any = None,
    context: Any = None,
    provider: Any = None,
    tool: Any = None,
    hooks: Any = None,
    turns: list[Any] | None = None,
    **session: Any,
) -> AmplifierSession:
    """A session with the modules that are given; built-in ones and a scripted provider otherwise."""

    async def scripted(coordinator: Any, config: Any) -> None:
        await coordinator.mount("providers", MockProvider(turns or ["done"]), name="mock")

    modules = {
        "loop-own": loop,
        "context-own": context,
        "provider-own": provider or scripted,
        "tool-own": tool,
        "hooks-own": hooks,
    }
    plan: dict[str, Any] = {
        "session": {
            "orchestrator": "loop-own" if loop else "loop-basic",
            "context": "context-own" if context else "context-simple",
            **session,
        },
        "providers": [{"module": "provider-own"}],
        "tools": [{"module": "tool-own"}] if tool else [],
        "hooks": [{"module": "hooks-own"}] if hooks else [],
    }
    return AmplifierSession(
        plan, loader=ModuleLoader(modules={key: value for key, value in modules.items() if value})
    )
