"""provider-mock: responses from a script in the mount plan, for tests without a model."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import attrs

from amplifier._internal.json import JSON
from amplifier.contracts import Coordinator
from amplifier.errors import InvalidRequestError, LLMError, PlanError
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    Usage,
)

from .._shared.configuration import (
    Kind,
    any_text,
    choice,
    delay,
    flag,
    list_each,
    list_of,
    mapping,
    number,
    option,
    read_options,
    record,
    text,
    whole_number,
)
from .._shared.failure import shown
from ._conversation import used_ids
from ._local_answers import Answer, LocalAnswerProvider, estimated_usage, fresh_id
from ._streams import calls_among

__all__ = ["MockProvider", "mount"]

__amplifier_module_type__ = "provider"

_DEFAULT = (
    "This is the default response of provider-mock. Set `responses` in its config to change it."
)


def _all_errors(kind: type[LLMError]) -> dict[str, type[LLMError]]:
    """Return the classes of `LLMError` by name, without those of other packages."""
    errors = {kind.__name__: kind} if kind.__module__ == LLMError.__module__ else {}
    for subclass in kind.__subclasses__():
        errors |= _all_errors(subclass)
    return errors


_ERRORS = _all_errors(LLMError)


# ── the script ───────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(kw_only=True)
class _Call:
    name: str = option(text)
    arguments: dict[str, JSON] = option(mapping, default=attrs.Factory(dict))
    id: str = option(any_text, default="")


_AMOUNT = Kind(
    "an amount as text",
    lambda value: isinstance(value, str) and bool(re.fullmatch(r"\d+(\.\d+)?", value)),
)


@attrs.frozen(kw_only=True)
class _Usage:
    input_tokens: int = option(whole_number(0), default=0)
    output_tokens: int = option(whole_number(0), default=0)
    cache_read_tokens: int | None = option(whole_number(0), default=None)
    cache_write_tokens: int | None = option(whole_number(0), default=None)
    reasoning_tokens: int | None = option(whole_number(0), default=None)
    cost_usd: str | None = option(_AMOUNT, default=None)


@attrs.frozen(kw_only=True)
class _Error:
    type: str = option(choice(*_ERRORS), default="LLMError")
    message: str | None = option(any_text, default=None)
    retryable: bool | None = option(flag, default=None)
    retry_after: float | None = option(delay, default=None)
    status_code: int | None = option(whole_number(), default=None)


def _read_error(value: object) -> object:
    return _Error(message=value) if isinstance(value, str) else record(_Error).read(value)


@attrs.frozen(kw_only=True)
class _Step:
    """One response of the script. The reference page explains the keys."""

    text: str | None = option(any_text, default=None)
    thinking: str | None = option(any_text, default=None)
    signature: str | None = option(any_text, default=None)
    tool_calls: tuple[_Call, ...] = option(list_each("tool calls", record(_Call)), default=())
    chunks: tuple[str, ...] | None = option(
        list_of("non-empty texts", lambda piece: isinstance(piece, str) and bool(piece)),
        default=None,
    )
    usage: _Usage | None = option(record(_Usage), default=None)
    error: _Error | None = option(
        Kind("a message or an object", lambda value: isinstance(value, str | Mapping), _read_error),
        default=None,
    )
    delay: float = option(delay, default=0.0)
    finish_reason: str | None = option(any_text, default=None)

    def __attrs_post_init__(self) -> None:
        if self.text is not None and self.chunks is not None and "".join(self.chunks) != self.text:
            raise PlanError(
                [("$.chunks", "the joined chunks differ from text; omit text or correct it")]
            )

    def blocks(self) -> list[Any]:
        """Return the content. Tool calls may still lack an id."""
        text = "".join(self.chunks) if self.text is None and self.chunks else self.text
        return [
            *(
                []
                if self.thinking is None
                else [ThinkingBlock(thinking=self.thinking, signature=self.signature)]
            ),
            *([] if text is None else [TextBlock(text=text)]),
            *(
                ToolCallBlock(id=call.id, name=call.name, input=call.arguments)
                for call in self.tool_calls
            ),
        ]


_STEP = Kind(
    f"text or an object of {', '.join(field.name for field in attrs.fields(_Step))}",
    lambda value: isinstance(value, str) or (isinstance(value, dict) and bool(value)),
    lambda value: _Step(text=value) if isinstance(value, str) else record(_Step).read(value),
)


@attrs.frozen(kw_only=True)
class _Options:
    """The configuration of provider-mock.

    Attributes:
        responses: The script, one step for each request.
        when_exhausted: The effect of a request after the last step. ``repeat`` starts again,
            ``error`` raises an error.
        stream_delay_ms: Milliseconds before each piece of a stream.
        raw: Whether events contain the whole request and response.
        priority: The provider's rank, for hosts that choose between providers.
    """

    responses: tuple[_Step, ...] = option(
        list_each("texts and objects", _STEP, least=1), default=(_Step(text=_DEFAULT),)
    )
    when_exhausted: str = option(choice("repeat", "error"), default="repeat")
    stream_delay_ms: float = option(number(0, what="a number of milliseconds"), default=0.0)
    raw: bool = option(flag, key="debug", default=False)
    priority: int = option(whole_number(0), default=0)


# ── the provider ─────────────────────────────────────────────────────────────────────────────────


class MockProvider(LocalAnswerProvider):
    """Returns the responses of a script, one step for each request.

    Args:
        coordinator: Receives the events.
        options: The script, and the pace of streams.
    """

    _name = "mock"
    _title = "Mock (a script, no model)"
    _model = "mock-model"

    def __init__(self, coordinator: Coordinator, options: _Options) -> None:
        super().__init__(coordinator, raw=options.raw)
        self._options = options
        self._count = 0

    def __repr__(self) -> str:
        length = len(self._options.responses)
        return f"<MockProvider: {self._count} responses so far, {length} in the script>"

    async def _answer(self, request: ChatRequest) -> Answer:
        # This happens before the first await, so concurrent requests get different steps.
        step, number = self._take()
        if step.delay:
            await anyio.sleep(step.delay)
        error = None if step.error is None else _raised(step.error, request.model or self._model)
        blocks, taken = step.blocks(), used_ids(request)
        if error is not None and not blocks:
            raise error
        for index, block in enumerate(blocks):
            if isinstance(block, ToolCallBlock):
                block.id = fresh_id(block.id or f"mock_{number}_{index}", taken)
                taken.add(block.id)
        calls = calls_among(blocks)
        response = ChatResponse(
            content=blocks,
            tool_calls=calls or None,
            usage=estimated_usage(request, blocks) if step.usage is None else _reported(step.usage),
            finish_reason=step.finish_reason or ("tool_calls" if calls else "stop"),
        )
        pieces = (
            {}
            if step.chunks is None
            else {
                index: list(step.chunks)
                for index, block in enumerate(blocks)
                if isinstance(block, TextBlock)
            }
        )
        return Answer(
            response=response,
            pieces=pieces,
            pause=self._options.stream_delay_ms / 1000,
            error=error,
        )

    def _take(self) -> tuple[_Step, int]:
        at, length = self._count, len(self._options.responses)
        if at >= length and self._options.when_exhausted == "error":
            raise InvalidRequestError(
                f"provider-mock: all {length} scripted responses are used up; add one to "
                "`responses`, or set `when_exhausted` to 'repeat'",
                provider=self._name,
            )
        self._count += 1
        return self._options.responses[at % length], at + 1


def _reported(usage: _Usage) -> Usage:
    return Usage(**attrs.asdict(usage), total_tokens=usage.input_tokens + usage.output_tokens)


def _raised(error: _Error, model: str) -> LLMError:
    kind = _ERRORS[error.type]
    fields = attrs.asdict(error, filter=lambda field, value: value is not None)
    message = shown(fields.pop("message", f"scripted {kind.__name__}"), 1000)
    del fields["type"]
    return kind(message, provider=MockProvider._name, model=model, **fields)


async def mount(
    coordinator: Coordinator, config: dict[str, Any] | None = None
) -> Callable[[], Awaitable[None]]:
    """Mount the provider ``mock``, and return the cleanup, which closes unfinished streams.

    Raises:
        PlanError: The configuration is invalid.
    """
    provider = MockProvider(coordinator, read_options(_Options, "provider-mock", config))
    await coordinator.mount("providers", provider, name=provider.name)
    return provider.aclose
