"""A session with our loop-basic and context-simple and a model that answers at once, after a conversation of any length."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import amplifier
from amplifier.modules.context import simple as context_simple
from amplifier.modules.loop import basic as loop_basic
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

    async def complete(
        self, request: amplifier.ChatRequest, **options: Any
    ) -> amplifier.ChatResponse:
        return amplifier.ChatResponse(content=[amplifier.TextBlock(text="Done.")])

    def parse_tool_calls(self, response: amplifier.ChatResponse) -> list[amplifier.ToolCall]:
        return []


async def one_call_after(size: int) -> Callable[[], Awaitable[Any]]:
    """Prepare a turn with one model call after a conversation of `size` messages.

    A turn adds two messages. After as many turns as there were messages, 50 at least, the
    conversation is put back. That costs about as much as one short turn for every 20 messages,
    which must not be seen in the time of a turn.
    """

    async def mount_provider(coordinator: Any, config: Any) -> None:
        await coordinator.mount("providers", Provider(), name="bench")

    modules = {
        "loop-basic": loop_basic.mount,
        "context-simple": context_simple.mount,
        "provider-bench": mount_provider,
    }
    session = amplifier.AmplifierSession(PLAN, loader=amplifier.ModuleLoader(modules=modules))
    await session.initialize()
    context: Any = session.coordinator.get("context")
    history = [
        {"role": ("user", "assistant")[at % 2], "content": text}
        for at, text in enumerate(exchanged_texts(size))
    ]
    await context.set_messages(history)
    await session.execute("go")

    turns = 0

    async def work() -> None:
        nonlocal turns
        turns += 1
        if turns % max(50, size) == 0:
            await context.set_messages(history)
        answer = await session.execute("go")
        assert answer == "Done."

    return work
