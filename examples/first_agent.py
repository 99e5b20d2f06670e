"""A whole agent in one file: a loop, a memory, a scripted model, a tool and a gate, run on asyncio and on trio.

There is no language model here: `WordCountingProvider` is a deterministic fake that always asks for the same tool calls, so that
the example runs offline. Everything else is the real kernel. `SmallLoop` and `ListMemory` are the least that works; built-in modules
do these things in earnest, and `custom_orchestrator.py` shows a loop that keeps the whole contract.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from amplifier import (
    AmplifierSession,
    ChatRequest,
    ChatResponse,
    ExecutionCancelled,
    HookResult,
    Message,
    ModelInfo,
    ModuleLoader,
    ProviderInfo,
    TextBlock,
    ToolCall,
    ToolResult,
)

ROOT = Path(__file__).resolve().parent.parent


class SmallLoop:
    """Ask the model, run the tools it wants, show it the results, until it answers in words."""

    async def execute(
        self,
        prompt: str,
        context: Any,
        providers: dict[str, Any],
        tools: dict[str, Any],
        hooks: Any,
        coordinator: Any,
    ) -> str:
        await hooks.emit("execution:start", {"prompt": prompt})
        text, status = "", "error"
        try:
            await context.add_message({"role": "user", "content": prompt})
            provider = next(iter(providers.values()))
            while True:
                messages = [
                    Message(**m) for m in await context.get_messages_for_request(provider=provider)
                ]
                response = await provider.complete(ChatRequest(messages=messages))
                calls = provider.parse_tool_calls(response)
                text = "".join(
                    block.text for block in response.content if isinstance(block, TextBlock)
                )
                await context.add_message(
                    {"role": "assistant", "content": text, "tool_calls": [c.id for c in calls]}
                )
                if not calls:
                    status = "completed"
                    return text
                for call in calls:
                    result = await self._run(call, tools, hooks, coordinator)
                    message = {
                        "role": "tool",
                        "tool_call_id": call.id,
                        "content": result.get_serialized_output(),
                    }
                    await context.add_message(message)
        finally:
            await hooks.emit("execution:end", {"response": text, "status": status})

    async def _run(
        self, call: ToolCall, tools: dict[str, Any], hooks: Any, coordinator: Any
    ) -> ToolResult:
        verdict = await hooks.emit(
            "tool:pre", {"tool_name": call.name, "tool_input": call.arguments}
        )
        verdict = await coordinator.process_hook_result(verdict, "tool:pre")
        if verdict.action == "deny":
            return ToolResult(success=False, error={"message": f"denied: {verdict.reason}"})
        result: ToolResult = await tools[call.name].execute(call.arguments)
        await hooks.emit("tool:post", {"tool_name": call.name, "tool_result": result})
        return result


class ListMemory:
    """Keeps everything, in order."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    async def add_message(self, message: dict[str, Any]) -> None:
        self.messages.append(dict(message))

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any = None
    ) -> list[Any]:
        return list(self.messages)

    async def get_messages(self) -> list[dict[str, Any]]:
        return list(self.messages)

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        self.messages = list(messages)

    async def clear(self) -> None:
        self.messages = []


class WordCountingProvider:
    """No model: wants two files counted, then repeats the output of the tool."""

    name = "word-counter"

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(id=self.name, display_name="Word counter (not a language model)")

    async def list_models(self) -> list[ModelInfo]:
        return []

    async def complete(self, request: ChatRequest, **options: Any) -> ChatResponse:
        if request.messages[-1].content == "take your time":
            await anyio.sleep_forever()
        results = [m.content for m in request.messages if m.role == "tool"]
        if results:
            return ChatResponse(content=[TextBlock(text="\n".join(map(str, results)))])
        wanted = ("README.md", ".env")
        calls = [
            ToolCall(id=f"call-{n}", name="count_words", arguments={"file": f})
            for n, f in enumerate(wanted)
        ]
        return ChatResponse(content=[], tool_calls=calls)

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return response.tool_calls or []


class CountWords:
    """Counts the words of a file of this repository."""

    name = "count_words"
    description = "Count the words of a file. Input: file, a path relative to the repository."

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 — the contract's name
        path = anyio.Path(ROOT / str(input.get("file")))
        try:
            words = len((await path.read_text(encoding="utf-8")).split())
        except OSError as exc:
            return ToolResult(success=False, error={"message": str(exc)})
        return ToolResult(output=f"{path.name} has {words} words")


async def mount_loop(coordinator: Any, config: dict[str, Any]) -> SmallLoop:
    return SmallLoop()


async def mount_memory(coordinator: Any, config: dict[str, Any]) -> ListMemory:
    return ListMemory()


async def mount_provider(coordinator: Any, config: dict[str, Any]) -> WordCountingProvider:
    return WordCountingProvider()


async def mount_tool(coordinator: Any, config: dict[str, Any]) -> CountWords:
    return CountWords()


async def mount_gate(coordinator: Any, config: dict[str, Any]) -> Callable[[], None]:
    async def keep_secrets(event: str, data: dict[str, Any]) -> HookResult:
        print(f"  gate: {data['tool_name']} {data['tool_input']}")
        if str(data["tool_input"].get("file", "")).endswith(".env"):
            return HookResult(action="deny", reason="that file holds secrets")
        return HookResult()

    unregister: Callable[[], None] = coordinator.hooks.register(
        "tool:pre", keep_secrets, name="keep-secrets"
    )
    return unregister


PLAN = {
    "session": {"orchestrator": "loop-small", "context": "context-list"},
    "providers": [{"module": "provider-word-counter"}],
    "tools": [{"module": "tool-count-words"}],
    "hooks": [{"module": "hooks-keep-secrets", "on_failure": "deny"}],
}

MODULES = {
    "loop-small": mount_loop,
    "context-list": mount_memory,
    "provider-word-counter": mount_provider,
    "tool-count-words": mount_tool,
    "hooks-keep-secrets": mount_gate,
}


async def main(backend: str) -> None:
    print(f"── one agent, on {backend}")
    async with AmplifierSession(PLAN, loader=ModuleLoader(modules=MODULES)) as session:
        prompt = "How long are README.md and .env?"
        print(f"  user: {prompt}")
        for line in (await session.execute(prompt)).splitlines():
            print(f"  agent: {line}")

        print("  user: take your time   (and Ctrl-C, so to speak)")
        async with anyio.create_task_group() as group:
            group.start_soon(stop_when_waiting, session)
            try:
                await session.execute("take your time")
            except ExecutionCancelled as stopped:
                print(f"  kernel: {stopped}")
        context = session.coordinator.get("context")
        assert context is not None  # the plan names one
        messages = await context.get_messages()
        print(f"  transcript: {len(messages)} messages, the last from {messages[-1]['role']}")
    print(
        f"  closed: {session.status.status}, nothing left: {session.statistics().handlers} handlers"
    )


async def stop_when_waiting(session: AmplifierSession) -> None:
    await anyio.wait_all_tasks_blocked()
    session.coordinator.cancellation.request_immediate(reason="the user pressed stop")


if __name__ == "__main__":
    for name in sys.argv[1:] or ["asyncio", "trio"]:
        anyio.run(main, name, backend=name)
