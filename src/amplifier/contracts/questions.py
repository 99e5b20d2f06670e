"""Questions to a person about a tool call, as text that hides nothing."""

# Two different calls never have the same text, so a decision remembered for a text applies to one
# call. Nothing in the input can move the cursor, hide, run backwards or begin a new line: text that
# is not plain and printable is written as a JSON string with invisible characters escaped.
# Everything is shown, whole.

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from amplifier._internal.json import visible_text
from amplifier.models import ToolResult

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_LOOKS_LIKE_JSON = re.compile(r"null|true|false|NaN|-?Infinity|-?\d[\d.eE+-]*").fullmatch
_MANY_SPACES = re.compile(r" {16,}")


def render_prompt(
    tool: str,
    given: Any,
    reason: str,
    *,
    module: str | None = None,
    place: str | None = None,
    is_unconfined: bool = False,
) -> str:
    """Return the question about one call, with all of its input.

    Args:
        tool: The tool's name.
        given: Its input, of any type.
        reason: Why the user is asked.
        module: The module that mounted the tool, where the name does not show it.
        place: The real path that the call changes, where the input does not show it.
        is_unconfined: Whether a command runs outside of any sandbox.
    """
    of_module = "" if module is None else f" of module {_name(module)}"
    lines = [f"Allow the tool {_name(tool)}{of_module} to run?"]
    if isinstance(given, Mapping):
        lines += [question_line(key, value) for key, value in given.items()]
        if not given:
            lines.append("  (no input)")
    else:
        lines.append(_line("(input)", given))
    # No member of an input can have these names: they would be quoted.
    if place is not None:
        lines.append(_line("(real place)", place))
    if is_unconfined:
        lines.append(_line("(sandbox)", "none: the command can do what your user can do"))
    lines.append(f"Asked because: {one_line(reason, 300)}")
    return "\n".join(lines)


def one_line(text: str, max_length: int) -> str:
    """Return untrusted text as part of one line.

    It may be shortened, so use it for reasons, not for the input that the user approves.
    """
    shown = _seen(text[: max_length + 1])
    return shown if len(text) <= max_length else f"{shown[:max_length]}… ({len(text)} characters)"


def question_line(name: Any, value: Any) -> str:
    """Return the line of a question that shows a member of the input."""
    return _line(_name(name), value)


def _line(label: str, value: Any) -> str:
    plain = isinstance(value, str) and _is_plain(value)
    return f"  {label}: {_seen(value if plain else _json(value))}"


def _name(name: Any) -> str:
    """Return a plain name unchanged, and anything else as JSON, which no plain name looks like."""
    return name if isinstance(name, str) and _PLAIN_NAME.fullmatch(name) else _seen(_json(name))


def _is_plain(text: str) -> bool:
    # Text that begins with a quote or looks like JSON is quoted, so that different values have
    # different texts.
    is_bare = bool(text) and text[0] not in '"{[(' and not _LOOKS_LIKE_JSON(text)
    return is_bare and text == text.strip() == _seen(text)


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        # An input that is not JSON is shown in part, with its type.
        shown = ToolResult(output=value).safe_hook_presentation()["output"]
        return f"(no JSON) {json.dumps([type(value).__name__, shown], ensure_ascii=False)}"


def _seen(text: str) -> str:
    """Escape invisible characters and long runs of spaces in a way that JSON itself never does."""
    shown = visible_text(text, multiline=False, strict=True)
    return _MANY_SPACES.sub(lambda match: rf"\u0020{{{len(match[0])}}}", shown)
