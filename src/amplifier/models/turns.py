"""A turn, folded from its events: its text, messages, tool calls, usage and end."""

# `ModelAnswer` and `ToolOutcome` read one payload each, and `TurnEvents` makes the typed events of
# a turn. `TurnRecord` adds up the events of a turn with them. Traces have payloads from a log
# instead of events, and use them directly. ``session.last_turn`` returns a `TurnReport`.

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal, Protocol, Self, TypeAlias, TypeVar

import attrs
import orjson

from amplifier._internal.json import redact_text
from amplifier.errors import ModelError
from amplifier.events import (
    CONTENT_BLOCK_DELTA,
    CONTENT_BLOCK_END,
    CONTENT_BLOCK_RESET,
    CONTENT_BLOCK_START,
    CONTEXT_COMPACTION,
    EXECUTION_END,
    LLM_STREAM_ABORTED,
    LLM_STREAM_BLOCK_DELTA,
    LLM_STREAM_BLOCK_START,
    ORCHESTRATOR_COMPLETE,
    PROMPT_SUBMIT,
    PROVIDER_REQUEST,
    PROVIDER_RESPONSE,
    PROVIDER_RETRY,
    THINKING_DELTA,
    TOOL_ERROR,
    TOOL_POST,
    TOOL_PRE,
)
from amplifier.models import (
    SUB_AGENT_EVENT,
    AnswerReset,
    ChatResponse,
    ResultDelta,
    SubAgentEvent,
    TextBlock,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolCallBlock,
    ToolFinished,
    ToolResult,
    ToolStarted,
    TurnEvent,
    Usage,
    from_dict,
    to_dict,
)
from amplifier.models.prompts import changed_blocks

__all__ = [
    "BEGINS_AGAIN",
    "INTERRUPTED",
    "REFUSALS",
    "TEXT_EVENTS",
    "TEXT_FIELDS",
    "Ended",
    "ModelAnswer",
    "PiecewiseAnswer",
    "RecordedEvent",
    "Show",
    "StopReport",
    "Stopped",
    "ToolOutcome",
    "ToolStatus",
    "ToolUse",
    "TurnEvents",
    "TurnRecord",
    "TurnReport",
    "TurnStatus",
    "TurnText",
    "assistant_message",
    "error_text",
    "now",
    "result_message",
    "text_of",
]

_EventT = TypeVar("_EventT", bound=TurnEvent)

TurnStatus: TypeAlias = Literal["success", "error", "cancelled"]
ToolStatus: TypeAlias = Literal["ok", "error", "denied", "cancelled"]

REFUSALS: Final = frozenset({"content_filter", "refusal", "safety"})
"""Stop reasons of services for an answer that was refused."""

_REFUSED: Final[dict[str, ToolStatus]] = {
    "Denied": "denied",
    "Withheld": "denied",
    "Cancelled": "cancelled",
}
_TOO_LARGE: Final = 10**15
"""A count or a cost of this size is implausible and ignored."""


# ── one payload ──────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(kw_only=True)
class ModelAnswer:
    """A model call, as ``provider:response`` or ``llm:response`` reports it.

    Everything that it doesn't report is None or empty.

    Attributes:
        stop_reason: The provider's word for the reason why the model stopped.
        cost: The cost in US dollars.
    """

    provider: str
    model: str
    stop_reason: str
    input_tokens: int | None
    output_tokens: int | None
    cost: Decimal | None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Read a payload of any form."""
        response, usage = _fields(data.get("response")), _fields(data.get("usage"))
        # Built-in providers name the model in the metadata.
        metadata = _fields(response.get("metadata"))
        return cls(
            provider=_text(data.get("provider")),
            model=next(
                filter(None, (_text(each.get("model")) for each in (response, metadata, data))), ""
            ),
            stop_reason=_text(response.get("finish_reason")),
            input_tokens=_count(usage.get("input_tokens")),
            output_tokens=_count(usage.get("output_tokens")),
            cost=_dollars(usage.get("cost_usd")),
            cache_read_tokens=_count(usage.get("cache_read_tokens")),
            cache_write_tokens=_count(usage.get("cache_write_tokens")),
            reasoning_tokens=_count(usage.get("reasoning_tokens")),
        )


@attrs.frozen(kw_only=True)
class ToolOutcome:
    """A tool call, as ``tool:post`` or ``tool:error`` reports it.

    Attributes:
        result: The result in the payload, or else one made from the event and the error.
        error: The error in words, or "" if the call succeeded.
    """

    status: ToolStatus
    result: Any
    error: str

    @classmethod
    def read(cls, event: str, data: Mapping[str, Any]) -> Self:
        """Read a payload of any form.

        Args:
            event: The name of the event.
            data: Its payload.
        """
        result = data.get("tool_result")
        result = data.get("result") if result is None else result
        if isinstance(result, ToolResult):
            result = _written(result)
        failure = data.get("error")
        if result is None:
            result = {"success": event == TOOL_POST and failure is None, "error": failure}
        if failure is None and isinstance(result, Mapping):
            failure = result.get("error")
        status: ToolStatus = "ok"
        if event == TOOL_ERROR:
            kind = failure.get("type") if isinstance(failure, Mapping) else None
            status = _REFUSED.get(kind, "error") if isinstance(kind, str) else "error"
        elif isinstance(result, Mapping) and not result.get("success", True):
            status = "error"
        return cls(status=status, result=result, error=error_text(failure))


def error_text(error: Any) -> str:
    """Return the error of a tool result in words, or "" if there is none."""
    if isinstance(error, Mapping):
        error = error.get("message") or error
    try:
        return "" if error is None else str(error)
    # A payload from a log may be nested to any depth.
    except RecursionError:
        return "an error that is nested too deeply"


def _fields(value: Any) -> Mapping[str, Any]:
    """Return a part of a payload as a dict. If no handler has received it, it may be a model."""
    value = to_dict(value) if isinstance(value, ChatResponse | Usage) else value
    return value if isinstance(value, Mapping) else {}


def _written(result: ToolResult) -> dict[str, Any]:
    try:
        return to_dict(result)
    except ModelError:
        # The result has NaN or a lone surrogate, which can be shown as text.
        return {"success": result.success, "output": ascii(result.output), "error": result.error}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 <= value < _TOO_LARGE else None


def _dollars(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        return None
    try:
        amount = Decimal(str(value)[:40])
    except InvalidOperation:
        return None
    return amount if amount.is_finite() and abs(amount) < _TOO_LARGE else None


# ── a turn ───────────────────────────────────────────────────────────────────────────────────────


@attrs.define
class ToolUse:
    """One tool call.

    Attributes:
        started_at: When it started, on the monotonic clock.
        waited: Seconds during which it didn't run because it waited for a person's answer.
        success: True if it succeeded, None while it runs.
        result: The result as the tool returned it. See `ToolOutcome.result`.
        error: The error in words, or "".
    """

    tool: str
    arguments: dict[str, Any]
    started: str
    started_at: float
    ended_at: float | None = None
    success: bool | None = None
    result: Any = None
    error: str = ""
    waited: float = 0.0

    @property
    def seconds(self) -> float:
        """The seconds that the call took or has been running, without waiting for a person."""
        ended_at = time.monotonic() if self.ended_at is None else self.ended_at
        return max(ended_at - self.started_at - self.waited, 0.0)

    @property
    def output(self) -> Any:
        """The output that the tool returned, without the error."""
        return self.result.get("output") if isinstance(self.result, Mapping) else self.result

    def shown(self, longest: int) -> str:
        """Return output and error as text for a person, shortened."""
        output = self.output
        text = (
            output
            if isinstance(output, str)
            else ""
            if output is None
            else orjson.dumps(output, default=str).decode()
        )
        if self.error:
            text = "\n".join(filter(None, [text, f"Error: {self.error}"]))
        return (
            text
            if len(text) <= longest
            else f"{text[:longest]}\n… {len(text) - longest} characters are not shown"
        )


# ── typed events ─────────────────────────────────────────────────────────────────────────────────


class PiecewiseAnswer(Protocol):
    """Reads a typed answer as it arrives, as `amplifier.models.answers.PartialAnswer` does."""

    @property
    def value(self) -> Any:
        """The part that has arrived."""

    def add(self, piece: str) -> bool:
        """Take the next piece. Return whether `value` has changed."""


class TurnEvents:
    """Makes the typed events of a turn.

    Each piece of an answer is yielded once, when it is first reported.

    Our loops report pieces. Others report whole blocks, or nothing, once the answer is complete.
    With such a loop, the provider reports the pieces during the call, in the published events
    ``llm:stream_*``. A provider that calls its service again reports a new ``request_id``.

    A typed answer is read as far as it has arrived. It is the model's text, or the input of a tool
    call whose ``content_block:start`` has ``is_answer`` in its metadata.

    Args:
        new_answer: Makes the reader of a typed answer. None for an answer that is text.
    """

    def __init__(self, new_answer: Callable[[], PiecewiseAnswer] | None = None) -> None:
        self._is_asked = True
        self._request: Any = None
        # The text of the current answer that the provider has reported.
        self._reported = _ReportedText()
        # The blocks that the loop has reported in pieces.
        self._in_pieces: set[Any] = set()
        self._new_answer = new_answer
        self._answer: PiecewiseAnswer | None = None
        # The index of the tool call that is the answer.
        self._block: Any = None

    def __call__(self, event: str, data: dict[str, Any]) -> TurnEvent:
        """Return the event as its own class, if it has one."""
        made = self._as_text(event, data)
        return made if self._new_answer is None else self._as_answer(made, self._new_answer)

    def _as_answer(self, made: TurnEvent, new_answer: Callable[[], PiecewiseAnswer]) -> TurnEvent:
        event, data = made.name, made.data
        if event in (PROVIDER_REQUEST, CONTENT_BLOCK_RESET):
            # The next model call starts a new answer.
            self._answer = self._block = None
        elif (
            event == CONTENT_BLOCK_START and _as_dict(data.get("metadata")).get("is_answer") is True
        ):
            self._answer, self._block = None, data.get("block_index")
        elif event == CONTENT_BLOCK_DELTA:
            is_text = isinstance(made, TextDelta)
            if is_text if self._block is None else data.get("block_index") == self._block:
                text = str(data.get("delta") or "")
                self._answer = self._answer or new_answer()
                if self._answer.add(text):
                    return ResultDelta(name=event, data=data, text=text, value=self._answer.value)
        return made

    def _as_text(self, event: str, data: dict[str, Any]) -> TurnEvent:
        # Most events of a turn are pieces of text, which are one event each.
        if event == CONTENT_BLOCK_DELTA:
            if data.get("block_type") != "text":
                return _make(TurnEvent, name=event, data=data)
            self._in_pieces.add(data.get("block_index"))
            return self._of_loop(event, data, str(data.get("delta") or ""))
        if event in (LLM_STREAM_BLOCK_START, LLM_STREAM_BLOCK_DELTA, LLM_STREAM_ABORTED):
            return self._of_provider(event, data)
        made, index = _typed(event, data), data.get("block_index")
        if event in (PROVIDER_REQUEST, CONTENT_BLOCK_RESET, TOOL_PRE):
            self._reported = _ReportedText()
            self._in_pieces.clear()
        if event in (PROVIDER_REQUEST, PROVIDER_RETRY):
            self._is_asked, self._request = True, None
        elif event in (PROVIDER_RESPONSE, CONTENT_BLOCK_START, TOOL_PRE):
            self._is_asked = False
            if event == CONTENT_BLOCK_START:
                self._in_pieces.discard(index)
        elif event == CONTENT_BLOCK_END and index not in self._in_pieces:
            block = _as_dict(data.get("block"))
            if block.get("type") == "text":
                return self._of_loop(event, data, str(block.get("text") or ""))
        return made

    def _of_loop(self, event: str, data: dict[str, Any], text: str) -> TurnEvent:
        if self._reported.pieces:
            if self._reported.goes_on_with(text):
                return _make(TurnEvent, name=event, data=data)
            self._reported = _ReportedText()  # another text
        return _make(TextDelta, name=event, data=data, text=text)

    def _of_provider(self, event: str, data: dict[str, Any]) -> TurnEvent:
        request, text = data.get("request_id"), str(data.get("text") or "")
        # An event with another id is about another call, such as one of a hook.
        if self._is_asked and self._request in (None, request):
            is_over = event == LLM_STREAM_ABORTED
            if self._reported.pieces and (is_over or self._request is None):
                discarded, self._reported = "".join(self._reported.pieces), _ReportedText()
                self._request = None if is_over else request
                return _make(AnswerReset, name=event, data=data, text=discarded)
            self._request = request
            if event == LLM_STREAM_BLOCK_DELTA and data.get("block_type") == "text":
                if text:
                    self._reported.pieces.append(text)
                return _make(TextDelta, name=event, data=data, text=text)
            if event == LLM_STREAM_BLOCK_DELTA:
                return _make(ThinkingDelta, name=event, data=data, text=text)
        return _make(TurnEvent, name=event, data=data)


class _ReportedText:
    """The pieces that a provider has reported of an answer. Its loop may report them again.

    Attributes:
        pieces: The pieces as the provider has cut them.
    """

    __slots__ = ("_at", "_piece", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self._piece = self._at = 0  # the loop has come to this character of this piece

    def goes_on_with(self, text: str) -> bool:
        """Return whether the provider has already reported this text.

        Each character is compared once.
        """
        done = 0
        while done < len(text):
            if self._piece == len(self.pieces):
                return False
            piece = self.pieces[self._piece]
            size = min(len(piece) - self._at, len(text) - done)
            if not text.startswith(piece[self._at : self._at + size], done):
                return False
            done, self._at = done + size, self._at + size
            if self._at == len(piece):
                self._piece, self._at = self._piece + 1, 0
        return True


def _make(kind: type[_EventT], **fields: Any) -> _EventT:
    """Make an event of values that fit, without the model's checks.

    They take as long as everything else that happens to a piece.
    """
    made = kind.__new__(kind)
    made.__attrs_init__(**fields)
    return made


def _typed(event: str, data: dict[str, Any]) -> TurnEvent:
    """Return the event as its own class if embedders look for it, and else as a plain one."""
    if event == CONTENT_BLOCK_DELTA and data.get("block_type") == "text":
        return _make(TextDelta, name=event, data=data, text=str(data.get("delta") or ""))
    if event == THINKING_DELTA:
        return _make(ThinkingDelta, name=event, data=data, text=str(data.get("delta") or ""))
    if event == TOOL_PRE:
        return _make(
            ToolStarted,
            name=event,
            data=data,
            **_call(data),
            tool_input=_as_dict(data.get("tool_input")),
        )
    if event == CONTENT_BLOCK_RESET:
        return _make(AnswerReset, name=event, data=data, text=str(data.get("discarded") or ""))
    if event in (TOOL_POST, TOOL_ERROR):
        result = _as_dict(data.get("result"))
        success = event == TOOL_POST and bool(result.get("success", True))
        return _make(ToolFinished, name=event, data=data, **_call(data), success=success)
    if event == SUB_AGENT_EVENT:
        return _make(
            SubAgentEvent,
            name=event,
            data=data,
            agent=str(data.get("agent") or ""),
            session_id=str(data.get("sub_session_id") or ""),
            event=_typed(str(data.get("event") or ""), _as_dict(data.get("data"))),
        )
    return _make(TurnEvent, name=event, data=data)


def _call(data: dict[str, Any]) -> dict[str, str]:
    return {
        "tool_name": str(data.get("tool_name") or ""),
        "tool_call_id": str(data.get("tool_call_id") or ""),
    }


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


BEGINS_AGAIN = "\n\n[The answer was cut off here and begins again.]\n\n"
"""Text between a void beginning and its replacement, where output can't be taken back."""


TEXT_EVENTS: Final = frozenset(
    {
        CONTENT_BLOCK_DELTA,
        CONTENT_BLOCK_END,
        CONTENT_BLOCK_RESET,
        CONTENT_BLOCK_START,
        LLM_STREAM_ABORTED,
        LLM_STREAM_BLOCK_DELTA,
        LLM_STREAM_BLOCK_START,
        PROVIDER_REQUEST,
        PROVIDER_RESPONSE,
        PROVIDER_RETRY,
        TOOL_PRE,
    }
)
"""The events that make up the text of a turn."""

TEXT_FIELDS: Final = (
    "block",
    "block_index",
    "block_type",
    "delta",
    "discarded",
    "request_id",
    "text",
)
"""The fields of these events that hold the text."""


@attrs.define
class TurnText:
    """The text of a turn, for output to which text can only be added."""

    # A str would be copied for each piece.
    _unfinished: list[str] = attrs.field(factory=list, init=False)
    # True if the text of the latest model call was streamed.
    _is_answered: bool = attrs.field(default=False, init=False)
    _has_text: bool = attrs.field(default=False, init=False)

    @property
    def unfinished(self) -> str:
        """The text streamed so far of an incomplete answer."""
        return "".join(self._unfinished)

    def add(self, event: TurnEvent) -> str:
        """Add one event and return the new text in it.

        The texts of different model calls are separated by a blank line.
        """
        if isinstance(event, TextDelta):
            return self._new(event.text)
        if isinstance(event, AnswerReset):
            was_shown = bool(self._unfinished)
            self._unfinished.clear()
            return BEGINS_AGAIN if was_shown else ""
        if event.name == PROVIDER_REQUEST:
            self._unfinished.clear()
            self._is_answered = False
        elif event.name == PROVIDER_RESPONSE:
            self._unfinished.clear()
        return ""

    def rest(self, result: str | None) -> str:
        """Return the answer if it was not streamed."""
        new = "" if self._is_answered else self._new(result or "")
        self._unfinished.clear()
        return new

    def _new(self, text: str) -> str:
        if not text:
            return ""
        separator = "\n\n" if self._has_text and not self._is_answered else ""
        self._has_text = self._is_answered = True
        self._unfinished.append(text)
        return separator + text


_CUT: Final = frozenset(
    {"length", "max_tokens", "max_output_tokens", "model_context_window_exceeded"}
)


@attrs.define
class TurnRecord(TurnText):
    """The sum of the events of a turn, including its text.

    Attributes:
        cost: The cost in US dollars. None if no model call reports one.
        stop_reason: The reason why the latest model call stopped.
        is_cut_off: True if the loop ended the turn at its limit of model calls.
    """

    tools: dict[str, ToolUse] = attrs.field(factory=dict)
    began_at: float = attrs.field(factory=time.monotonic)
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost: Decimal | None = None
    model: str | None = None
    provider: str | None = None
    stop_reason: str | None = None
    is_cut_off: bool = False

    def add(self, event: TurnEvent) -> str:
        """Add one event and return the new text in it, as `TurnText` does."""
        self.take(event.name, event.data, time.monotonic())
        return super().add(event)

    def take(self, event: str, data: Mapping[str, Any], at: float) -> None:
        """Add an event by its name and payload.

        Args:
            event: The name of the event.
            data: The payload of the event.
            at: Time of emission on the monotonic clock.
        """
        if event == PROVIDER_RESPONSE:
            self._count(ModelAnswer.read(data))
        elif event == ORCHESTRATOR_COMPLETE:
            self.is_cut_off = data.get("status") == "incomplete"
        elif event == CONTEXT_COMPACTION:  # a summary is a model call, too
            self._add_usage(ModelAnswer.read(data))
        elif event in (TOOL_PRE, TOOL_POST, TOOL_ERROR):
            self._take_call(event, data, at)

    @property
    def finish(self) -> Literal["stop", "length", "content_filter"]:
        """The reason for the end of the latest model call, or "length" at the loop's limit."""
        word = (self.stop_reason or "").lower()
        return (
            "length"
            if self.is_cut_off or word in _CUT
            else "content_filter"
            if word in REFUSALS
            else "stop"
        )

    def _take_call(self, event: str, data: Mapping[str, Any], at: float) -> None:
        call_id, tool, given = (
            _text(data.get("tool_call_id")),
            _text(data.get("tool_name")),
            data.get("tool_input"),
        )
        # A call may be rejected before it starts, for an unknown tool or bad arguments.
        if event == TOOL_PRE or call_id not in self.tools:
            self.tools[call_id] = ToolUse(tool, _as_dict(given), now(time.monotonic() - at), at)
        if event != TOOL_PRE:
            use, outcome = self.tools[call_id], ToolOutcome.read(event, data)
            use.ended_at, use.success, use.result = at, outcome.status == "ok", outcome.result
            use.error = outcome.error or ("" if use.success else "the call failed")

    def _count(self, answer: ModelAnswer) -> None:
        self.provider = answer.provider or self.provider
        self.model = answer.model or self.model
        self.stop_reason = answer.stop_reason or None
        self._add_usage(answer)

    def _add_usage(self, answer: ModelAnswer) -> None:
        self.input_tokens += answer.input_tokens or 0
        self.output_tokens += answer.output_tokens or 0
        for name in ("cache_read_tokens", "cache_write_tokens", "reasoning_tokens"):
            if (count := getattr(answer, name)) is not None:
                setattr(self, name, (getattr(self, name) or 0) + count)
        if answer.cost is not None:
            self.cost = (self.cost or Decimal(0)) + answer.cost

    @property
    def cache_hit_rate(self) -> float | None:
        """The share of the input that came from prompt caches. None if no service reports it."""
        return _hit_rate(self.input_tokens, self.cache_read_tokens)

    @property
    def seconds(self) -> float:
        """The seconds since the turn started."""
        return time.monotonic() - self.began_at


def _hit_rate(input_tokens: int, cache_read_tokens: int | None) -> float | None:
    return (
        None if cache_read_tokens is None or not input_tokens else cache_read_tokens / input_tokens
    )


def now(ago: float = 0) -> str:
    """Return the current time, or an earlier one, in ISO 8601."""
    return (datetime.now(UTC) - timedelta(seconds=ago)).isoformat(timespec="milliseconds")


@attrs.frozen(kw_only=True)
class Ended:
    """How a turn ended.

    Attributes:
        result: The answer of the turn, or None.
        error: The error that the turn raised, or None.
    """

    status: TurnStatus
    result: str | None = None
    error: Exception | None = None


Show: TypeAlias = Callable[[TurnEvent, str], Awaitable[None]]
"""Receives each event of a turn, and the new text in it."""


# ── messages ─────────────────────────────────────────────────────────────────────────────────────

INTERRUPTED: Final = "[interrupted: the turn ended before this call returned]"


def text_of(response: ChatResponse) -> str:
    """Return the text of an answer."""
    return "".join(block.text for block in response.content if isinstance(block, TextBlock))


def assistant_message(response: ChatResponse, calls: list[ToolCall]) -> dict[str, Any]:
    """Return an answer as the context keeps it: as text if it is only that, else in its blocks.

    ``producer_model`` is the model that gave it, if its provider names one.
    """
    plain = all(
        isinstance(block, TextBlock) and not block.extra and block.visibility is None
        for block in response.content
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
        # Every context, whoever wrote it, matches calls and results by these ids.
        message["tool_calls"] = [
            {"id": call.id, "name": call.name, "tool": call.name, "arguments": call.arguments}
            for call in calls
        ]
    if producer := _text((response.metadata or {}).get("model")):
        message["producer_model"] = producer
    return message


def _call_block(call: ToolCall) -> dict[str, Any]:
    return to_dict(ToolCallBlock(id=call.id, name=call.name, input=call.arguments))


def result_message(call: ToolCall, result: ToolResult) -> dict[str, Any]:
    """Return a tool's result as the context keeps it."""
    content: Any = result.get_serialized_output()
    if result.content:
        content = [to_dict(block) for block in result.content]
    failed = {} if result.success else {"is_error": True}
    return {
        "role": "tool",
        "tool_call_id": call.id,
        "name": call.name,
        "content": content,
        **failed,
    }


class _Messages:
    """The messages of a turn, made from its events.

    The results of an answer follow it, one for each of its calls and in the same order.
    """

    def __init__(self, prompt: Any) -> None:
        self._messages: list[dict[str, Any]] = (
            [] if prompt is None else [{"role": "user", "content": prompt}]
        )
        self._owed: dict[str, tuple[int, ToolCall]] = {}

    def take(self, event: str, data: Mapping[str, Any]) -> None:
        # Hooks may have changed the prompt.
        if event == PROMPT_SUBMIT and self._messages and "prompt" in data:
            given = self._messages[0]["content"]
            blocks = changed_blocks(given, data) if isinstance(given, list) else None
            self._messages[0]["content"] = blocks or data["prompt"]
        elif event == PROVIDER_RESPONSE:
            self._take_answer(data.get("response"))
        elif event in (TOOL_POST, TOOL_ERROR):
            self._take_result(event, data)

    def _take_answer(self, response: Any) -> None:
        if isinstance(response, Mapping):
            try:
                response = from_dict(ChatResponse, dict(response))
            # A third-party loop may report an answer in another form.
            except ModelError:
                return
        if isinstance(response, ChatResponse):
            blocks = [block for block in response.content if isinstance(block, ToolCallBlock)]
            calls = response.tool_calls or [
                ToolCall(id=each.id, name=each.name, arguments=each.input) for each in blocks
            ]
            self._messages.append(assistant_message(response, calls))
            interrupted = ToolResult(
                success=False, error={"message": INTERRUPTED, "type": "Interrupted"}
            )
            for call in calls:
                self._owed[call.id] = len(self._messages), call
                self._messages.append(result_message(call, interrupted))

    def _take_result(self, event: str, data: Mapping[str, Any]) -> None:
        call_id = _text(data.get("tool_call_id"))
        call = ToolCall(id=call_id, name=_text(data.get("tool_name")), arguments={})
        at, call = self._owed.pop(call_id, (len(self._messages), call))
        found = ToolOutcome.read(event, data).result
        result = data.get("tool_result")
        if not isinstance(result, ToolResult):
            known = (
                found
                if isinstance(found, Mapping)
                and found.keys() <= attrs.fields_dict(ToolResult).keys()
                else None
            )
            try:
                result = ToolResult(output=found) if known is None else ToolResult(**known)
            except ModelError:
                result = ToolResult(output=found)
        self._messages[at : at + 1] = [result_message(call, result)]

    def closed_with(self, text: str) -> list[dict[str, Any]]:
        """All messages, including an answer that was given through a tool."""
        is_open = bool(self._messages) and self._messages[-1]["role"] == "tool"
        return [
            *self._messages,
            *([{"role": "assistant", "content": text}] if is_open and text else ()),
        ]


# ── the report ───────────────────────────────────────────────────────────────────────────────────

RecordedEvent: TypeAlias = tuple[str, float, dict[str, Any], bool]
"""An event of a turn: name, time on the monotonic clock, payload, and True if it was denied."""


@attrs.frozen(kw_only=True)
class TurnReport:
    """A turn, as far as the events of its loop report it.

    Attributes:
        text: The answer. If the turn has none, the latest text that the loop has reported.
        value: The answer as a value of the ``result_type`` of the call, or the text if there was
            no type. None without an answer.
        messages: The prompt, the model's answers and the results of tools, as the conversation
            has them. ``await session.messages()`` has the rest of the conversation, such as
            injections of hooks.
        tool_calls: The tool calls in the order in which they started, each with ``seconds``,
            ``success``, ``output`` and ``error``.
        usage: The tokens of all model calls.
        cost: The cost of all model calls in US dollars. None if no call reports one.
        stop_reason: The provider's word for the reason why the model stopped. If the turn didn't
            end with its answer: ``"cancelled"``, ``"timeout"``, ``"budget"``, ``"denied"``,
            ``"refused"`` by the model or its service, or ``"error"``.
        error: The error that the turn raised, with its type, or None.
        seconds: The seconds that the turn took.
    """

    text: str
    value: Any
    messages: list[dict[str, Any]]
    tool_calls: list[ToolUse]
    usage: Usage
    cost: Decimal | None
    stop_reason: str | None
    model: str | None
    provider: str | None
    error: str | None
    seconds: float

    @property
    def cache_hit_rate(self) -> float | None:
        """The share of the input that came from prompt caches. None if no service reports it."""
        return _hit_rate(self.usage.input_tokens, self.usage.cache_read_tokens)

    @classmethod
    def of(
        cls,
        events: Iterable[RecordedEvent],
        *,
        prompt: Any,
        text: str | None,
        value: Any,
        stop_reason: str | None,
        error: str | None,
        began: float,
        ended: float,
    ) -> Self:
        """Fold the events of a turn.

        Args:
            events: The events.
            prompt: None for a turn that was resumed.
            text: The answer, or None.
            value: The typed answer.
            stop_reason: The reason for an end without an answer, or None.
            error: The error that the turn raised, or None.
            began: When it started, on the monotonic clock.
            ended: When it ended, on the monotonic clock.
        """
        record, messages, latest = TurnRecord(began_at=began), _Messages(prompt), ""
        for event, at, data, is_denied in events:
            if is_denied and event == TOOL_PRE:
                continue  # the tool:error event follows
            name, payload = event, data
            if is_denied and event == TOOL_POST:
                withheld = {"message": "the result was withheld by a hook", "type": "Withheld"}
                ids = {key: data.get(key) for key in ("tool_call_id", "tool_name", "tool_input")}
                name, payload = TOOL_ERROR, {**ids, "error": withheld}
            elif event == EXECUTION_END:
                latest = _text(data.get("response")) or latest
            record.take(name, payload, at)
            messages.take(name, payload)
        for use in record.tools.values():
            if use.ended_at is None:  # cut off
                use.ended_at, use.success, use.error = ended, False, INTERRUPTED
        tokens = {name: getattr(record, name) for name in ("input_tokens", "output_tokens")}
        return cls(
            text=latest if text is None else text,
            value=value,
            messages=messages.closed_with(text or ""),
            tool_calls=list(record.tools.values()),
            usage=Usage(
                **tokens,
                total_tokens=sum(tokens.values()),
                cache_read_tokens=record.cache_read_tokens,
                cache_write_tokens=record.cache_write_tokens,
                cost_usd=record.cost,
            ),
            cost=record.cost,
            stop_reason=stop_reason
            or ("refused" if record.stop_reason in REFUSALS else record.stop_reason),
            model=record.model,
            provider=record.provider,
            error=error,
            seconds=ended - began,
        )


@attrs.frozen(kw_only=True)
class Stopped:
    """One part of a session that a stop ended, or could not end.

    Attributes:
        what: The kind of part: ``"turn"``, a tool call, a cleanup, or a task.
        module: The id of its module, or None.
        seconds: The seconds from the request to its end. None if the request came from outside the
            session.
        outcome: ``"ended"``, ``"failed"`` with an error, or ``"abandoned"`` if it continued after
            its deadline.
        error: The error that the part raised, or the await that it is still waiting at.
    """

    what: str
    module: str | None = None
    seconds: float | None
    outcome: Literal["ended", "failed", "abandoned"] = "ended"
    error: str = ""


@attrs.frozen(kw_only=True)
class StopReport:
    """A stop, as ``session.last_stop`` reports it.

    Attributes:
        cause: ``"closed"`` for the whole session, ``"cancelled"`` or ``"timeout"`` for a turn.
        parts: The parts in the order in which they ended.
    """

    cause: str
    parts: list[Stopped]

    @property
    def would_not_stop(self) -> list[Stopped]:
        """The parts that continued after their deadline."""
        return [part for part in self.parts if part.outcome == "abandoned"]

    @property
    def seconds(self) -> float:
        """The seconds of the slowest part of a turn, or of all parts of a closing together."""
        times = [part.seconds or 0.0 for part in self.parts]
        return sum(times) if self.cause == "closed" else max(times, default=0.0)

    @classmethod
    def of(
        cls,
        turn: Any,
        closing: Iterable[Any] | None,
        late: Iterable[tuple[float, str | None, str, float]],
    ) -> Self | None:
        """Make a report from the records that the kernel has kept.

        Args:
            turn: The latest turn, if any.
            closing: The steps of the closing. None while the session is open.
            late: The calls that didn't react to their cancellation.
        """
        if closing is not None:
            return cls(cause="closed", parts=[_stopped(*each) for each in closing])
        if turn is None or turn.stop_reason not in ("cancelled", "timeout"):
            return None
        asked = turn.asked
        parts = [
            Stopped(
                what=f"tool call {use.tool}", seconds=_since(asked, use.ended_at), error=use.error
            )
            for use in turn.report().tool_calls
            if _is_cut_off(use)
            or (asked is not None and use.ended_at is not None and use.ended_at >= asked)
        ]
        parts += [
            Stopped(what=what, module=module, seconds=overdue, outcome="abandoned")
            for at, module, what, overdue in late
            if turn.began <= at <= turn.ended
        ]
        return cls(
            cause=turn.stop_reason,
            parts=[*parts, Stopped(what="turn", seconds=_since(asked, turn.ended))],
        )


def _is_cut_off(use: ToolUse) -> bool:
    error = use.result.get("error") if isinstance(use.result, dict) else None
    kind = error.get("type") if isinstance(error, dict) else None
    return use.error == INTERRUPTED or (
        use.success is False and kind in ("Cancelled", "Interrupted")
    )


def _since(asked: float | None, ended: float | None) -> float | None:
    return None if asked is None or ended is None else max(ended - asked, 0.0)


def _stopped(what: str, module: str | None, seconds: float, failure: Any) -> Stopped:
    if failure is None:
        return Stopped(what=what, module=module, seconds=seconds)
    outcome: Literal["failed", "abandoned"] = "abandoned" if failure.overran else "failed"
    return Stopped(
        what=what, module=module, seconds=seconds, outcome=outcome, error=redact_text(str(failure))
    )
