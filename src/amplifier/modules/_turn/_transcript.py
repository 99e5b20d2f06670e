"""What a turn writes into the context, and how it stays valid when the turn is cut short (L5).

The assistant's message comes before its tool results; results follow in the order of the calls, one for each, whatever happens.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from amplifier.contracts import ContextManager
from amplifier.models import ChatResponse, Message, TextBlock, ToolCall, ToolCallBlock, ToolResult, to_dict

INTERRUPTED = "[interrupted: the turn ended before this call returned]"

_SETTLING_SECONDS = 10.0


def text_of(response: ChatResponse) -> str:
    """The words of an answer."""
    return "".join(block.text for block in response.content if isinstance(block, TextBlock))


def assistant_message(response: ChatResponse, calls: list[ToolCall]) -> dict[str, Any]:
    """An answer as the context keeps it: plain text where it is nothing but text, else every block as it came."""
    plain = all(
        isinstance(block, TextBlock) and not block.extra and block.visibility is None for block in response.content
    )
    content: Any = text_of(response) if plain else [to_dict(block) for block in response.content]
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        if plain:
            blocks = [to_dict(block) for block in response.content]
            message["content"] = [*blocks, *(_call_block(call) for call in calls)]
        else:
            shown = {block.id for block in response.content if isinstance(block, ToolCallBlock)}
            message["content"] += [_call_block(call) for call in calls if call.id not in shown]
        # Contexts of every make keep calls and results together by these ids.
        message["tool_calls"] = [
            {"id": call.id, "name": call.name, "tool": call.name, "arguments": call.arguments} for call in calls
        ]
    return message


def _call_block(call: ToolCall) -> dict[str, Any]:
    return to_dict(ToolCallBlock(id=call.id, name=call.name, input=call.arguments))


def result_message(call: ToolCall, result: ToolResult) -> dict[str, Any]:
    """A tool's result as the context keeps it."""
    content: Any = result.get_serialized_output()
    if result.content:
        content = [to_dict(block) for block in result.content]
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}


def as_request_messages(messages: list[dict[str, Any]]) -> list[Message]:
    """Context messages as the provider gets them."""
    return [Message(**(m if m.get("content") is not None else {**m, "content": ""})) for m in messages]


class Transcript:
    """The part of the conversation that one turn is responsible for."""

    def __init__(self, context: ContextManager) -> None:
        self._context = context
        self._open: list[ToolCall] = []

    async def add(self, message: dict[str, Any]) -> None:
        """Store a message that stands for itself."""
        await self._context.add_message(message)

    async def add_answer(self, response: ChatResponse, calls: list[ToolCall]) -> None:
        """Store the assistant's message; from here on its calls are owed results."""
        self._open = list(calls)
        await self._context.add_message(assistant_message(response, calls))

    async def add_results(self, calls: list[ToolCall], results: list[ToolResult]) -> None:
        """Store one result for each call, in the order of the calls."""
        for call, result in zip(calls, results, strict=True):
            await self._context.add_message(result_message(call, result))
            self._open.remove(call)

    async def settle(self, results: dict[str, ToolResult]) -> None:
        """The turn is being left: give every call that is still owed a result what is known, or a note.

        What a cancelled write has stored is not known, so the context itself is asked first.
        """
        if self._open:
            await unbroken(self._settle, results)

    async def _settle(self, results: dict[str, ToolResult]) -> None:
        stored = await self._context.get_messages()
        asked = {c.get("id") for m in stored if m.get("role") == "assistant" for c in m.get("tool_calls") or ()}
        answered = {m.get("tool_call_id") for m in stored if m.get("role") == "tool"}
        for call in self._open:
            if call.id in asked and call.id not in answered:
                interrupted = ToolResult(success=False, error={"message": INTERRUPTED, "type": "Interrupted"})
                await self._context.add_message(result_message(call, results.get(call.id, interrupted)))
        self._open = []


async def unbroken(fn: Callable[..., Awaitable[None]], *args: Any) -> None:
    """Run ``fn(*args)`` to its end although the caller is being cancelled, natively too; bounded.

    A child task under a shield: a native cancel of the caller only reaches the task group's wait, which goes on.
    """

    async def run() -> None:
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _SETTLING_SECONDS):
            await fn(*args)

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(run)
    except ExceptionGroup as wrapped:
        if len(wrapped.exceptions) == 1:
            raise wrapped.exceptions[0] from None
        raise
