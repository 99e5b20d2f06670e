"""The spans and metrics of one session, following OpenTelemetry's GenAI semantic conventions."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import anyio
import attrs
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.metrics import Meter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from amplifier._internal.json import redact_secrets, redact_text
from amplifier.contracts import Coordinator, Step, current_call
from amplifier.models import ChatRequest, ChatResponse, Message, ToolResult, Usage, to_dict

logger = logging.getLogger("amplifier.modules.hooks-otel")

_T = TypeVar("_T")

# ── names of the conventions ─────────────────────────────────────────────────────────────────────

REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
_AGENT_NAME: Final = "gen_ai.agent.name"
_PROVIDER_NAME: Final = "gen_ai.provider.name"
_CONVERSATION_ID: Final = "gen_ai.conversation.id"
_INPUT_MESSAGES: Final = "gen_ai.input.messages"
_OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
_ERROR_TYPE: Final = "error.type"

_CANCELLED: Final = "cancelled"
_OTHER_ERROR: Final = "_OTHER"
"""Values of ``error.type`` without an exception class. ``_OTHER`` comes from the conventions."""

_REQUEST_SETTINGS: Final = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "stop": "gen_ai.request.stop_sequences",
    "stream": "gen_ai.request.stream",
}
_USAGE: Final = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cache_read_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_write_tokens": "gen_ai.usage.cache_creation.input_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
}

_TURN, _CHAT, _TOOL = "invoke_agent", "chat", "execute_tool"
"""Operations. The name of a span consists of its operation and the agent, model or tool."""

_DURATIONS: Final = {
    _CHAT: "gen_ai.client.operation.duration",
    _TURN: "gen_ai.invoke_agent.duration",
    _TOOL: "gen_ai.execute_tool.duration",
}
_COUNTS: Final = {
    _CHAT: "gen_ai.invoke_agent.inference_calls",
    _TOOL: "gen_ai.invoke_agent.tool_calls",
}
_TOKEN_USAGE: Final = "gen_ai.client.token.usage"
_CACHE_HIT_RATE: Final = "amplifier.client.cache_hit_rate"
_FIRST_CHUNK: Final = "gen_ai.client.operation.time_to_first_chunk"
_NEXT_CHUNK: Final = "gen_ai.client.operation.time_per_output_chunk"

_IN_TOKENS: Final = ("{token}", tuple(4**exponent for exponent in range(14)))
_AS_SHARE: Final = ("1", tuple(tenth / 10 for tenth in range(11)))
_CALLS: Final = tuple(2**exponent for exponent in range(8))
_IN_SECONDS: Final = ("s", tuple(0.01 * 2**exponent for exponent in range(14)))
_IN_LONG_SECONDS: Final = ("s", tuple(0.1 * 2**exponent for exponent in range(13)))
_HISTOGRAMS: Final = {
    _TOKEN_USAGE: ("Tokens of a model call", *_IN_TOKENS),
    _CACHE_HIT_RATE: (
        "Share of the input of a model call that the service read from its prompt cache",
        *_AS_SHARE,
    ),
    _DURATIONS[_CHAT]: ("Duration of a model call, with its retries", *_IN_SECONDS),
    _DURATIONS[_TURN]: ("Duration of a turn of an agent", *_IN_LONG_SECONDS),
    _DURATIONS[_TOOL]: ("Duration of a tool call", *_IN_SECONDS),
    _FIRST_CHUNK: (
        "From the beginning of a model call to the first piece of its answer",
        *_IN_SECONDS,
    ),
    _NEXT_CHUNK: ("Between two pieces of an answer", *_IN_SECONDS),
    _COUNTS[_CHAT]: ("Model calls of one turn", "{inference_call}", _CALLS),
    _COUNTS[_TOOL]: ("Tool calls of one turn", "{tool_call}", _CALLS),
}
"""Metric names, each with its description, unit and buckets."""


# ── content ──────────────────────────────────────────────────────────────────────────────────────

_CUT = "… (cut)"
_INSTRUCTIONS = ("system", "developer")


def _input_messages(request: ChatRequest) -> list[dict[str, Any]]:
    """Return the messages of a request without the instructions."""
    return [
        {"role": message.role, "parts": _parts(message)}
        for message in request.messages
        if message.role not in _INSTRUCTIONS
    ]


def _system_instructions(request: ChatRequest) -> list[dict[str, Any]]:
    return [
        part
        for message in request.messages
        if message.role in _INSTRUCTIONS
        for part in _parts(message)
    ]


def _output_messages(response: ChatResponse) -> list[dict[str, Any]]:
    parts = [_part(block) for block in response.content]
    return [{"role": "assistant", "parts": parts, "finish_reason": response.finish_reason or ""}]


def _text_message(role: str, text: object) -> list[dict[str, Any]]:
    return [{"role": role, "parts": [{"type": "text", "content": str(text)}]}]


def _parts(message: Message) -> list[dict[str, Any]]:
    if isinstance(message.content, str):
        if message.tool_call_id is not None:
            return [
                {
                    "type": "tool_call_response",
                    "id": message.tool_call_id,
                    "response": message.content,
                }
            ]
        return [{"type": "text", "content": message.content}]
    return [_part(block) for block in message.content]


def _part(content: Any) -> dict[str, Any]:
    block = to_dict(content)
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "content": block.get("text")}
    if kind == "thinking":
        return {"type": "reasoning", "content": block.get("thinking")}
    if kind == "tool_call":
        return {
            "type": "tool_call",
            "id": block.get("id"),
            "name": block.get("name"),
            "arguments": block.get("input"),
        }
    if kind == "tool_result":
        return {
            "type": "tool_call_response",
            "id": block.get("tool_call_id"),
            "response": block.get("output"),
        }
    # Images and other media are too large for an attribute.
    return {"type": str(kind)}


# ── spans ────────────────────────────────────────────────────────────────────────────────────────

_BEFORE_AGENT = re.compile(r"-[0-9a-f]{16}_")
"""Matches the part between the parent's id and the agent's name in session ids of tool-task."""
_MAX_MESSAGE_CHARS = 500


@attrs.define(eq=False)
class _OpenSpan:
    """A span that has not ended yet.

    Attributes:
        operation: The operation: a turn, a model call or a tool call.
        span: The span of the application's tracer.
        measured: The attributes of the metrics.
        started: The value of the performance counter at the start.
        error_type: The value of ``error.type``. None without an error.
        latest_chunk: The value of the performance counter when the latest piece of the answer
            arrived. None until the first piece.
        is_streamed: True if the answer arrives in pieces.
    """

    operation: str
    span: Span
    measured: dict[str, str]
    started: float = attrs.field(factory=perf_counter)
    error_type: str | None = None
    latest_chunk: float | None = None
    is_streamed: bool = False

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Set the attributes that aren't None."""
        self.span.set_attributes(
            {key: value for key, value in attributes.items() if value is not None}
        )

    def fail(self, error_type: str, description: str | None = None) -> None:
        """Mark the span as failed."""
        self.error_type = error_type
        self.span.set_attribute(_ERROR_TYPE, error_type)
        self.span.set_status(Status(StatusCode.ERROR, description))


# The span of a turn is current in the turn's own context, and the span of a call is current while
# its step runs. So the spans of a tool's libraries and the turns of child sessions become its
# children. Spans are ended through references, never through the current context, because terminal
# events may be delivered in another context.


class SessionSpans:
    """The spans of one session.

    Args:
        coordinator: The coordinator of the session.
        tracer: Creates the spans.
        meter: Records durations and counts.
        agent_name: The name of the agent. See `OtelOptions`.
        capture_content: Whether content is captured. See `OtelOptions`.
        max_content_chars: The length at which content is cut. See `OtelOptions`.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        tracer: Tracer,
        meter: Meter,
        *,
        agent_name: str,
        capture_content: bool,
        max_content_chars: int,
    ) -> None:
        self._coordinator = coordinator
        self._tracer = tracer
        self._histograms = {
            name: meter.create_histogram(
                name, unit, description, explicit_bucket_boundaries_advisory=buckets
            )
            for name, (description, unit, buckets) in _HISTOGRAMS.items()
        }
        self._captures = capture_content
        self._max_chars = max_content_chars
        self._provider: str | None = None
        self._turn: _OpenSpan | None = None
        self._calls: dict[str, _OpenSpan] = {}
        self._cause: str | None = None
        self._count = dict.fromkeys(_COUNTS, 0)
        *above, agent = _BEFORE_AGENT.split(coordinator.session_id)
        self._agent = agent if coordinator.parent_id and above else agent_name

    def __repr__(self) -> str:
        count = len(self._calls) + (self._turn is not None)
        return f"<SessionSpans of {self._coordinator.session_id!r}, {count} open>"

    # ── turns ──

    def begin_turn(self, data: Mapping[str, object]) -> None:
        """Start the span of a turn and make it current for the rest of the turn."""
        self.abandon()
        opened = self._open(_TURN, self._agent, SpanKind.INTERNAL, {_AGENT_NAME: self._agent})
        opened.set(
            {
                _CONVERSATION_ID: self._coordinator.session_id,
                "amplifier.session.parent_id": self._coordinator.parent_id,
                "amplifier.turn": self._coordinator.turn_number,
            }
        )
        self._capture(
            opened, _INPUT_MESSAGES, lambda: _text_message("user", data.get("prompt", ""))
        )
        self._turn, self._cause, self._count = opened, None, dict.fromkeys(_COUNTS, 0)
        # The token is never detached, because a turn has its own context, which ends with the turn.
        otel_context.attach(trace.set_span_in_context(opened.span))

    def end_turn(self, data: Mapping[str, object]) -> None:
        """End the span of the turn."""
        turn, self._turn = self._turn, None
        if turn is None:
            return
        status = data.get("status")
        if status == "cancelled":
            turn.fail(_CANCELLED, _CANCELLED)
        elif status == "error":
            turn.fail(self._cause or _OTHER_ERROR)
        self._capture(
            turn, _OUTPUT_MESSAGES, lambda: _text_message("assistant", data.get("response", ""))
        )
        for operation, name in _COUNTS.items():
            self._histograms[name].record(self._count[operation], {_AGENT_NAME: self._agent})
        self._end(turn)

    # ── model calls and tool calls ──

    async def wrap(self, step: Step, run: Callable[[], Awaitable[Any]]) -> Any:
        """Run a step inside a span that is current during the step. This is a step wrapper."""
        begin = self._begin_chat if step.kind == "model" else self._begin_tool
        opened = _guarded(begin, step)
        if opened is None:
            return await run()
        self._calls[step.call.call_id] = opened
        try:
            with trace.use_span(opened.span, record_exception=False, set_status_on_exception=False):
                result = await run()
            _guarded(self._note_result, opened, result)
            return result
        except BaseException as error:
            _guarded(self._note_error, opened, error)
            raise
        finally:
            self._calls.pop(step.call.call_id, None)
            _guarded(self._end, opened)

    def name_provider(self, data: Mapping[str, object]) -> None:
        """Record the provider of the next model call."""
        provider = data.get("provider")
        self._provider = provider if isinstance(provider, str) else None

    def name_model(self, data: Mapping[str, object], attribute: str) -> None:
        """Record the model of a request or its answer."""
        model, opened = data.get("model"), self._current()
        if opened is None or opened.operation != _CHAT or not isinstance(model, str) or not model:
            return
        opened.set({attribute: model})
        opened.measured[attribute] = model
        if attribute == REQUEST_MODEL:
            opened.span.update_name(f"{_CHAT} {model}")

    def note_chunk(self, data: Mapping[str, object]) -> None:
        """Record the time of a piece of an answer."""
        opened = self._current()
        if opened is None or not opened.is_streamed:
            return
        now, before = perf_counter(), opened.latest_chunk
        opened.latest_chunk = now
        name, since = (_FIRST_CHUNK, opened.started) if before is None else (_NEXT_CHUNK, before)
        self._histograms[name].record(now - since, opened.measured)

    def _current(self) -> _OpenSpan | None:
        """Return the span of the running call, if any."""
        call = current_call()
        return None if call is None else self._calls.get(call.call_id)

    def _begin_chat(self, step: Step) -> _OpenSpan:
        request = (
            step.arguments if isinstance(step.arguments, ChatRequest) else ChatRequest(messages=[])
        )
        measured = {_PROVIDER_NAME: self._provider or _OTHER_ERROR}
        # The conventions require a provider, so the turn gets the provider of its first call.
        if self._turn is not None and not any(self._count.values()):
            self._turn.set(measured)
        if request.model:
            measured[REQUEST_MODEL] = request.model
        provider = self._coordinator.get("providers").get(self._provider or "")
        defaults = {} if provider is None else provider.get_info().defaults
        model = request.model or str(defaults.get("model") or self._provider or "model")
        opened = self._open(_CHAT, model, SpanKind.CLIENT, measured)
        opened.is_streamed = request.stream is True
        settings = {name: getattr(request, field) for field, name in _REQUEST_SETTINGS.items()}
        opened.set({**self._call_attributes(step), **_server(defaults.get("base_url")), **settings})
        self._capture(opened, _INPUT_MESSAGES, lambda: _input_messages(request))
        if self._captures and (instructions := _system_instructions(request)):
            self._capture(opened, "gen_ai.system_instructions", lambda: instructions)
        return opened

    def _begin_tool(self, step: Step) -> _OpenSpan:
        name = step.call.tool_name or "tool"
        description = getattr(self._coordinator.get("tools", name), "description", None)
        opened = self._open(_TOOL, name, SpanKind.INTERNAL, {"gen_ai.tool.name": name})
        opened.set(
            {
                "gen_ai.tool.type": "function",
                "gen_ai.tool.description": description[:_MAX_MESSAGE_CHARS]
                if isinstance(description, str)
                else None,
                "gen_ai.tool.call.id": step.call.call_id,
                **self._call_attributes(step),
                "amplifier.resumed": step.is_resumed or None,
            }
        )
        self._capture(opened, "gen_ai.tool.call.arguments", lambda: step.arguments)
        return opened

    def _call_attributes(self, step: Step) -> dict[str, Any]:
        return {
            _CONVERSATION_ID: self._coordinator.session_id,
            _AGENT_NAME: self._agent,
            "amplifier.iteration": step.call.iteration,
        }

    def _note_result(self, opened: _OpenSpan, result: object) -> None:
        if isinstance(result, ChatResponse):
            if result.usage is not None:
                self._note_usage(opened, result.usage)
            response_id = (result.metadata or {}).get("response_id")
            opened.set(
                {
                    "gen_ai.response.finish_reasons": None
                    if result.finish_reason is None
                    else [result.finish_reason],
                    "gen_ai.response.id": response_id if isinstance(response_id, str) else None,
                }
            )
            self._capture(opened, _OUTPUT_MESSAGES, lambda: _output_messages(result))
        elif isinstance(result, ToolResult):
            if not result.success:
                error = result.error if isinstance(result.error, dict) else {}
                kind = error.get("type")
                kind = kind if isinstance(kind, str) and kind else _OTHER_ERROR
                opened.fail(kind, self._error_text(error.get("message")))
            content = result.output if result.success else {"error": result.error}
            self._capture(opened, "gen_ai.tool.call.result", lambda: content)

    def _note_usage(self, opened: _OpenSpan, usage: Usage) -> None:
        opened.set({name: getattr(usage, field) for field, name in _USAGE.items()})
        for kind, count in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            self._histograms[_TOKEN_USAGE].record(
                count, {**opened.measured, "gen_ai.token.type": kind}
            )
        if usage.cache_read_tokens is not None and usage.input_tokens:
            share = usage.cache_read_tokens / usage.input_tokens
            self._histograms[_CACHE_HIT_RATE].record(share, opened.measured)

    def _note_error(self, opened: _OpenSpan, error: BaseException) -> None:
        if isinstance(error, anyio.get_cancelled_exc_class() | KeyboardInterrupt):
            opened.fail(_CANCELLED, _CANCELLED)
            return
        self._cause, message = type(error).__qualname__, self._error_text(str(error))
        opened.fail(self._cause, message)
        attributes = {"exception.type": f"{type(error).__module__}.{self._cause}"}
        if message is not None:
            attributes["exception.message"] = message
        opened.span.add_event("exception", attributes)

    # ── events ──

    def add_event(self, event: str, attributes: Mapping[str, Any]) -> None:
        """Add an event to the innermost span that is open."""
        opened = self._current() or self._turn
        span = trace.get_current_span() if opened is None else opened.span
        if span.is_recording():
            span.add_event(event, attributes)

    def abandon(self) -> None:
        """End the spans that no event has ended, such as the turn of a loop without events."""
        unfinished = [
            *reversed(self._calls.values()),
            *([] if self._turn is None else [self._turn]),
        ]
        self._calls, self._turn = {}, None
        for opened in unfinished:
            opened.fail("abandoned", "the session reported no end")
            self._end(opened)

    # ── one span ──

    def _open(
        self, operation: str, name: str, kind: SpanKind, measured: dict[str, str]
    ) -> _OpenSpan:
        attributes = {"gen_ai.operation.name": operation, **measured}
        if operation in self._count:
            self._count[operation] += 1
        span = self._tracer.start_span(f"{operation} {name}", kind=kind, attributes=attributes)
        return _OpenSpan(operation, span, attributes)

    def _end(self, opened: _OpenSpan) -> None:
        failed = {} if opened.error_type is None else {_ERROR_TYPE: opened.error_type}
        opened.span.end()
        duration = perf_counter() - opened.started
        self._histograms[_DURATIONS[opened.operation]].record(
            duration, {**opened.measured, **failed}
        )

    def _capture(self, opened: _OpenSpan, attribute: str, content: Callable[[], object]) -> None:
        """Add content to a span as an attribute, if the configuration requests it."""
        if self._captures and opened.span.is_recording():
            # Half a secret wouldn't be recognized, so secrets are removed before the text is cut.
            text = json.dumps(redact_secrets(content()), ensure_ascii=False, default=str)
            if len(text) > self._max_chars:
                text = f"{text[: self._max_chars]}{_CUT}"
            opened.set({attribute: text})

    def _error_text(self, message: object) -> str | None:
        """Return an error's message if content is captured, because it may quote a prompt."""
        if not self._captures or not isinstance(message, str):
            return None
        return redact_text(message)[:_MAX_MESSAGE_CHARS]


def _guarded(work: Callable[..., _T], *args: object) -> _T | None:
    """Call the application's OpenTelemetry. A failure there must not end the turn."""
    try:
        return work(*args)
    except Exception:
        logger.exception("a span or metric is lost")
        return None


def _server(url: object) -> dict[str, str | int | None]:
    """Return the address of the service as attributes."""
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:
        return {}
    return {"server.address": parts.hostname, "server.port": port if parts.hostname else None}
