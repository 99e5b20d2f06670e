r"""Renders the question to the user from the call's data.

Two different calls never have the same text, so a decision remembered for a text applies to one call. Nothing in the input
can move the cursor, hide, run backwards or begin a new line: text that is not plain and printable is written as a JSON
string with invisible characters escaped. The middle of a long value is omitted, and the prompt states how much and the
value's SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from amplifier._json import visible_text
from amplifier.models import ToolResult

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_LOOKS_LIKE_JSON = re.compile(r"null|true|false|-?\d[\d.eE+-]*").fullmatch
_MANY_SPACES = re.compile(r" {16,}")
_MOST_VALUES = 20
_LONGEST_NAME = 100
_SHORTEST = 64


def render_prompt(tool: str, given: Any, reason: str, *, longest: int) -> str:
    """The question about one call.

    Args:
        tool: The tool's name.
        given: Its input, anything.
        reason: Why the user is asked.
        longest: How many characters of a value are shown.
    """
    longest = max(longest, _SHORTEST)
    lines = [f"Allow the tool {_name(tool)} to run?"]
    if isinstance(given, Mapping):
        members = list(given.items())
        lines += [_line(_name(key), value, longest) for key, value in members[:_MOST_VALUES]]
        if len(members) > _MOST_VALUES:
            rest = _json(dict(members[_MOST_VALUES:]))
            lines.append(f"  and {len(members) - _MOST_VALUES} more values ({len(rest)} characters, {_digest(rest)})")
        if not members:
            lines.append("  (no input)")
    else:
        lines.append(_line("(input)", given, longest))
    lines.append(f"Asked because: {one_line(reason, 300)}")
    return "\n".join(lines)


def one_line(text: str, longest: int) -> str:
    """Untrusted text as part of one line; for reasons, not for the input that the user approves."""
    shown = _seen(text[: longest + 1])
    return shown if len(text) <= longest else f"{shown[:longest]}… ({len(text)} characters)"


def _line(label: str, value: Any, longest: int) -> str:
    plain = isinstance(value, str) and _is_plain(value)
    text = value if plain else _json(value)
    if len(text) <= longest:
        return f"  {label}: {_seen(text)}"
    half = (longest - 1) // 2
    left_out = len(text) - 2 * half
    about = f"({len(text)} characters, {left_out} of them left out at …, {_digest(text)})"
    return f"  {label} {about}: {_seen(text[:half])}…{_seen(text[-half:])}"


def _name(name: Any) -> str:
    """A plain name unchanged, anything else as JSON, which begins with a quote and so is distinct from a name."""
    if isinstance(name, str) and _PLAIN_NAME.fullmatch(name):
        return name
    text = _json(name)
    return _seen(text) if len(text) <= _LONGEST_NAME else f"{_seen(text[:_LONGEST_NAME])}… ({_digest(text)})"


def _is_plain(text: str) -> bool:
    # Text that begins with a quote or looks like JSON is quoted: no two values may have the same text.
    return bool(text) and text[0] not in '"{[(' and text == text.strip() == _seen(text) and not _LOOKS_LIKE_JSON(text)


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError, RecursionError):  # an input that is not JSON: shown in part, with its type
        shown = ToolResult(output=value).safe_hook_presentation()["output"]
        return f"(no JSON) {json.dumps([type(value).__name__, shown], ensure_ascii=False)}"


def _seen(text: str) -> str:
    """Escape invisible characters and long runs of spaces in a way that JSON itself never does."""
    shown = visible_text(text, multiline=False)
    if not shown.isprintable():  # spaces of other widths and unassigned characters
        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown)
    return _MANY_SPACES.sub(lambda found: rf"\u0020{{{len(found[0])}}}", shown)


def _digest(text: str) -> str:
    return f"sha256 {hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
