"""A session with our loop-basic and context-simple and a model that answers at once, after a conversation of any length."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import amplifier
from amplifier.modules import context_simple, loop_basic
from benchmarks.payloads import exchanged_texts

PLAN = {
    "session": {
        "orchestrator": "loop-basic",
        "context": {"module": "context-simple", "config": {"max_tokens": 10**9}},
    },
    "providers": [{"module": "provider-bench"}],
}


class Provider:
    """Answers without reading the request."""

    name = "bench"

    def get_info(self) -> amplifier.ProviderInfo:
        return amplifier.ProviderInfo(id="bench", display_name="Bench")

    async def list_models(self) -> list[Any]:
        return []

    async def complete(self, request: amplifier.ChatRequest, **options: Any) -> amplifier.ChatResponse:
        return amplifier.ChatResponse(content=[amplifier.TextBlock(text="Done.")])

    def parse_tool_calls(self, response: amplifier.ChatResponse) -> list[amplifier.ToolCall]:
        return []


async def one_call_after(
    size: int, handlers: int = 0, *, may_wait: bool = False, **options: Any
) -> Callable[[], Awaitable[Any]]:
    """A turn with one model call; the options are those of the handlers' registration.

    Handlers that may wait have an ``await`` in their code, so that each event opens a cancel scope for their deadlines.

    A turn adds two messages: after 50 turns the conversation is as it was at first.
    """

    async def mount_provider(coordinator: Any, config: Any) -> None:
        await coordinator.mount("providers", Provider(), name="bench")

    async def brief(event: str, data: dict[str, Any]) -> None:
        return None

    async def waiting(event: str, data: dict[str, Any]) -> None:
        await brief(event, data)

    handler = waiting if may_wait else brief

    modules = {"loop-basic": loop_basic.mount, "context-simple": context_simple.mount, "provider-bench": mount_provider}
    session = amplifier.AmplifierSession(PLAN, loader=amplifier.ModuleLoader(modules=modules))
    await session.initialize()
    for number in range(handlers):
        session.coordinator.hooks.register("*", handler, name=f"h{number}", **options)
    context: Any = session.coordinator.get("context")
    history = [
        {"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(exchanged_texts(size))
    ]
    await context.set_messages(history)
    await session.execute("go")

    turns = 0

    async def work() -> None:
        nonlocal turns
        turns += 1
        if turns % 50 == 0:
            await context.set_messages(history)
        answer = await session.execute("go")
        assert answer == "Done."

    return work
