"""Traces of stored sessions with their child sessions, and conversations as text.

Text of messages is safe to show, because control characters are escaped.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from typing import Any

from amplifier._internal.json import visible_text
from amplifier.errors import MissingExtraError
from amplifier.events import SESSION_FORK, SESSION_RESUME, SESSION_START
from amplifier.store import SessionIndex, StoreDamagedError
from amplifier.store.sessions import EVENTS_FILE

from ._event_logs import LogEvent, LogFollower, log_parts
from ._trace import Trace
from .page import style_page

NO_LOG = (
    'this session has no event log; {"module": "hooks-logging"} in the hooks of a plan writes one, '
    "as in the default plan. `amplifier session show` has the conversation"
)
_BEGINNINGS = frozenset({SESSION_START, SESSION_RESUME, SESSION_FORK})


class SessionFollower:
    """Reads the logs of a session and its child sessions, even while they are written.

    Args:
        store: The stored sessions.
        session_id: Id of the session.

    Attributes:
        trace: The trace so far.
    """

    def __init__(self, store: SessionIndex, session_id: str) -> None:
        self._store = store
        self._session_id = session_id
        self._logs: dict[str, LogFollower] = {}
        self._failures: dict[str, str] = {}
        self.trace: Trace = Trace(session_id)

    def update(self, *, to_end: bool = False) -> None:
        """Add the lines that were written since the last call.

        Args:
            to_end: Whether to add an incomplete last line, for the last call.
        """
        for name in [self._session_id, *self._store.descendants(self._session_id)]:
            if name not in self._logs:
                self._logs[name] = LogFollower(self._store.folder(name) / EVENTS_FILE)
            try:
                self.trace.add_lines(self._logs[name].read(to_end=to_end))
            except OSError as error:
                reason = f"{error.filename or self._logs[name].path}: {error.strerror or error}"
                self._failures[name] = f"the event log of session {name} cannot be read: {reason}"
            else:
                self._failures.pop(name, None)
        self.trace.notes = [*self._failures.values(), *self._notes()]

    def _notes(self) -> list[str]:
        rows = self.trace.rows
        unread = sum(len(row.events) for row in rows if row.kind == "unread")
        lines = "1 line" if unread == 1 else f"{unread} lines"
        notes = [f"{lines} of the log cannot be read; search for: not read"] if unread else []
        firsts = (line for row in rows[:3] for line in row.events[:1])
        first = min(firsts, key=lambda line: line.number, default=None)
        is_cut = isinstance(first, LogEvent) and first.name not in _BEGINNINGS
        if is_cut and len(log_parts(self._store.folder(self._session_id) / EVENTS_FILE)) > 1:
            notes.append(
                "the beginning of the log was removed when the log was rotated "
                "(`keep` of hooks-logging)"
            )
        return notes


def read_trace(store: SessionIndex, session_id: str) -> Trace:
    """Return the trace of a stored session."""
    follower = SessionFollower(store, session_id)
    follower.update(to_end=True)
    trace = follower.trace
    if not trace.lines:
        trace.notes.append(NO_LOG)
    try:
        trace.add_steps(store.steps(session_id))
    except (StoreDamagedError, OSError) as error:
        trace.notes.append(f"the step journal cannot be read: {error}")
    return trace


# ── messages as text ──

# Maximum number of shown lines of tool output, and of characters in one of them.
_MAX_LINES = 6
_MAX_LINE = 200

# Maximum number of shown characters of the arguments of a tool call.
_MAX_ARGUMENTS = 120


def heading_of_message(message: dict[str, Any]) -> str:
    """Return the role of a message, with the name of the tool for tool output, as one line."""
    name = f" ({message['name']})" if isinstance(message.get("name"), str) else ""
    return visible_text(f"── {message.get('role')}{name}", multiline=False)


def text_of_message(message: dict[str, Any], *, full: bool = False) -> str:
    """Return the text of a message, with every part on its own lines.

    Args:
        message: The message as a context stores it.
        full: Whether to show everything. If not, long parts are shortened.
    """
    content = message.get("content")
    if message.get("role") == "tool":
        return _text_of_output(content, full)
    blocks = content if isinstance(content, list) else [] if content is None else [content]
    parts = [_text_of_block(block, full) for block in blocks]
    if not any(isinstance(block, dict) and block.get("type") == "tool_call" for block in blocks):
        # A context may store the calls separately from content that is plain text.
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict):
                parts.append(_text_of_call(call.get("name"), call.get("arguments"), full))
    return "\n".join(filter(None, parts))


def _text_of_block(block: Any, full: bool) -> str:
    if not isinstance(block, dict):
        return visible_text(str(block))
    match block.get("type"):
        case "text":
            return visible_text(str(block.get("text") or ""))
        case "thinking":
            return _text_of_thinking(str(block.get("thinking") or ""))
        case "reasoning":
            thought = _text_of_parts(block.get("content")) or _text_of_parts(block.get("summary"))
            return _text_of_thinking(thought)
        case "redacted_thinking":
            return "[thinking, encrypted by the provider]"
        case "tool_call":
            return _text_of_call(block.get("name"), block.get("input"), full)
        case "tool_result":
            return _text_of_output(block.get("output"), full)
        case kind:
            title = block.get("title")
            note = f"{kind}: {title[:_MAX_LINE]}" if isinstance(title, str) else str(kind)
            return visible_text(f"[{note}]", multiline=False)


def _text_of_parts(parts: object) -> str:
    """Return the text of a list of strings and of dicts with a text."""
    if not isinstance(parts, list):
        return ""
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return "\n".join(text for text in texts if isinstance(text, str))


def _text_of_thinking(thought: str) -> str:
    return "\n".join(["[thinking]", *(f"│ {line}" for line in visible_text(thought).splitlines())])


def _text_of_call(name: object, arguments: object, full: bool) -> str:
    text = json.dumps(arguments, ensure_ascii=False, default=str)
    if not full and len(text) > _MAX_ARGUMENTS:
        text = f"{text[:_MAX_ARGUMENTS]}…"
    return visible_text(f"→ {name} {text}", multiline=False)


def _text_of_output(output: object, full: bool) -> str:
    # The list holds content blocks.
    if isinstance(output, list):
        text = "\n".join(filter(None, (_text_of_part(part) for part in output)))
    elif output is None or isinstance(output, str):
        text = output or ""
    else:
        text = json.dumps(output, ensure_ascii=False, indent=2, default=str)
    lines = text.removesuffix("\n").split("\n")
    shown = [
        line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]}…" for line in lines[:_MAX_LINES]
    ]
    if full or shown == lines:
        return visible_text(text)
    more = len(lines) - len(shown)
    left_out = f"{more} more line{'' if more == 1 else 's'}" if more else "long lines cut"
    beginning = visible_text("\n".join(shown))
    return f"{beginning}\n… {left_out}, {_size(text)}; --full shows everything"


def _text_of_part(part: object) -> str:
    if isinstance(part, dict) and part.get("type") == "text":
        return str(part.get("text") or "")
    if isinstance(part, dict) and part.get("type") in ("image", "audio", "document"):
        return _text_of_block(part, full=False)
    return part if isinstance(part, str) else json.dumps(part, ensure_ascii=False, default=str)


def _size(text: str) -> str:
    size = len(text.encode(errors="surrogatepass"))
    if size < 1024:
        return f"{size} bytes"
    return f"{size / 1024:.1f} KiB" if size < 1024 * 1024 else f"{size / 1024 / 1024:.1f} MiB"


# ── a whole conversation ──


def write_conversation(
    title: str, messages: Sequence[dict[str, Any]], *, page: bool = False
) -> str:
    """Return a conversation as Markdown, or as an HTML page without scripts.

    Args:
        title: Title of the conversation.
        messages: Its messages.
        page: Whether to return a page. It loads nothing.

    Raises:
        MissingExtraError: A package for the page is not installed.
    """
    parts = [f"# {visible_text(title, multiline=False)}"]
    for message in messages:
        text = text_of_message(message, full=True)
        if message.get("role") in ("tool", "system") and text:
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
            text = f"{fence}\n{text}\n{fence}"
        parts += [f"## {heading_of_message(message).removeprefix('── ')}", text]
    markdown = "\n\n".join(filter(None, parts)) + "\n"
    if not page:
        return markdown
    try:
        from markdown_it import MarkdownIt  # noqa: PLC0415  # belongs to an extra
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "conversations as pages", extra="cli", missing="markdown-it-py"
        ) from error
    # This preset escapes HTML.
    body = MarkdownIt("js-default").disable("image").render(markdown)
    return style_page(html.escape(visible_text(title, multiline=False)), body)
