"""The provider and its config."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs

from amplifier.contracts import Coordinator
from amplifier.models import ChatRequest, ChatResponse, Degradation, TextBlock, ToolCall, ToolCallBlock

from .._local_answers import Answer, LocalAnswerProvider, estimated_usage
from .._shared.configuration import flag, number, option, read_options, whole_number
from ._reply import reply_to

_CHARACTERS_PER_TOKEN = 4


@attrs.frozen(kw_only=True)
class OfflineOptions:
    """The configuration of provider-offline.

    Attributes:
        max_calls: Tool calls in one turn.
        max_steps: Replies with tool calls in one turn.
        stream_delay_ms: Pause before each piece of a stream.
        raw: Whether events carry the whole request and response.
        priority: For hosts that choose between providers; the provider does not use it.
    """

    max_calls: int = option(whole_number(1), default=40)
    max_steps: int = option(whole_number(1), default=12)
    stream_delay_ms: float = option(number(0, what="a number of milliseconds"), default=0.0)
    raw: bool = option(flag, key="debug", default=False)
    priority: int = option(whole_number(0), default=0)


class OfflineProvider(LocalAnswerProvider):
    """Answers by fixed rules; keeps no state, so that it serves any number of requests at once."""

    _name = "offline"
    _title = "Offline (fixed rules, no language model)"
    _model = "offline-rules"

    def __init__(self, coordinator: Coordinator, options: OfflineOptions) -> None:
        super().__init__(coordinator, raw=options.raw)
        self._options = options

    async def _answer(self, request: ChatRequest) -> Answer:
        reply = reply_to(request, max_calls=self._options.max_calls, max_steps=self._options.max_steps)
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
        return Answer(response=response, pause=self._options.stream_delay_ms / 1000)


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
    provider = OfflineProvider(coordinator, read_options(OfflineOptions, "provider-offline", config))
    await coordinator.mount("providers", provider, name=provider.name)
    return provider.aclose
