"""The provider and its config."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

from amplifier.contracts import Coordinator
from amplifier.models import ChatRequest, ChatResponse, Degradation, TextBlock, ToolCall, ToolCallBlock

from .._local_answers import Answer, LocalAnswerProvider, estimated_usage
from .._tool_base import count, flag, read_config
from ._reply import reply_to

_MODULE = "provider-offline"
_CHARACTERS_PER_TOKEN = 4


class OfflineProvider(LocalAnswerProvider):
    """Answers by fixed rules; keeps no state, so that it serves any number of requests at once.

    Args:
        coordinator: For events.
        max_calls: Tool calls in one turn.
        max_steps: Replies with tool calls in one turn.
        pause: Seconds before each piece of a stream.
        raw: Whether events carry the whole request and response.
    """

    _name = "offline"
    _title = "Offline (fixed rules, no language model)"
    _model = "offline-rules"

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        max_calls: int = 40,
        max_steps: int = 12,
        pause: float = 0.0,
        raw: bool = False,
    ) -> None:
        super().__init__(coordinator, raw=raw)
        self._max_calls = max_calls
        self._max_steps = max_steps
        self._pause = pause

    async def _answer(self, request: ChatRequest) -> Answer:
        reply = reply_to(request, max_calls=self._max_calls, max_steps=self._max_steps)
        text, finish_reason = _limited(reply.text, request)
        blocks: list[Any] = [TextBlock(text=text)] if text else []
        calls = [ToolCall(id=key, name=call.tool, arguments=dict(call.arguments)) for key, call in reply.calls.items()]
        blocks += [ToolCallBlock(id=call.id, name=call.name, input=dict(call.arguments)) for call in calls]
        response = ChatResponse(
            content=blocks,
            tool_calls=calls or None,
            usage=estimated_usage(request, blocks),
            degradation=_degradation(request),
            finish_reason="tool_calls" if calls else finish_reason,
        )
        return Answer(response=response, pause=self._pause)


def _limited(text: str, request: ChatRequest) -> tuple[str, str]:
    """Cut the text to what the request allows; returns it with the reason why it ends."""
    reason = "stop"
    for stop in request.stop or ():
        if stop and stop in text:
            text = text[: text.index(stop)]
    most = request.max_output_tokens
    if most is not None and len(text) > most * _CHARACTERS_PER_TOKEN:
        text, reason = text[: max(0, most) * _CHARACTERS_PER_TOKEN], "length"
    return text, reason


def _degradation(request: ChatRequest) -> Degradation | None:
    asked = request.response_format
    if asked is not None and asked.type != "text":
        return Degradation(requested=asked.type, actual="text", reason="provider-offline answers in text only")
    if request.tool_choice not in (None, "auto", "none"):
        return Degradation(requested="tool_choice", actual="auto", reason="provider-offline calls what its rules need")
    return None


def _milliseconds(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        return f"expected a number of milliseconds, got {value!r:.80}"
    return None


_CHECKS = {
    "max_calls": count(1),
    "max_steps": count(1),
    "stream_delay_ms": _milliseconds,
    "debug": flag,
    "priority": count(0),  # for loops that choose between providers
}


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> Callable[[], Awaitable[None]]:
    """Mount the provider ``offline``.

    Args:
        coordinator: The coordinator of the session.
        config: See the module's reference page for the keys.

    Returns:
        The cleanup, which closes unfinished streams.

    Raises:
        PlanError: The config is wrong.
    """
    options = read_config(_MODULE, config, _CHECKS)
    provider = OfflineProvider(
        coordinator,
        max_calls=options.get("max_calls", 40),
        max_steps=options.get("max_steps", 12),
        pause=options.get("stream_delay_ms", 0) / 1000,
        raw=options.get("debug", False),
    )
    await coordinator.mount("providers", provider, name=provider.name)
    return provider.aclose
