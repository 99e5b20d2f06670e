"""provider-mock: answers from a script in the mount plan, for tests and demonstrations without a model.

Everything is plain JSON: text, thinking, tool calls, usage, errors, delays and the pieces of a stream. It remembers how
many answers it gave and nothing of what it was asked.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import anyio
import attrs

from amplifier._spelling import suggestion
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

from ._local_answers import Answer, LocalAnswerProvider, estimated_usage, fresh_id, used_ids
from ._tool_base import count, flag, one_of, read_config, shown

__all__ = ["MockProvider", "mount"]

__amplifier_module_type__ = "provider"

_MODULE = "provider-mock"
_DEFAULT = "This is provider-mock speaking from its script; give it `responses` of your own in the plan."
_Check: TypeAlias = Callable[[Any], str | None]
"""What is wrong with a value, in words; None if nothing is."""


def _all_errors(kind: type[LLMError]) -> dict[str, type[LLMError]]:
    """The taxonomy by name, without what others derive from it."""
    found = {kind.__name__: kind} if kind.__module__ == LLMError.__module__ else {}
    for narrower in kind.__subclasses__():
        found |= _all_errors(narrower)
    return found


_ERRORS = _all_errors(LLMError)


# ── one scripted answer ──────────────────────────────────────────────────────────────────────────


@attrs.frozen(kw_only=True)
class _Step:
    """One answer of the script, checked when it was read.

    Attributes:
        blocks: Its content; tool calls among them may still be without an id.
        pieces: The pieces of the text, or None to cut it at words.
        usage: What it reports, or None for an estimate.
        error: Raised in its place, or after its pieces if it has content.
        delay: Seconds before it begins.
        finish_reason: Or None for the usual one.
    """

    blocks: tuple[Any, ...] = ()
    pieces: tuple[str, ...] | None = None
    usage: Mapping[str, int] | None = None
    error: Mapping[str, Any] | None = None
    delay: float = 0.0
    finish_reason: str | None = None


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else f"expected text, got {value!r:.80}"


def _number(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        return f"expected a number of seconds, got {value!r:.80}"
    return None


def _pieces(value: Any) -> str | None:
    if not isinstance(value, list) or not all(isinstance(piece, str) and piece for piece in value):
        return f"expected a list of non-empty texts, got {value!r:.80}"
    return None


def _calls(value: Any) -> str | None:
    if not isinstance(value, list):
        return f"expected a list of tool calls, got {value!r:.80}"
    for call in value:
        if (
            not isinstance(call, dict)
            or not isinstance(call.get("name"), str)
            or not call["name"]
            or not isinstance(call.get("arguments", {}), dict)
            or not isinstance(call.get("id", "x"), str)
            or call.keys() - {"name", "arguments", "id"}
        ):
            return f"expected tool calls with name, arguments (an object) and perhaps id, got {call!r:.80}"
    return None


def _content(value: Any) -> str | None:
    if not isinstance(value, list):
        return f"expected a list of content blocks, got {value!r:.80}"
    try:
        from_dict(ChatResponse, {"content": value})
    except ModelError as error:
        return f"expected content blocks: {error}"
    return None


def _usage(value: Any) -> str | None:
    allowed = {field.name for field in attrs.fields(Usage)} - {"extra"}
    if not isinstance(value, dict) or value.keys() - allowed:
        return f"expected an object with keys of {', '.join(sorted(allowed))}, got {value!r:.80}"
    for key, given in value.items():
        if key != "cost_usd" and (isinstance(given, bool) or not isinstance(given, int) or given < 0):
            return f"{key}: expected a whole number of tokens, got {given!r:.80}"
    try:
        _usage_from(value)
    except ModelError as error:
        return str(error)
    return None


def _error(value: Any) -> str | None:
    if isinstance(value, str):
        return None
    if not isinstance(value, dict) or value.keys() - {"type", "message", "retryable", "retry_after", "status_code"}:
        return (
            "expected a message, or an object with type, message, retryable, retry_after and status_code, "
            f"got {value!r:.80}"
        )
    if value.get("type", "LLMError") not in _ERRORS:
        return f"type: expected one of {', '.join(_ERRORS)}, got {value['type']!r:.80}"
    checks: dict[str, Callable[[Any], bool]] = {
        "message": lambda given: isinstance(given, str),
        "retryable": lambda given: isinstance(given, bool),
        "retry_after": lambda given: _number(given) is None,
        "status_code": lambda given: isinstance(given, int) and not isinstance(given, bool),
    }
    wrong = [key for key, fits in checks.items() if key in value and not fits(value[key])]
    return f"{wrong[0]}: a wrong value, {value[wrong[0]]!r:.80}" if wrong else None


_STEP_CHECKS: Mapping[str, _Check] = {
    "text": _text,
    "thinking": _text,
    "signature": _text,
    "tool_calls": _calls,
    "content": _content,
    "chunks": _pieces,
    "usage": _usage,
    "error": _error,
    "delay": _number,
    "finish_reason": _text,
}


def _read_steps(given: Any) -> list[_Step]:
    """Read the script.

    Raises:
        PlanError: With every problem under its path.
    """
    if not isinstance(given, list) or not given:
        problem = f"expected a list of one or more texts and objects, got {given!r:.80}"
        raise PlanError([("$.responses", problem)], subject=f"invalid config of {_MODULE}")
    problems = [problem for index, step in enumerate(given) for problem in _problems(step, f"$.responses[{index}]")]
    if problems:
        raise PlanError(problems, subject=f"invalid config of {_MODULE}")
    return [_step({"text": step} if isinstance(step, str) else step) for step in given]


def _problems(step: Any, path: str) -> list[tuple[str, str]]:
    if isinstance(step, str):
        return []
    if not isinstance(step, dict) or not step:
        return [(path, f"expected text or an object of {', '.join(_STEP_CHECKS)}, got {step!r:.80}")]
    problems: list[tuple[str, str]] = []
    for key, value in step.items():
        if key not in _STEP_CHECKS:
            hint = suggestion(key, _STEP_CHECKS) or f"; expected {', '.join(_STEP_CHECKS)}"
            problems.append((f"{path}.{key}", f"unknown key{hint}"))
        elif problem := _STEP_CHECKS[key](value):
            problems.append((f"{path}.{key}", problem))
    if "content" in step and step.keys() & {"text", "thinking", "signature", "tool_calls", "chunks"}:
        problems.append((f"{path}.content", "says the same as text, thinking, tool_calls and chunks; give one of both"))
    elif "text" in step and "chunks" in step and not problems and "".join(step["chunks"]) != step["text"]:
        problems.append((f"{path}.chunks", "joined, they are not the text; leave text out or mend it"))
    return problems


def _step(given: Mapping[str, Any]) -> _Step:
    blocks: list[Any] = []
    if "content" in given:
        blocks = list(from_dict(ChatResponse, {"content": given["content"]}).content)
    if "thinking" in given:
        blocks.append(ThinkingBlock(thinking=given["thinking"], signature=given.get("signature")))
    chunks = given.get("chunks")
    if "text" in given or chunks:
        blocks.append(TextBlock(text=given.get("text", "".join(chunks or ()))))
    for call in given.get("tool_calls", ()):
        blocks.append(ToolCallBlock(id=call.get("id", ""), name=call["name"], input=call.get("arguments", {})))
    error = given.get("error")
    return _Step(
        blocks=tuple(blocks),
        pieces=tuple(chunks) if chunks else None,
        usage=given.get("usage"),
        error={"message": error} if isinstance(error, str) else error,
        delay=float(given.get("delay", 0)),
        finish_reason=given.get("finish_reason"),
    )


def _usage_from(given: Mapping[str, Any]) -> Usage:
    asked, answered = given.get("input_tokens", 0), given.get("output_tokens", 0)
    return Usage(**{**given, "input_tokens": asked, "output_tokens": answered, "total_tokens": asked + answered})


# ── the provider ─────────────────────────────────────────────────────────────────────────────────


class MockProvider(LocalAnswerProvider):
    """Plays a script, one step for each request.

    Args:
        coordinator: For events.
        steps: The script.
        when_exhausted: ``repeat`` begins anew, ``last`` stays at the last step, ``error`` refuses.
        pause: Seconds before each piece of a stream.
        whole: Whether a stream gives each block in one piece.
        raw: Whether events carry the whole request and response.
    """

    _name = "mock"
    _title = "Mock (a script, no model)"
    _model = "mock-model"

    def __init__(
        self,
        coordinator: Coordinator,
        steps: list[_Step],
        *,
        when_exhausted: str = "repeat",
        pause: float = 0.0,
        whole: bool = False,
        raw: bool = False,
    ) -> None:
        super().__init__(coordinator, raw=raw)
        self._steps = steps
        self._when_exhausted = when_exhausted
        self._pause = pause
        self._whole = whole
        self._given = 0

    def __repr__(self) -> str:
        return f"<MockProvider: {self._given} answers given, {len(self._steps)} in the script>"

    async def _answer(self, request: ChatRequest) -> Answer:
        step, number = self._take()  # before the first await: concurrent requests get different steps
        if step.delay:
            await anyio.sleep(step.delay)
        error = None if step.error is None else _raised(step.error, request.model or self._model)
        if error is not None and not step.blocks:
            raise error
        response = self._response(step, number, request)
        return Answer(response=response, pieces=self._pieces_of(step, response), pause=self._pause, error=error)

    def _take(self) -> tuple[_Step, int]:
        at, length = self._given, len(self._steps)
        if at >= length and self._when_exhausted == "error":
            raise InvalidRequestError(
                f"provider-mock: all {length} scripted responses are used up; add one to `responses`, or set "
                "`when_exhausted` to 'repeat' or 'last'",
                provider=self._name,
            )
        self._given += 1
        return self._steps[at % length if self._when_exhausted == "repeat" else min(at, length - 1)], at + 1

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
                elif self._whole:
                    pieces[index] = [block.text]
        return pieces


def _raised(given: Mapping[str, Any], model: str) -> LLMError:
    kind = _ERRORS[given.get("type", "LLMError")]
    fields = {key: given[key] for key in ("retryable", "retry_after", "status_code") if key in given}
    message = shown(given.get("message", f"scripted {kind.__name__}"), 1000)
    return kind(message, provider=MockProvider._name, model=model, **fields)


def _milliseconds(value: Any) -> str | None:
    return None if _number(value) is None else f"expected a number of milliseconds, got {value!r:.80}"


_CHECKS: Mapping[str, _Check] = {
    "responses": lambda value: None,  # has paths of its own, see _read_steps
    "when_exhausted": one_of(("repeat", "last", "error")),
    "stream_delay_ms": _milliseconds,
    "use_streaming": flag,
    "debug": flag,
    "priority": count(0),  # for those who choose between providers
}


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> Callable[[], Awaitable[None]]:
    """Mount the provider ``mock``.

    Args:
        coordinator: The session's.
        config: See the module's reference page for the keys.

    Returns:
        The cleanup, which closes streams that were left half-way.

    Raises:
        PlanError: The config is wrong; every problem with its path.
    """
    options = read_config(_MODULE, config, _CHECKS)
    provider = MockProvider(
        coordinator,
        _read_steps(options.get("responses", [_DEFAULT])),
        when_exhausted=options.get("when_exhausted", "repeat"),
        pause=options.get("stream_delay_ms", 0) / 1000,
        whole=not options.get("use_streaming", True),
        raw=options.get("debug", False),
    )
    await coordinator.mount("providers", provider, name=provider.name)
    return provider.aclose
