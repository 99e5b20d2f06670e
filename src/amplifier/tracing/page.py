"""A trace as a self-contained HTML page, with style and script allowed by hash, and inert data."""

from __future__ import annotations

import base64
import hashlib
import json
from contextlib import suppress
from html import escape
from importlib.resources import files
from typing import Any, Final

from amplifier._internal.json import rebuild, truncate_values, visible_text
from amplifier.events import PROVIDER_REQUEST

from ._event_logs import LogEvent, UnreadLine
from ._text import (
    STATUS_WORDS,
    duration,
    one_line,
    row_facts,
    row_title,
    self_seconds,
    slowest,
    totals,
    write_summary,
)
from ._trace import Row, Trace

# Approximate number of characters of all payloads, which a browser opens in a second.
_ALL_PAYLOADS: Final = 16_000_000
_MAX_PAYLOAD: Final = 20_000
_MIN_PAYLOAD: Final = 400
_MESSAGES: Final = 4
_MAX_DEPTH: Final = 50


def page_data(trace: Trace, *, after: int = 0) -> dict[str, Any]:
    """Return the data of the page.

    Args:
        trace: The trace.
        after: Revision of the trace. Only rows that changed after it are returned.
    """
    limit = max(_MIN_PAYLOAD, min(_MAX_PAYLOAD, _ALL_PAYLOADS // max(1, trace.lines)))
    own = self_seconds(trace)
    return {
        "title": one_line(f"Session {trace.session_id}"),
        "summary": write_summary(totals(trace)),
        "notes": [one_line(note) for note in trace.notes],
        "slowest": [
            [row.number, one_line(f"{row_title(row)} {duration(own[row.number])}")]
            for row in slowest(trace)
        ],
        "revision": trace.revision,
        "rows": [_row(row, limit) for row in trace.rows if row.revision > after],
    }


def _row(row: Row, limit: int) -> dict[str, Any]:
    # The keys are short, because there may be many thousands of rows.
    return {
        "n": row.number,
        "k": row.kind,
        "l": one_line(row_title(row)),
        "x": one_line(row.text),
        "p": row.parent,
        "s": row.start,
        "e": row.end if row.has_duration else None,
        "t": row.status,
        "u": STATUS_WORDS[row.status],
        "d": duration(row.seconds) if row.has_duration else "",
        "w": [one_line(fact) for fact in row_facts(row)],
        "i": one_line(row.session_id),
        "v": [_event(event, limit) for event in row.events],
    }


def _event(event: LogEvent | UnreadLine, limit: int) -> list[Any]:
    if isinstance(event, UnreadLine):
        return [event.number, "line not read", None, visible_text(event.text)]
    return [event.number, one_line(event.name), event.at, _payload(event, limit)]


def _payload(event: LogEvent, limit: int) -> str:
    data = event.data
    # Emitters write the same value under both keys.
    if "result" in data and data.get("result") == data.get("tool_result"):
        data = {key: value for key, value in data.items() if key != "result"}
    messages = data.get("messages")
    if event.name == PROVIDER_REQUEST and isinstance(messages, list) and len(messages) > _MESSAGES:
        # Every request repeats the whole conversation.
        left_out = f"[{len(messages) - _MESSAGES} earlier messages left out]"
        data = {**data, "messages": [left_out, *messages[-_MESSAGES:]]}
    if not data:
        return ""
    data = _parse_texts(data)
    text = _dumps(data)
    if len(text) > limit:
        text = _dumps(truncate_values(data, max(100, limit // 8)))
    if len(text) > limit:
        note = f"[{len(text) - limit} characters left out; the log has all of them]"
        text = f"{text[:limit]}…\n{note}"
    return visible_text(text)


def _parse_texts(value: Any, depth: int = 0) -> Any:
    """Replace texts that are JSON with their values, because many tools return JSON as one line."""
    if depth > _MAX_DEPTH:
        return value
    if isinstance(value, dict):
        return {key: _parse_texts(member, depth + 1) for key, member in value.items()}
    if isinstance(value, list):
        return [_parse_texts(member, depth + 1) for member in value]
    if isinstance(value, str) and value[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _dumps(data: dict[str, Any]) -> str:
    try:
        return json.dumps(data, indent=2, ensure_ascii=False)
    except RecursionError:
        data = rebuild(data, subject="", max_depth=_MAX_DEPTH, mark=True)
        return json.dumps(data, indent=2, ensure_ascii=False)


_STYLE: Final = files(__package__).joinpath("page_files", "trace.css").read_text(encoding="utf-8")
_SCRIPT: Final = files(__package__).joinpath("page_files", "trace.js").read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# The page loads and sends nothing. Only its own script and style sheet apply.
_POLICY: Final = (
    f"default-src 'none'; script-src {_hash(_SCRIPT)}; style-src {_hash(_STYLE)}; "
    "base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


def write_page(trace: Trace) -> str:
    """Return the page of a trace. It needs no other file and no network."""
    return _page(page_data(trace), trace.session_id, _POLICY)


def live_page() -> str:
    """Return the page of a running session, which requests the rows from its server."""
    return _page({"live": True}, "Trace", f"{_POLICY}; connect-src 'self'")


def live_policy() -> str:
    """Return the content security policy to send with a live page."""
    return f"{_POLICY}; connect-src 'self'; frame-ancestors 'none'"


def style_page(title: str, body: str, style: str = _STYLE) -> str:
    """Return a page without scripts.

    Args:
        title: The title as HTML.
        body: The body as HTML.
        style: The style sheet.
    """
    policy = f"default-src 'none'; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    return f"""<!doctype html>
<html lang="en"><head>{_head(title, policy, style)}</head><body class="plain">{body}</body></html>
"""


def _head(title: str, policy: str, style: str = _STYLE) -> str:
    return f"""<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title><style>{style}</style>"""


def _page(data: dict[str, Any], session_id: str, policy: str) -> str:
    # "<" would let the text end the element that holds the data.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    title = escape(visible_text(session_id, multiline=False))
    return f"""<!doctype html>
<html lang="en"><head>{_head(title, policy)}</head><body>
<header><h1 id="title">{title}</h1><p id="summary"></p><p id="state" role="status"></p>
<ul id="notes"></ul></header>
<div id="slow"></div>
<div id="tools"><label>Search <input id="search" type="search" aria-keyshortcuts="/"></label>
<fieldset><legend>Show</legend>
<label><input id="problems" type="checkbox"> problems only</label>
<span id="kinds"></span></fieldset>
<button id="open-all" type="button">Open all</button>
<button id="close-all" type="button">Close all</button>
<span id="count" role="status"></span></div>
<main><div id="tree" role="tree" tabindex="0" aria-label="What the agent did">
<div id="space" role="presentation"></div></div>
<section id="details" tabindex="0" aria-label="Details"><p>Select a row.
Arrow keys move, → opens, ← closes, / searches, Enter goes to the details, Escape comes back.</p>
</section></main>
<script type="application/json" id="data">{text}</script><script>{_SCRIPT}</script></body></html>
"""
