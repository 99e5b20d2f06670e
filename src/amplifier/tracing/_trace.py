"""The trace of a session and its child sessions: a tree of rows, built line by line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final, Literal, TypeAlias, final

import attrs

from amplifier.events import (
    APPROVAL_DENIED,
    APPROVAL_GRANTED,
    APPROVAL_REQUIRED,
    CONTEXT_COMPACTION,
    CONTEXT_POST_COMPACT,
    CONTEXT_PRE_COMPACT,
    EXECUTION_END,
    EXECUTION_START,
    LLM_REQUEST,
    LLM_RESPONSE,
    ORCHESTRATOR_COMPLETE,
    PROVIDER_ERROR,
    PROVIDER_REQUEST,
    PROVIDER_RESPONSE,
    SESSION_CONFIG,
    SESSION_END,
    SESSION_FORK,
    SESSION_RESUME,
    SESSION_START,
    TOOL_ERROR,
    TOOL_POST,
    TOOL_PRE,
    TRACE_ROLES,
)
from amplifier.models.turns import ModelAnswer, ToolOutcome

from ._event_logs import LogEvent, UnreadLine, read_line

RowKind: TypeAlias = Literal[
    "session",
    "turn",
    "model",
    "tool",
    "approval",
    "compaction",
    "hook",
    "cancel",
    "event",
    "unread",
]
"""The kind of a row.

``approval`` is a question to the user, ``compaction`` one of the conversation, ``hook`` a failure
or verdict of a hook, ``event`` any other event, and ``unread`` a group of lines that cannot be
read.
"""

RowStatus: TypeAlias = Literal["", "ok", "error", "denied", "cancelled", "open"]
"""The status of a row.

It is empty for an event. ``open`` means that the log has no end of the row: it is running, or its
process was killed.
"""


@attrs.define(eq=False, kw_only=True)
class Row:
    """One row of a trace.

    Attributes:
        number: Index of the row in the trace.
        kind: Kind of the row.
        name: Name of the session, the provider, the tool or the event.
        session_id: Id of the session of the row.
        text: Content in one line: the prompt, the input of a tool, the reason of a failure.
        parent: Index of the row that this row belongs to, or None.
        events: The lines of the row, in the order of the log. Every line belongs to one row.
        start: Time of the start in seconds since 1970, or None if it is unknown.
        end: Time of the end. None if the row has no end in the log, or no duration.
        status: Status of the row.
        model: Name of the model, or an empty text.
        input_tokens: Input tokens of a model call, or None.
        output_tokens: Output tokens of a model call, or None.
        cache_read_tokens: Input tokens that were read from a prompt cache, or None.
        cost: Cost in dollars, or None.
        first_token: Seconds from the request to the first piece of a streamed answer, or None.
        revision: Revision of the trace at the last change of the row.
    """

    number: int
    kind: RowKind
    name: str
    session_id: str
    text: str = ""
    parent: int | None = None
    events: list[LogEvent | UnreadLine] = attrs.field(factory=list)
    start: float | None = None
    end: float | None = None
    status: RowStatus = ""
    model: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cost: Decimal | None = None
    first_token: float | None = None
    revision: int = 0

    @property
    def seconds(self) -> float | None:
        """Duration of the row, None if it is unknown, or 0 if the clock was set back."""
        return None if self.start is None or self.end is None else max(0.0, self.end - self.start)

    @property
    def has_duration(self) -> bool:
        """Whether rows of this kind have a duration, unlike events."""
        return self.kind in ("session", "turn", "model", "tool", "approval", "compaction")


_STATUS: Final[dict[str, RowStatus]] = {
    "completed": "ok",
    "success": "ok",
    "cancelled": "cancelled",
    "error": "error",
    "failed": "error",
}
_KINDS: Final[dict[str, RowKind]] = {
    "approval": "approval",
    "hook": "hook",
    "policy": "hook",
    "cancel": "cancel",
}
_MAX_TEXT: Final = 300
_MAX_NAME: Final = 200
# The first of these members of a payload describes an event.
_TEXT_KEYS: Final = (
    *("error", "error_message", "reason", "message", "detail", "prompt", "path", "agent"),
    *("module_id", "hook_name", "provider", "tool_name", "source", "status", "state"),
)


@final
class Trace:
    """The trace of a session, built from the lines of its log and those of its child sessions.

    Lines may be added in any number of steps. Adding never raises, and every line that is not blank
    belongs to one row.

    Args:
        session_id: Id of the session.

    Attributes:
        rows: All rows, in the order of their first lines. `walk` yields them as a tree.
        revision: Number that grows with every change, see `Row.revision`.
        notes: Notes for readers, about a missing log or lines that cannot be read.
        lines: Number of added lines.
    """

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.rows: list[Row] = []
        self.revision: int = 0
        self.notes: list[str] = []
        self.lines: int = 0
        self._sessions: dict[str, _SessionRows] = {}
        self._calls: dict[tuple[str, str], list[Row]] = {}
        self._waiting: dict[tuple[str, str], list[Row]] = {}
        self._unread: Row | None = None

    def __repr__(self) -> str:
        return f"<Trace of {self.session_id!r}: {self.lines} lines, {len(self.rows)} rows>"

    # ── adding ──

    def add_lines(self, lines: Iterable[bytes]) -> None:
        """Add lines of a log in their order, except blank ones."""
        for line in lines:
            if line.strip():
                self.add(read_line(line, self.lines + 1))

    def add(self, line: LogEvent | UnreadLine) -> None:
        """Add one line that was read."""
        self.lines += 1
        if isinstance(line, UnreadLine):
            self._add_unread(line)
            return
        self._unread = None
        session = self._session_of(line)
        session.add(line)
        row = session.row
        if line.at is not None:
            row.start = line.at if row.start is None else min(row.start, line.at)
            row.end = line.at if row.end is None else max(row.end, line.at)
            self._mark(row)

    def add_steps(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Add the step journal of a running or interrupted turn."""
        for record in records:
            step, call_id = record.get("step"), record.get("call")
            if step not in ("started", "finished") or not isinstance(call_id, str):
                continue
            self.lines += 1
            event = LogEvent(
                number=self.lines,
                name=f"journal:{step}",
                session_id=self.session_id,
                at=None,
                level="",
                data=dict(record),
            )
            calls = self._calls.get((self.session_id, call_id))
            if not calls:
                session, text = self._session_of(event).row, f"in the step journal: {step}"
                row = self._new_row("tool", call_id[:200], event, session, text=text)
                row.status = "open"
            else:
                self._touch(calls[-1], event)

    def _add_unread(self, line: UnreadLine) -> None:
        """Add an unread line to the row of the lines before it, if they have the same problem."""
        row = self._unread
        if row is None or row.text != line.reason:
            row = self._unread = self._add_row("unread", "", "", text=line.reason, status="error")
        row.events.append(line)
        number = len(row.events)
        row.name = "1 line not read" if number == 1 else f"{number} lines not read"
        self._mark(row)

    def _session_of(self, event: LogEvent) -> _SessionRows:
        session = self._sessions.get(event.session_id)
        if session is None:
            name = event.session_id[:200] or "no session id"
            row = self._add_row("session", name, event.session_id, status="open")
            session = _SessionRows(row, self)
            self._sessions[event.session_id] = session
            for child in self._waiting.pop((event.session_id, ""), []):
                self._attach(child, row)
        if session.row.parent is None:
            self._find_parent(session.row, event)
        return session

    def _find_parent(self, row: Row, event: LogEvent) -> None:
        parent_id, call_id = event.text("parent_id"), event.text("parent_call_id")
        if not parent_id:
            return
        # A provider may use an id twice, so the latest call before the event counts.
        for call in reversed(self._calls.get((parent_id, call_id), [])):
            if event.at is None or call.start is None or call.start <= event.at:
                self._attach(row, call)
                return
        if call_id:
            self._wait((parent_id, call_id), row)
        if parent_id in self._sessions:
            self._attach(row, self._sessions[parent_id].row)
        else:
            self._wait((parent_id, ""), row)

    def _wait(self, key: tuple[str, str], row: Row) -> None:
        waiting = self._waiting.setdefault(key, [])
        if row not in waiting:
            waiting.append(row)

    def _adopt(self, session_id: str, call_id: str, row: Row) -> None:
        self._calls.setdefault((session_id, call_id), []).append(row)
        for child in self._waiting.pop((session_id, call_id), []):
            self._attach(child, row)

    def _attach(self, child: Row, parent: Row) -> None:
        """Put a session below a row, unless a faulty log has that row below the session."""
        above: Row | None = parent
        while above is not None:
            if above is child:
                return
            above = None if above.parent is None else self.rows[above.parent]
        child.parent = parent.number
        self._mark(child)

    def _new_row(
        self, kind: RowKind, name: str, event: LogEvent, parent: Row, *, text: str = ""
    ) -> Row:
        facts = {"text": text, "parent": parent.number, "start": event.at}
        row = self._add_row(kind, name, event.session_id, **facts)
        row.events.append(event)
        return row

    def _add_row(self, kind: RowKind, name: str, session_id: str, **facts: Any) -> Row:
        row = Row(number=len(self.rows), kind=kind, name=name, session_id=session_id, **facts)
        self.rows.append(row)
        self._mark(row)
        return row

    def _touch(self, row: Row, event: LogEvent) -> None:
        row.events.append(event)
        if row.start is None:
            row.start = event.at
        self._mark(row)

    def _mark(self, row: Row) -> None:
        self.revision += 1
        row.revision = self.revision

    # ── reading ──

    def walk(self) -> Iterator[tuple[Row, int]]:
        """Yield all rows with their depths, every row before those below it."""
        below: dict[int | None, list[Row]] = {}
        for row in self.rows:
            below.setdefault(row.parent, []).append(row)
        pending = [(row, 0) for row in reversed(below.get(None, []))]
        while pending:
            row, depth = pending.pop()
            yield row, depth
            pending += [(child, depth + 1) for child in reversed(below.get(row.number, []))]


class _SessionRows:
    """Adds the events of one session to its rows."""

    def __init__(self, row: Row, trace: Trace) -> None:
        self.row = row
        self._new_row, self._touch, self._mark = trace._new_row, trace._touch, trace._mark
        self._trace = trace
        self._turn: Row | None = None
        self._is_in_turn = False
        self._model: Row | None = None
        self._compaction: Row | None = None
        self._tools: dict[str, Row] = {}
        self._open_tools: list[Row] = []
        self._questions: list[tuple[tuple[str, str, str], Row]] = []
        self._handlers: dict[str, Callable[[LogEvent], object]] = {
            **dict.fromkeys((SESSION_START, SESSION_RESUME), self._begin),
            **dict.fromkeys((SESSION_FORK, SESSION_CONFIG), self._add_to_session),
            SESSION_END: self._end,
            EXECUTION_START: self._begin_turn,
            EXECUTION_END: self._end_turn,
            ORCHESTRATOR_COMPLETE: self._complete_turn,
            PROVIDER_REQUEST: self._open_model_call,
            PROVIDER_RESPONSE: self._end_model_call,
            PROVIDER_ERROR: self._fail_model_call,
            LLM_REQUEST: self._add_wire_request,
            LLM_RESPONSE: self._add_wire_response,
            CONTEXT_PRE_COMPACT: self._begin_compaction,
            CONTEXT_POST_COMPACT: self._add_to_compaction,
            CONTEXT_COMPACTION: self._end_compaction,
            TOOL_PRE: self._begin_tool_call,
            TOOL_POST: self._end_tool_call,
            TOOL_ERROR: self._end_tool_call,
            APPROVAL_REQUIRED: self._ask,
            APPROVAL_GRANTED: self._answer,
            APPROVAL_DENIED: self._answer,
        }

    def add(self, event: LogEvent) -> None:
        """Add an event to its row."""
        handler = self._handlers.get(event.name)
        if handler is not None:
            handler(event)
        elif TRACE_ROLES.get(event.name) == "none":
            self._add_piece(event)
        else:
            self._add_event(event)

    def _add_to(self, row: Row | None, event: LogEvent) -> Row | None:
        """Add an event to a row, if there is one."""
        if row is not None:
            self._touch(row, event)
        return row

    # ── session ──

    def _add_to_session(self, event: LogEvent) -> None:
        self._touch(self.row, event)

    def _begin(self, event: LogEvent) -> None:
        # A killed process may have left rows open.
        self._abandon()
        self.row.status = "open"
        self._touch(self.row, event)

    def _end(self, event: LogEvent) -> None:
        self._abandon()
        self.row.status = _STATUS.get(event.text("status"), "ok")
        self._touch(self.row, event)

    # ── turns ──

    def _begin_turn(self, event: LogEvent) -> None:
        self._abandon()
        self._tools.clear()
        self._turn = self._new_row("turn", "turn", event, self.row, text=_prompt_text(event.data))
        self._turn.status = "open"
        self._is_in_turn = True

    def _end_turn(self, event: LogEvent) -> None:
        status = _STATUS.get(event.text("status"), "ok")
        turn = self._add_to(self._turn if self._is_in_turn else None, event)
        if turn is None:
            text = _line(event.data.get("response"))
            turn = self._turn = self._new_row("turn", "turn", event, self.row, text=text)
        self._close_calls(event.at, "cancelled" if status == "cancelled" else "error")
        turn.end, turn.status = event.at, status
        self._is_in_turn = False

    def _complete_turn(self, event: LogEvent) -> None:
        turn = self._turn
        if turn is None or _has_event(turn, event.name):
            self._add_event(event)
            return
        self._touch(turn, event)
        if event.text("status") == "incomplete" and turn.status == "ok":
            turn.text = _line(f"{turn.text} (incomplete)")

    def _abandon(self) -> None:
        """Stop tracking rows without an end in the log. They stay open."""
        self._model, self._compaction, self._is_in_turn = None, None, False
        self._open_tools.clear()
        self._questions.clear()

    def _close_calls(self, at: float | None, status: RowStatus) -> None:
        for row in [*self._open_tools, *filter(None, (self._model, self._compaction))]:
            row.end, row.status = at, status
            self._mark(row)
        self._model = self._compaction = None
        self._open_tools.clear()

    # ── model calls ──

    def _open_model_call(self, event: LogEvent) -> Row:
        provider, model = event.text("provider"), event.text("model")
        self._model = self._new_row("model", _name(provider) or "model", event, self._enclosing())
        self._model.status, self._model.model = "open", _name(model)
        if self._compaction is not None:
            self._compaction.model = self._model.model or self._model.name
        return self._model

    def _end_model_call(self, event: LogEvent) -> None:
        row = self._add_to(self._model, event) or self._open_model_call(event)
        _count(row, ModelAnswer.read(event.data))
        row.text = _answer_text(event.data.get("response"))
        row.end, row.status, self._model = event.at, "ok", None

    def _fail_model_call(self, event: LogEvent) -> None:
        model, self._model = self._model, None
        if model is not None:
            model.end, model.status = event.at, "error"
            self._mark(model)
        parent = model or self._enclosing()
        row = self._new_row("event", event.name, event, parent, text=_about(event))
        row.status = "error"

    def _add_wire_request(self, event: LogEvent) -> Row:
        row = self._add_to(self._model, event) or self._open_model_call(event)
        row.model = _name(event.text("model")) or row.model
        return row

    def _add_wire_response(self, event: LogEvent) -> None:
        row = self._add_wire_request(event)
        if row.input_tokens is None:
            _count(row, ModelAnswer.read(event.data))
        first = row.events[0]
        # If the loop sent no request, no response of the loop will follow.
        if not (isinstance(first, LogEvent) and first.name == PROVIDER_REQUEST):
            row.end, row.status = event.at, "error" if event.text("status") == "error" else "ok"
            self._model = None

    def _add_piece(self, event: LogEvent) -> None:
        row = self._add_to(self._model, event)
        if row is None:
            self._add_event(event)
            return
        # A loop that does not stream reports the blocks, with their number, after the answer.
        is_streamed = "total_blocks" not in event.data
        if row.first_token is None and is_streamed and None not in (event.at, row.start):
            row.first_token = max(0.0, (event.at or 0.0) - (row.start or 0.0))

    # ── tool calls ──

    def _begin_tool_call(self, event: LogEvent) -> None:
        row = self._open_tool_call(event)
        row.status = "open"
        self._open_tools.append(row)

    def _open_tool_call(self, event: LogEvent) -> Row:
        call_id = event.text("tool_call_id")
        # The calls of one answer are siblings.
        parent = self._turn if self._is_in_turn and self._turn is not None else self.row
        name = _name(event.text("tool_name")) or "tool"
        row = self._new_row("tool", name, event, parent, text=_line(event.data.get("tool_input")))
        if call_id:
            self._tools[call_id] = row
            self._trace._adopt(event.session_id, call_id, row)
        return row

    def _end_tool_call(self, event: LogEvent) -> None:
        # If no call is open, a gate denied the call before its start was logged.
        row = self._add_to(self._tool_of(event), event) or self._open_tool_call(event)
        if row in self._open_tools:
            self._open_tools.remove(row)
        outcome = ToolOutcome.read(event.name, event.data)
        row.end, row.status = event.at, outcome.status
        if row.status != "ok":
            row.text = _line(f"{_line(outcome.error)} {row.text}")

    def _tool_of(self, event: LogEvent) -> Row | None:
        """Return the call that an event ends, by its id or else by its tool."""
        call_id = event.text("tool_call_id")
        if call_id:
            row = self._tools.get(call_id)
            # A provider may use an id twice.
            return None if row is not None and _has_event(row, event.name) else row
        name = _name(event.text("tool_name")) or "tool"
        return next((row for row in self._open_tools if row.name == name), None)

    # ── compactions ──

    def _begin_compaction(self, event: LogEvent) -> None:
        self._compaction = self._new_row("compaction", "compaction", event, self._enclosing())
        self._compaction.status = "open"

    def _add_to_compaction(self, event: LogEvent) -> None:
        if self._add_to(self._compaction, event) is None:
            self._add_event(event)

    def _end_compaction(self, event: LogEvent) -> None:
        row, data = self._add_to(self._compaction, event), event.data
        row = row or self._new_row("compaction", "compaction", event, self._enclosing())
        # If a provider reports the call for the summary, that call has its own row with the usage.
        if not row.model:
            _count(row, ModelAnswer.read(data))
        before, after = data.get("before_tokens"), data.get("after_tokens")
        row.text = _line(f"{event.text('tier')}: {before} → {after} tokens")
        row.end, row.status, self._compaction = event.at, "ok", None

    # ── approvals and everything else ──

    def _ask(self, event: LogEvent) -> None:
        row = self._new_approval(event)
        row.status = "open"
        self._questions.append((_question(event), row))

    def _new_approval(self, event: LogEvent) -> Row:
        parent, text = self._innermost(event), _line(event.data.get("prompt"))
        return self._new_row("approval", "approval", event, parent, text=text)

    def _answer(self, event: LogEvent) -> None:
        question = _question(event)
        entry = next((entry for entry in self._questions if entry[0] == question), None)
        # Without an entry, the question was answered earlier in the session, or could not be asked.
        if entry is None:
            row = self._new_approval(event)
        else:
            self._questions.remove(entry)
            row = entry[1]
            self._touch(row, event)
        row.end, row.status = event.at, "ok" if event.name == APPROVAL_GRANTED else "denied"
        if event.text("reason"):
            row.text = _line(f"{row.text} ({event.text('reason')})")

    def _add_event(self, event: LogEvent) -> None:
        kind = _KINDS.get(event.name.partition(":")[0], "event")
        parent = self._innermost(event)
        row = self._new_row(kind, _name(event.name), event, parent, text=_about(event))
        if event.level in ("ERROR", "CRITICAL"):
            row.status = "error"
        elif event.name == "policy:violation":
            row.status = "denied"

    def _enclosing(self) -> Row:
        """Return the row of the running compaction, or of the turn, or of the session."""
        if self._compaction is not None:
            return self._compaction
        return self._turn if self._is_in_turn and self._turn is not None else self.row

    def _innermost(self, event: LogEvent) -> Row:
        """Return the row of the call that an event names, or the innermost open row."""
        named = self._tools.get(event.text("tool_call_id"))
        if named is not None:
            return named
        name = event.text("tool_name")
        for row in reversed(self._open_tools):
            if not name or row.name == _name(name):
                return row
        return self._model or self._enclosing()


def _question(event: LogEvent) -> tuple[str, str, str]:
    return event.text("hook_name"), event.text("event"), event.text("prompt")


def _has_event(row: Row, name: str) -> bool:
    return any(isinstance(event, LogEvent) and event.name == name for event in row.events)


def _about(event: LogEvent) -> str:
    if isinstance(stopped := event.data.get("stopped"), list):
        parts = [part for part in stopped if isinstance(part, dict) and part.get("what") != "turn"]
        return _line("; ".join(map(_stopped, parts)))
    for key in _TEXT_KEYS:
        value = event.data.get(key)
        if value not in (None, "", [], {}):
            message = value.get("message") if isinstance(value, dict) else None
            return _line(message or value)
    return ""


def _stopped(part: dict[str, Any]) -> str:
    """Describe the outcome of one part of a stop."""
    name, seconds = part.get("what"), part.get("seconds")
    name = f"{name} of {part['module']}" if part.get("module") else name
    if part.get("outcome") == "abandoned":
        return f"{name} would not stop"
    return f"stopped {name}" + (f" in {seconds:.1f} s" if isinstance(seconds, float) else "")


def _prompt_text(data: dict[str, Any]) -> str:
    """Return a prompt as one line, with notes for attachments, whose content the log lacks."""
    attachments = data.get("attachments")
    parts = []
    for part in attachments[:20] if isinstance(attachments, list) else ():
        if isinstance(part, dict):
            title = part.get("title") or part.get("url") or part.get("media_type")
            parts.append(f"[{part.get('type')}: {title}]")
    return _line(" ".join([*parts, str(data.get("prompt") or "")]))


def _answer_text(response: object) -> str:
    """Return the beginning of an answer, with its texts and tool calls."""
    content = response.get("content") if isinstance(response, dict) else None
    parts: list[str] = []
    for block in content[:20] if isinstance(content, list) else [content]:
        if isinstance(block, str):
            parts.append(block)
        elif isinstance(block, dict) and block.get("type") == "text":
            parts.append(str(block.get("text"))[:_MAX_TEXT])
        elif isinstance(block, dict) and block.get("type") == "tool_call":
            parts.append(f"→ {str(block.get('name'))[:_MAX_NAME]}")
    return _line(" ".join(parts))


def _line(value: object) -> str:
    """Return a value as one line of limited length."""
    if value is None:
        return ""
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except RecursionError:
        text = "[nested too deeply]"
    text = " ".join(text[: 4 * _MAX_TEXT].split())
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


def _name(text: str) -> str:
    return " ".join(text[:_MAX_NAME].split())


def _count(row: Row, answer: ModelAnswer) -> None:
    row.model = _name(answer.model) or row.model
    for name in ("input_tokens", "output_tokens", "cache_read_tokens", "cost"):
        if (value := getattr(answer, name)) is not None:
            setattr(row, name, value)
