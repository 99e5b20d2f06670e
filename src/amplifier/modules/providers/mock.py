"""provider-mock: responses from a script in the mount plan, for tests and demonstrations without a model.

The script is plain JSON: text, thinking, tool calls, usage, errors, delays and the pieces of a stream. The provider counts
its responses and stores nothing of the requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import attrs

from amplifier.contracts import Coordinator
from amplifier.errors import InvalidRequestError, LLMError, ModelError, PlanError
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolCallBlock,
    Usage,
    from_dict,
)

from .._shared.configuration import (
    Kind,
    any_text,
    choice,
    delay,
    flag,
    list_each,
    list_of,
    number,
    object_with,
    option,
    read_options,
    whole_number,
)
from .._shared.failure import shown
from ._conversation import used_ids
from ._local_answers import Answer, LocalAnswerProvider, estimated_usage, fresh_id

__all__ = ["MockProvider", "mount"]

__amplifier_module_type__ = "provider"

_MODULE = "provider-mock"
_DEFAULT = "This is provider-mock speaking from its script; give it `responses` of your own in the plan."


def _all_errors(kind: type[LLMError]) -> dict[str, type[LLMError]]:
    """The error taxonomy by name, without classes that other packages derive from it."""
    found = {kind.__name__: kind} if kind.__module__ == LLMError.__module__ else {}
    for narrower in kind.__subclasses__():
        found |= _all_errors(narrower)
    return found


_ERRORS = _all_errors(LLMError)


# ── the script ───────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(kw_only=True)
class _Step:
    """One response of the script.

    Attributes:
        blocks: The content; tool calls may still have no id.
        pieces: The pieces of the text, or None to split it at words.
        usage: The reported usage, or None for an estimate.
        error: Raised instead of the response, or after its pieces if there is content.
        delay: Seconds before the response begins.
        finish_reason: Or None for the usual one.
    """

    blocks: tuple[Any, ...] = ()
    pieces: tuple[str, ...] | None = None
    usage: Mapping[str, int] | None = None
    error: Mapping[str, Any] | None = None
    delay: float = 0.0
    finish_reason: str | None = None


def _is_call(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and bool(value["name"])
        and isinstance(value.get("arguments", {}), dict)
        and isinstance(value.get("id", ""), str)
        and value.keys() <= {"name", "arguments", "id"}
    )


def _read_calls(value: list[Any]) -> list[ToolCallBlock]:
    wrong = [call for call in value if not _is_call(call)]
    if wrong:
        raise _problem(f"expected tool calls with name, arguments (an object) and perhaps id, got {wrong[0]!r:.80}")
    return [ToolCallBlock(id=call.get("id", ""), name=call["name"], input=call.get("arguments", {})) for call in value]


def _read_content(value: list[Any]) -> list[Any]:
    try:
        return list(from_dict(ChatResponse, {"content": value}).content)
    except ModelError as error:
        raise _problem(f"expected content blocks: {error}") from error


_USAGE_KEYS = frozenset(field.name for field in attrs.fields(Usage)) - {"extra"}
_TOKENS = whole_number(0)


def _read_usage(value: Mapping[str, Any]) -> Mapping[str, Any]:
    for key, given in value.items():
        if key != "cost_usd" and not _TOKENS.accepts(given):
            raise _problem(f"{key}: expected a whole number of tokens, got {given!r:.80}")
    try:
        _usage_from(value)
    except ModelError as error:
        raise _problem(str(error)) from error
    return value


_ERROR_MEMBERS: Mapping[str, Callable[[Any], bool]] = {
    "type": lambda value: True,
    "message": any_text.accepts,
    "retryable": flag.accepts,
    "retry_after": delay.accepts,
    "status_code": whole_number().accepts,
}


def _read_error(value: Any) -> Mapping[str, Any]:
    given: Mapping[str, Any] = {"message": value} if isinstance(value, str) else value
    if given.get("type", "LLMError") not in _ERRORS:
        raise _problem(f"type: expected one of {', '.join(_ERRORS)}, got {given['type']!r:.80}")
    for key, member in given.items():
        if not _ERROR_MEMBERS[key](member):
            raise _problem(f"{key}: a wrong value, {member!r:.80}")
    return given


def _problem(problem: str) -> PlanError:
    return PlanError([("$", problem)])


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


_STEP_MEMBERS: Mapping[str, Kind] = {
    "text": any_text,
    "thinking": any_text,
    "signature": any_text,
    "tool_calls": Kind("a list of tool calls", _is_list, _read_calls),
    "content": Kind("a list of content blocks", _is_list, _read_content),
    "chunks": list_of("non-empty texts", lambda piece: isinstance(piece, str) and bool(piece)),
    "usage": Kind(
        f"an object with keys of {', '.join(sorted(_USAGE_KEYS))}",
        lambda value: isinstance(value, dict) and value.keys() <= _USAGE_KEYS,
        _read_usage,
    ),
    "error": Kind(
        f"a message, or an object with {', '.join(_ERROR_MEMBERS)}",
        lambda value: isinstance(value, str) or (isinstance(value, dict) and value.keys() <= _ERROR_MEMBERS.keys()),
        _read_error,
    ),
    "delay": delay,
    "finish_reason": any_text,
}
_STEP_OBJECT = object_with(_STEP_MEMBERS)


def _read_step(value: Any) -> _Step:
    given: dict[str, Any] = {"text": value} if isinstance(value, str) else _STEP_OBJECT.read(value)
    chunks = given.get("chunks")
    if "content" in given and given.keys() & {"text", "thinking", "signature", "tool_calls", "chunks"}:
        problem = "has the same meaning as text, thinking, tool_calls and chunks; give one of both"
        raise PlanError([("$.content", problem)])
    if "text" in given and chunks is not None and "".join(chunks) != given["text"]:
        raise PlanError([("$.chunks", "joined, they are not the text; omit text or correct it")])
    blocks: list[Any] = given.get("content", [])
    if "thinking" in given:
        blocks.append(ThinkingBlock(thinking=given["thinking"], signature=given.get("signature")))
    if "text" in given or chunks:
        blocks.append(TextBlock(text=given.get("text", "".join(chunks or ()))))
    return _Step(
        blocks=(*blocks, *given.get("tool_calls", ())),
        pieces=chunks or None,
        usage=given.get("usage"),
        error=given.get("error"),
        delay=float(given.get("delay", 0)),
        finish_reason=given.get("finish_reason"),
    )


_STEP = Kind(
    f"text or an object of {', '.join(_STEP_MEMBERS)}",
    lambda value: isinstance(value, str) or (isinstance(value, dict) and bool(value)),
    _read_step,
)


def _usage_from(given: Mapping[str, Any]) -> Usage:
    input_tokens, output_tokens = given.get("input_tokens", 0), given.get("output_tokens", 0)
    counted = {"input_tokens": input_tokens, "output_tokens": output_tokens}
    return Usage(**{**given, **counted, "total_tokens": input_tokens + output_tokens})


@attrs.frozen(kw_only=True)
class _Options:
    """The configuration of provider-mock.

    Attributes:
        responses: The script, one step for each request.
        when_exhausted: ``repeat`` starts again, ``last`` stays at the last step, ``error`` raises.
        stream_delay_ms: Pause before each piece of a stream.
        use_streaming: Whether a stream splits a text into pieces.
        raw: Whether events carry the whole request and response.
        priority: For hosts that choose between providers; the provider does not use it.
    """

    responses: tuple[_Step, ...] = option(
        list_each("texts and objects", _STEP, least=1), default=(_read_step(_DEFAULT),)
    )
    when_exhausted: str = option(choice("repeat", "last", "error"), default="repeat")
    stream_delay_ms: float = option(number(0, what="a number of milliseconds"), default=0.0)
    use_streaming: bool = option(flag, default=True)
    raw: bool = option(flag, key="debug", default=False)
    priority: int = option(whole_number(0), default=0)


# ── the provider ─────────────────────────────────────────────────────────────────────────────────


class MockProvider(LocalAnswerProvider):
    """Returns the responses of a script, one step for each request.

    Args:
        coordinator: For events.
        options: The script and how to stream it.
    """

    _name = "mock"
    _title = "Mock (a script, no model)"
    _model = "mock-model"

    def __init__(self, coordinator: Coordinator, options: _Options) -> None:
        super().__init__(coordinator, raw=options.raw)
        self._options = options
        self._given = 0

    def __repr__(self) -> str:
        return f"<MockProvider: {self._given} answers given, {len(self._options.responses)} in the script>"

    async def _answer(self, request: ChatRequest) -> Answer:
        step, number = self._take()  # before the first await: concurrent requests get different steps
        if step.delay:
            await anyio.sleep(step.delay)
        error = None if step.error is None else _raised(step.error, request.model or self._model)
        if error is not None and not step.blocks:
            raise error
        response = self._response(step, number, request)
        return Answer(
            response=response,
            pieces=self._pieces_of(step, response),
            pause=self._options.stream_delay_ms / 1000,
            error=error,
        )

    def _take(self) -> tuple[_Step, int]:
        at, length = self._given, len(self._options.responses)
        if at >= length and self._options.when_exhausted == "error":
            raise InvalidRequestError(
                f"provider-mock: all {length} scripted responses are used up; add one to `responses`, or set "
                "`when_exhausted` to 'repeat' or 'last'",
                provider=self._name,
            )
        self._given += 1
        return self._options.responses[
            at % length if self._options.when_exhausted == "repeat" else min(at, length - 1)
        ], at + 1

    def _response(self, step: _Step, number: int, request: ChatRequest) -> ChatResponse:
        taken = used_ids(request)
        blocks: list[Any] = []
        for block in step.blocks:
            new = attrs.evolve(block)  # a response is the caller's, who may change it
            if isinstance(new, ToolCallBlock):
                new.id = fresh_id(new.id or f"mock_{number}_{len(blocks)}", taken)
                new.input = dict(new.input)
                taken.add(new.id)
            blocks.append(new)
        calls = [
            ToolCall(id=b.id, name=b.name, arguments=dict(b.input)) for b in blocks if isinstance(b, ToolCallBlock)
        ]
        return ChatResponse(
            content=blocks,
            tool_calls=calls or None,
            usage=estimated_usage(request, blocks) if step.usage is None else _usage_from(step.usage),
            finish_reason=step.finish_reason or ("tool_calls" if calls else "stop"),
        )

    def _pieces_of(self, step: _Step, response: ChatResponse) -> dict[int, list[str]]:
        pieces: dict[int, list[str]] = {}
        for index, block in enumerate(response.content):
            if isinstance(block, TextBlock) and block.text:
                if step.pieces is not None:
                    pieces[index] = list(step.pieces)
                elif not self._options.use_streaming:
                    pieces[index] = [block.text]
        return pieces


def _raised(given: Mapping[str, Any], model: str) -> LLMError:
    kind = _ERRORS[given.get("type", "LLMError")]
    fields = {key: given[key] for key in ("retryable", "retry_after", "status_code") if key in given}
    message = shown(given.get("message", f"scripted {kind.__name__}"), 1000)
    return kind(message, provider=MockProvider._name, model=model, **fields)


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> Callable[[], Awaitable[None]]:
    """Mount the provider ``mock``.

    Args:
        coordinator: The session's.
        config: See the module's reference page for the keys.

    Returns:
        The cleanup, which closes unfinished streams.

    Raises:
        PlanError: The configuration is wrong.
    """
    provider = MockProvider(coordinator, read_options(_Options, _MODULE, config))
    await coordinator.mount("providers", provider, name=provider.name)
    return provider.aclose
