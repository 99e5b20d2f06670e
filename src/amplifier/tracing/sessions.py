"""What a stored session did and said: the trace of its event log, of those of its child sessions and of its step journal; its messages as text.

Messages come from disk and may hold anything. Their text is returned with control characters spelled out, so it is safe to show.
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
    'this session has no event log; a plan has one written with {"module": "hooks-logging"} in its hooks, as the default plan '
    "does. `amplifier session show` has the conversation"
)
_BEGINNINGS = frozenset({SESSION_START, SESSION_RESUME, SESSION_FORK})


class SessionFollower:
    """Reads the logs of a session and of its child sessions, also while they are written.

    Args:
        store: The stored sessions.
        session_id: The session.

    Attributes:
        trace: What was read so far.
    """

    def __init__(self, store: SessionIndex, session_id: str) -> None:
        self._store = store
        self._session_id = session_id
        self._logs: dict[str, LogFollower] = {}
        self._failures: dict[str, str] = {}
        self.trace: Trace = Trace(session_id)

    def update(self, *, to_end: bool = False) -> None:
        """Add what was written since the last call.

        Args:
            to_end: Also an incomplete last line; for the last call.
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
        begun = (line for row in rows[:3] for line in row.events[:1])
        first = min(begun, key=lambda line: line.number, default=None)
        is_cut = isinstance(first, LogEvent) and first.name not in _BEGINNINGS
        if is_cut and len(log_parts(self._store.folder(self._session_id) / EVENTS_FILE)) > 1:
            notes.append(
                "the beginning of the log was removed when the log was rotated (`keep` of hooks-logging)"
            )
        return notes


def read_trace(store: SessionIndex, session_id: str) -> Trace:
    """What a session did, as far as its files have it."""
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

_MOST_LINES = 6
"""Lines of tool output that are shown."""

_LONGEST_LINE = 200
"""Characters of one of those lines that are shown."""

_LONGEST_ARGUMENTS = 120
"""Characters of a tool call's arguments that are shown."""


def heading_of_message(message: dict[str, Any]) -> str:
    """The role of a message, and the tool whose output it is, in one line."""
    name = f" ({message['name']})" if isinstance(message.get("name"), str) else ""
    return visible_text(f"── {message.get('role')}{name}", multiline=False)


def text_of_message(message: dict[str, Any], *, full: bool = False) -> str:
    """The parts of a message in their order, each on lines of its own.

    Args:
        message: As the context keeps it.
        full: Shorten nothing.
    """
    content = message.get("content")
    if message.get("role") == "tool":
        return _text_of_output(content, full)
    blocks = content if isinstance(content, list) else [] if content is None else [content]
    parts = [_text_of_block(block, full) for block in blocks]
    if not any(isinstance(block, dict) and block.get("type") == "tool_call" for block in blocks):
        # A context may store the calls separately from a content that is plain text.
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
            return _text_of_thinking(
                _text_of_parts(block.get("content")) or _text_of_parts(block.get("summary"))
            )
        case "redacted_thinking":
            return "[thinking, encrypted by the provider]"
        case "tool_call":
            return _text_of_call(block.get("name"), block.get("input"), full)
        case "tool_result":
            return _text_of_output(block.get("output"), full)
        case kind:
            title = block.get("title")
            return visible_text(
                f"[{kind}: {title[:_LONGEST_LINE]}]" if isinstance(title, str) else f"[{kind}]",
                multiline=False,
            )


def _text_of_parts(parts: Any) -> str:
    """The text of a list of strings and of dicts with a text."""
    if not isinstance(parts, list):
        return ""
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return "\n".join(text for text in texts if isinstance(text, str))


def _text_of_thinking(thought: str) -> str:
    return "\n".join(["[thinking]", *(f"│ {line}" for line in visible_text(thought).splitlines())])


def _text_of_call(name: Any, arguments: Any, full: bool) -> str:
    written = json.dumps(arguments, ensure_ascii=False, default=str)
    if not full and len(written) > _LONGEST_ARGUMENTS:
        written = f"{written[:_LONGEST_ARGUMENTS]}…"
    return visible_text(f"→ {name} {written}", multiline=False)


def _text_of_output(output: Any, full: bool) -> str:
    if isinstance(output, list):  # of content blocks
        text = "\n".join(filter(None, (_text_of_part(part) for part in output)))
    elif output is None or isinstance(output, str):
        text = output or ""
    else:
        text = json.dumps(output, ensure_ascii=False, indent=2, default=str)
    lines = text.removesuffix("\n").split("\n")
    shown = [
        line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…"
        for line in lines[:_MOST_LINES]
    ]
    if full or shown == lines:
        return visible_text(text)
    more = len(lines) - len(shown)
    left_out = f"{more} more line{'' if more == 1 else 's'}" if more else "long lines cut"
    return (
        f"{visible_text(chr(10).join(shown))}\n… {left_out}, {_size(text)}; --full shows everything"
    )


def _text_of_part(part: Any) -> str:
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
    """A conversation as Markdown, or as an HTML page that loads nothing and runs nothing.

    Raises:
        MissingExtraError: The page needs a package that is not installed.
    """
    parts = [f"# {visible_text(title, multiline=False)}"]
    for message in messages:
        text = text_of_message(message, full=True)
        if message.get("role") in ("tool", "system") and text:
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
            text = f"{fence}\n{text}\n{fence}"
        parts += [f"## {heading_of_message(message).removeprefix('── ')}", text]
    written = "\n\n".join(filter(None, parts)) + "\n"
    if not page:
        return written
    try:
        from markdown_it import MarkdownIt  # noqa: PLC0415  # belongs to an extra
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "conversations as pages", extra="cli", missing="markdown-it-py"
        ) from error
    body = MarkdownIt("js-default").disable("image").render(written)  # this preset escapes HTML
    return style_page(html.escape(visible_text(title, multiline=False)), body)
