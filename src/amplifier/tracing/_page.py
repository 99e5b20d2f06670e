"""A trace as one self-contained HTML page: its own style and script, allowed by their hashes, and the data as inert JSON."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib.resources import files
from typing import Any, Final

from amplifier._json import visible_text

from ._page_data import page_data
from ._trace import Trace

_STYLE: Final = files(__package__).joinpath("page_files", "trace.css").read_text(encoding="utf-8")
_SCRIPT: Final = files(__package__).joinpath("page_files", "trace.js").read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_POLICY: Final = (
    f"default-src 'none'; script-src {_hash(_SCRIPT)}; style-src {_hash(_STYLE)}; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""The page loads nothing and sends nothing; only its own script and style sheet apply."""


def write_page(trace: Trace) -> str:
    """The page of a trace; it needs no other file and no network."""
    return _page(page_data(trace), trace.session_id, _POLICY)


def live_page() -> str:
    """The page of a session that a server follows: it asks that server for the rows of the session that its address names."""
    return _page({"live": True}, "Trace", f"{_POLICY}; connect-src 'self'")


def live_policy() -> str:
    """The policy to send with a live page."""
    return f"{_POLICY}; connect-src 'self'; frame-ancestors 'none'"


def style_page(title: str, body: str) -> str:
    """A page without scripts in the same style; both texts are HTML."""
    policy = f"default-src 'none'; style-src {_hash(_STYLE)}; base-uri 'none'; form-action 'none'"
    return f"""<!doctype html>
<html lang="en"><head>{_head(title, policy)}</head><body class="plain">{body}</body></html>
"""


def _head(title: str, policy: str) -> str:
    return f"""<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" content="no-referrer">
<title>{title}</title><style>{_STYLE}</style>"""


def _page(data: dict[str, Any], session_id: str, policy: str) -> str:
    # "<" would let the text end the element that holds the data.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    title = escape(visible_text(session_id, multiline=False))
    return f"""<!doctype html>
<html lang="en"><head>{_head(title, policy)}</head><body>
<header><h1 id="title">{title}</h1><p id="summary"></p><p id="state" role="status"></p><ul id="notes"></ul></header>
<div id="slow"></div>
<div id="tools"><label>Search <input id="search" type="search" aria-keyshortcuts="/"></label>
<fieldset><legend>Show</legend><label><input id="problems" type="checkbox"> problems only</label><span id="kinds"></span></fieldset>
<button id="open-all" type="button">Open all</button><button id="close-all" type="button">Close all</button>
<span id="count" role="status"></span></div>
<main><div id="tree" role="tree" tabindex="0" aria-label="What the agent did"><div id="space" role="presentation"></div></div>
<section id="details" tabindex="0" aria-label="Details"><p>Select a row. Arrow keys move, → opens, ← closes, / searches, Enter goes to the
details, Escape comes back.</p></section></main>
<script type="application/json" id="data">{text}</script><script>{_SCRIPT}</script></body></html>
"""
