"""Begins and ends the spans of one session.

A turn's span is made current in the turn's own context, and that of a model call or tool call while its step runs: what a tool's
libraries trace, and the turns of child sessions, become children of it. Spans are ended through references, never through the
current context: terminal events may be delivered in another one.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any, TypeVar
from urllib.parse import urlsplit

import anyio
import attrs
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.metrics import Meter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from amplifier._json import redact_secrets, redact_text
from amplifier.contracts import Coordinator, Step, current_call
from amplifier.models import ChatRequest, ChatResponse, Message, ToolResult, Usage, to_dict

from . import _conventions as conventions
from ._conventions import OtelOptions

_CUT = "… (cut)"
_INSTRUCTIONS = ("system", "developer")


def input_messages(request: ChatRequest) -> list[dict[str, Any]]:
    """The messages of a request, the instructions aside."""
    return [
        {"role": message.role, "parts": _parts(message)}
        for message in request.messages
        if message.role not in _INSTRUCTIONS
    ]


def system_instructions(request: ChatRequest) -> list[dict[str, Any]]:
    """The instructions of a request."""
    return [part for message in request.messages if message.role in _INSTRUCTIONS for part in _parts(message)]


def output_messages(response: ChatResponse) -> list[dict[str, Any]]:
    """The message of a response."""
    parts = [_part(block) for block in response.content]
    return [{"role": "assistant", "parts": parts, "finish_reason": response.finish_reason or ""}]


def text_message(role: str, text: str) -> list[dict[str, Any]]:
    """A message that is text."""
    return [{"role": role, "parts": [{"type": "text", "content": text}]}]


def as_attribute(value: Any, longest: int) -> str:
    """A content as the value of an attribute; secrets are removed before it is cut."""
    text = json.dumps(redact_secrets(value), ensure_ascii=False, default=str)
    return text if len(text) <= longest else f"{text[:longest]}{_CUT}"


def _parts(message: Message) -> list[dict[str, Any]]:
    if isinstance(message.content, str):
        if message.tool_call_id is not None:
            return [{"type": "tool_call_response", "id": message.tool_call_id, "response": message.content}]
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
        return {"type": "tool_call", "id": block.get("id"), "name": block.get("name"), "arguments": block.get("input")}
    if kind == "tool_result":
        return {"type": "tool_call_response", "id": block.get("tool_call_id"), "response": block.get("output")}
    return {"type": str(kind)}  # images and the like are too large for an attribute


Attributes = Mapping[str, str]

_DURATIONS = {
    conventions.CHAT: conventions.OPERATION_DURATION,
    conventions.INVOKE_AGENT: conventions.INVOKE_AGENT_DURATION,
    conventions.EXECUTE_TOOL: conventions.EXECUTE_TOOL_DURATION,
}
_CALLS = {conventions.CHAT: conventions.INFERENCE_CALLS, conventions.EXECUTE_TOOL: conventions.TOOL_CALLS}
_IN_SECONDS = ("s", conventions.SECONDS_BUCKETS)
_IN_CALLS = ("{call}", conventions.CALLS_BUCKETS)
_HISTOGRAMS = {
    conventions.TOKEN_USAGE: ("Tokens of a model call", "{token}", conventions.TOKEN_BUCKETS),
    conventions.CACHE_HIT_RATE: (
        "Share of the input of a model call that the service read from its prompt cache",
        "1",
        conventions.SHARE_BUCKETS,
    ),
    conventions.OPERATION_DURATION: ("Duration of a model call, with its retries", *_IN_SECONDS),
    conventions.INVOKE_AGENT_DURATION: ("Duration of a turn of an agent", *_IN_SECONDS),
    conventions.EXECUTE_TOOL_DURATION: ("Duration of a tool call", *_IN_SECONDS),
    conventions.FIRST_CHUNK: ("From the beginning of a model call to the first piece of its answer", *_IN_SECONDS),
    conventions.NEXT_CHUNK: ("Between two pieces of an answer", *_IN_SECONDS),
    **{name: (f"Calls of one turn ({operation})", *_IN_CALLS) for operation, name in _CALLS.items()},
}


class Metrics:
    """Records durations and counts."""

    def __init__(self, meter: Meter) -> None:
        self._histograms = {
            name: meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=buckets)
            for name, (description, unit, buckets) in _HISTOGRAMS.items()
        }

    def record(self, name: str, value: float, attributes: Attributes) -> None:
        """Record one value."""
        self._histograms[name].record(value, attributes)

    def record_tokens(self, usage: Usage, attributes: Attributes) -> None:
        """Record what a model call consumed."""
        for kind, count in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            self.record(conventions.TOKEN_USAGE, count, {**attributes, conventions.TOKEN_TYPE: kind})
        if usage.cache_read_tokens is not None and usage.input_tokens:
            self.record(conventions.CACHE_HIT_RATE, usage.cache_read_tokens / usage.input_tokens, attributes)


logger = logging.getLogger("amplifier.modules.hooks-otel")

_BEFORE_AGENT = re.compile(r"-[0-9a-f]{16}_")
"""The ids that tool-task gives to child sessions end with the agent's name, after that of the parent and this."""
_LONGEST_MESSAGE = 500
_T = TypeVar("_T")


@attrs.define(eq=False)
class _OpenSpan:
    """A span that has not ended.

    Attributes:
        measured: The attributes of its metrics.
        latest_chunk: When a piece of the answer came.
    """

    operation: str
    span: Span
    measured: dict[str, str]
    started: float = attrs.field(factory=perf_counter)
    error_type: str | None = None
    latest_chunk: float | None = None
    is_streamed: bool = False

    def set(self, attributes: Mapping[str, Any]) -> None:
        self.span.set_attributes({key: value for key, value in attributes.items() if value is not None})

    def fail(self, error_type: str, description: str | None = None) -> None:
        """Give the span the status of a failure."""
        self.error_type = error_type
        self.span.set_attribute(conventions.ERROR_TYPE, error_type)
        self.span.set_status(Status(StatusCode.ERROR, description))


class SessionSpans:
    """The spans of one session.

    Args:
        coordinator: The session's.
        options: The configuration.
        tracer: Makes the spans.
        metrics: Records durations and token counts.
    """

    def __init__(self, coordinator: Coordinator, options: OtelOptions, tracer: Tracer, metrics: Metrics) -> None:
        self._coordinator = coordinator
        self._options = options
        self._tracer = tracer
        self._metrics = metrics
        self._provider: str | None = None
        self._turn: _OpenSpan | None = None
        self._calls: dict[str, _OpenSpan] = {}
        self._cause: str | None = None
        self._count = dict.fromkeys(_CALLS, 0)
        *above, agent = _BEFORE_AGENT.split(coordinator.session_id)
        self._agent = agent if coordinator.parent_id and above else options.agent_name

    def __repr__(self) -> str:
        return f"<SessionSpans of {self._coordinator.session_id!r}, {len(self._calls) + (self._turn is not None)} open>"

    # ── turns ──

    def begin_turn(self, data: Mapping[str, Any]) -> None:
        """Begin the span of a turn and make it current for the rest of the turn."""
        self.abandon()
        opened = self._open(
            conventions.INVOKE_AGENT, self._agent, SpanKind.INTERNAL, {conventions.AGENT_NAME: self._agent}
        )
        opened.set(
            {
                conventions.CONVERSATION_ID: self._coordinator.session_id,
                conventions.PARENT_SESSION: self._coordinator.parent_id,
                conventions.TURN_NUMBER: self._coordinator.turn_number,
            }
        )
        if self._options.capture_content and opened.span.is_recording():
            opened.set({conventions.INPUT_MESSAGES: self._shown(text_message("user", str(data.get("prompt", ""))))})
        self._turn, self._cause, self._count = opened, None, dict.fromkeys(_CALLS, 0)
        # Not detached: a turn has a context of its own, which ends with it.
        otel_context.attach(trace.set_span_in_context(opened.span))

    def end_turn(self, data: Mapping[str, Any]) -> None:
        """End the span of the turn."""
        turn, self._turn = self._turn, None
        if turn is None:
            return
        status = data.get("status")
        if status == "cancelled":
            turn.fail(conventions.CANCELLED, conventions.CANCELLED)
        elif status == "error":
            turn.fail(self._cause or conventions.OTHER_ERROR)
        if self._options.capture_content and turn.span.is_recording():
            turn.set(
                {conventions.OUTPUT_MESSAGES: self._shown(text_message("assistant", str(data.get("response", ""))))}
            )
        for operation, name in _CALLS.items():
            self._metrics.record(name, self._count[operation], {conventions.AGENT_NAME: self._agent})
        self._end(turn)

    # ── model calls and tool calls ──

    async def wrap(self, step: Step, run: Callable[[], Awaitable[Any]]) -> Any:
        """Run a step inside a span, which is the current one meanwhile; a step wrapper."""
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

    def name_provider(self, data: Mapping[str, Any]) -> None:
        """Note which provider is about to be asked."""
        provider = data.get("provider")
        self._provider = provider if isinstance(provider, str) else None

    def name_model(self, data: Mapping[str, Any], attribute: str) -> None:
        """Note the model that a provider asks, or that has answered."""
        model, call = data.get("model"), current_call()
        opened = None if call is None else self._calls.get(call.call_id)
        if opened is None or opened.operation != conventions.CHAT or not isinstance(model, str) or not model:
            return
        opened.set({attribute: model})
        opened.measured[attribute] = model
        if attribute == conventions.REQUEST_MODEL:
            opened.span.update_name(f"{conventions.CHAT} {model}")

    def note_chunk(self, data: Mapping[str, Any]) -> None:
        """A piece of an answer has come."""
        call = current_call()
        opened = None if call is None else self._calls.get(call.call_id)
        if opened is None or not opened.is_streamed:
            return
        now, before = perf_counter(), opened.latest_chunk
        opened.latest_chunk = now
        name, since = (conventions.FIRST_CHUNK, opened.started) if before is None else (conventions.NEXT_CHUNK, before)
        self._metrics.record(name, now - since, opened.measured)

    def _begin_chat(self, step: Step) -> _OpenSpan:
        request = step.arguments if isinstance(step.arguments, ChatRequest) else ChatRequest(messages=[])
        measured = {conventions.PROVIDER_NAME: self._provider or conventions.OTHER_ERROR}
        if request.model:
            measured[conventions.REQUEST_MODEL] = request.model
        defaults = self._provider_defaults()
        model = request.model or str(defaults.get("model") or self._provider or "model")
        opened = self._open(conventions.CHAT, model, SpanKind.CLIENT, measured)
        opened.is_streamed = request.stream is True
        opened.set(
            {
                conventions.CONVERSATION_ID: self._coordinator.session_id,
                conventions.AGENT_NAME: self._agent,
                conventions.ITERATION: step.call.iteration,
                **_server(defaults.get("base_url")),
                **{name: getattr(request, field) for field, name in conventions.REQUEST_SETTINGS.items()},
            }
        )
        if self._options.capture_content and opened.span.is_recording():
            opened.set({conventions.INPUT_MESSAGES: self._shown(input_messages(request))})
            if instructions := system_instructions(request):
                opened.set({conventions.SYSTEM_INSTRUCTIONS: self._shown(instructions)})
        return opened

    def _provider_defaults(self) -> Mapping[str, Any]:
        provider = self._coordinator.get("providers").get(self._provider or "")
        return {} if provider is None else provider.get_info().defaults

    def _begin_tool(self, step: Step) -> _OpenSpan:
        name = step.call.tool_name or "tool"
        opened = self._open(conventions.EXECUTE_TOOL, name, SpanKind.INTERNAL, {conventions.TOOL_NAME: name})
        opened.set(
            {
                conventions.TOOL_TYPE: "function",
                conventions.TOOL_DESCRIPTION: self._description(name),
                conventions.TOOL_CALL_ID: step.call.call_id,
                conventions.CONVERSATION_ID: self._coordinator.session_id,
                conventions.AGENT_NAME: self._agent,
                conventions.ITERATION: step.call.iteration,
                conventions.RESUMED: step.is_resumed or None,
            }
        )
        if self._options.capture_content and opened.span.is_recording():
            opened.set({conventions.TOOL_CALL_ARGUMENTS: self._shown(step.arguments)})
        return opened

    def _description(self, tool: str) -> str | None:
        description = getattr(self._coordinator.get("tools", tool), "description", None)
        return description[:_LONGEST_MESSAGE] if isinstance(description, str) else None

    def _note_result(self, opened: _OpenSpan, result: Any) -> None:
        captures = self._options.capture_content and opened.span.is_recording()
        if isinstance(result, ChatResponse):
            usage = result.usage
            opened.set(
                {} if usage is None else {name: getattr(usage, field) for field, name in conventions.USAGE.items()}
            )
            opened.set({conventions.FINISH_REASONS: None if result.finish_reason is None else [result.finish_reason]})
            response_id = (result.metadata or {}).get("response_id")
            opened.set({conventions.RESPONSE_ID: response_id if isinstance(response_id, str) else None})
            if usage is not None:
                self._metrics.record_tokens(usage, opened.measured)
            if captures:
                opened.set({conventions.OUTPUT_MESSAGES: self._shown(output_messages(result))})
        elif isinstance(result, ToolResult):
            if not result.success:
                error = result.error if isinstance(result.error, dict) else {}
                kind = error.get("type")
                opened.fail(
                    kind if isinstance(kind, str) and kind else conventions.OTHER_ERROR,
                    self._words(error.get("message")),
                )
            if captures:
                content = result.output if result.success else {"error": result.error}
                opened.set({conventions.TOOL_CALL_RESULT: self._shown(content)})

    def _note_error(self, opened: _OpenSpan, error: BaseException) -> None:
        if isinstance(error, anyio.get_cancelled_exc_class() | KeyboardInterrupt):
            opened.fail(conventions.CANCELLED, conventions.CANCELLED)
            return
        self._cause, words = type(error).__qualname__, self._words(str(error))
        opened.fail(self._cause, words)
        about = {"exception.type": f"{type(error).__module__}.{self._cause}", "exception.message": words}
        opened.span.add_event("exception", {key: value for key, value in about.items() if value is not None})

    # ── events ──

    def add_event(self, event: str, attributes: Mapping[str, Any]) -> None:
        """Add an event to the innermost span that is open."""
        call = current_call()
        opened = self._turn if call is None else self._calls.get(call.call_id, self._turn)
        span = trace.get_current_span() if opened is None else opened.span
        if span.is_recording():
            span.add_event(event, attributes)

    def abandon(self) -> None:
        """End what no event has ended, such as the turn of a loop that emits none."""
        unfinished = [*reversed(self._calls.values()), *([] if self._turn is None else [self._turn])]
        self._calls, self._turn = {}, None
        for opened in unfinished:
            opened.fail(conventions.ABANDONED, "the session reported no end")
            self._end(opened)

    # ── spans ──

    def _open(self, operation: str, name: str, kind: SpanKind, measured: dict[str, str]) -> _OpenSpan:
        attributes = {conventions.OPERATION_NAME: operation, **measured}
        if operation in self._count:
            self._count[operation] += 1
        span = self._tracer.start_span(f"{operation} {name}", kind=kind, attributes=attributes)
        return _OpenSpan(operation, span, attributes)

    def _end(self, opened: _OpenSpan) -> None:
        measured = (
            opened.measured
            if opened.error_type is None
            else {**opened.measured, conventions.ERROR_TYPE: opened.error_type}
        )
        opened.span.end()
        self._metrics.record(_DURATIONS[opened.operation], perf_counter() - opened.started, measured)

    def _shown(self, value: Any) -> str:
        return as_attribute(value, self._options.max_content_chars)

    def _words(self, message: Any) -> str | None:
        """An error's message, which may quote what was asked and answered."""
        if not self._options.capture_content or not isinstance(message, str):
            return None
        return redact_text(message)[:_LONGEST_MESSAGE]


def _guarded(work: Callable[..., _T], *args: Any) -> _T | None:
    """Do something with OpenTelemetry that must not end the turn if it fails: tracer and meter are the application's."""
    try:
        return work(*args)
    except Exception:
        logger.exception("a span or metric is lost")
        return None


def _server(url: Any) -> dict[str, str | int | None]:
    """The address of the service that a provider reports."""
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:
        return {}
    return {conventions.SERVER_ADDRESS: parts.hostname, conventions.SERVER_PORT: port if parts.hostname else None}
