"""Writes an event as a line of JSON with its level, without secrets, and with bounded size.

The format is that of the published module: ``ts``, ``lvl``, ``schema``, ``event``, a few well-known members of the payload
at the top level, and the rest under ``data``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import orjson

from amplifier._json import Frame, rebuild, redact_secrets, redact_text, text_size
from amplifier.events import (
    APPROVAL_DENIED,
    CLEANUP_FAILED,
    COMMON_KEYS,
    HOOK_FAILED,
    HOOK_TIMEOUT,
    MODULE_CRASHED,
    MODULE_LOAD_FAILED,
    MODULE_ON_SESSION_READY_FAILED,
    MODULE_UNRESPONSIVE,
    POLICY_VIOLATION,
    PROVIDER_RETRY,
    PROVIDER_THROTTLE,
    PROVIDER_TOOL_SEQUENCE_REPAIRED,
)
from amplifier.models import ToolResult

from ._options import LEVELS, LogOptions

_KERNEL_KEYS = tuple(key for key in COMMON_KEYS if key != "parent_call_id")  # that one is text of a model
_SCHEMA = {"name": "amplifier.log", "ver": "1.0.0"}
TOP_LEVEL = (
    *("session_id", "status", "duration_ms", "error", "module", "component"),  # the first only from another host
    *("request_id", "span_id", "parent_span_id", "redaction"),
)
_FAILURES = frozenset({MODULE_LOAD_FAILED, MODULE_ON_SESSION_READY_FAILED, MODULE_CRASHED, CLEANUP_FAILED})
_FAILURES |= {HOOK_FAILED, HOOK_TIMEOUT}
_WARNINGS = frozenset({PROVIDER_RETRY, PROVIDER_THROTTLE, PROVIDER_TOOL_SEQUENCE_REPAIRED, APPROVAL_DENIED})
_WARNINGS |= {POLICY_VIOLATION, MODULE_UNRESPONSIVE}

_MARGIN = 1024  # what is redacted after the limit of a text, so that a secret at the limit is still complete
_TIGHTER = 16  # how much shorter texts have to be when a line is too long as a whole
_FEW = 20
_SHORT = 100
_DEEPEST_SHORT = 2  # as the message in the error of a result
_SHARE = 250  # so that the short members of 20 objects fit into a line even if every character is escaped
_LONGEST_NUMBER = 24
_DEEPEST = 1000


def level_of(event: str, data: dict[str, Any]) -> str:
    """DEBUG, INFO, WARNING, ERROR or CRITICAL: from the payload's ``lvl``, or else by the event."""
    given = data.get("lvl", data.get("level"))
    if isinstance(given, str) and given.upper() in LEVELS:
        return given.upper()
    if event in _FAILURES or "error" in event or data.get("error") or data.get("status") == "error":
        return "ERROR"
    return "WARNING" if event in _WARNINGS else "INFO"


def write_line(event: str, level: str, data: dict[str, Any], options: LogOptions) -> bytes:
    """The line of one event, newline included; `data` is not changed."""
    # The kernel's own fields contain no secrets; redacting them would be a third of the cost of a small event.
    common: dict[str, Any] = {key: data[key] for key in _KERNEL_KEYS if type(data.get(key)) is str}
    rest = {key: value for key, value in data.items() if key not in common and not (key == "raw" and options.strip_raw)}
    if rest.get("parent_id", "") is None:  # as in every session without a parent
        del rest["parent_id"]
    longest, most = options.max_field_chars, options.max_line_bytes
    tighter, size = max(64, longest // _TIGHTER), text_size(rest, most)
    # The estimate is in characters: a line of texts of other alphabets may be too long as well.
    for limit in (longest, tighter) if size <= most else (tighter,):
        kept = _cut(rest, limit) if size > limit else rest  # before redaction, whose cost it bounds
        if size > most and text_size(kept, most) > most:
            kept = _short_members(kept, most)
        kept = redact_secrets(kept)
        line = _encode(_record(event, level, common, kept))
        if size <= limit < len(line):  # long texts of objects that were not strings before redaction
            line = _encode(_record(event, level, common, kept := _cut(kept, limit)))
        if len(line) <= most:
            return line
    return _encode(_record(event, level, common, _short_members(kept, most)))


def broken_line(event: str, error: Exception) -> bytes:
    """The line for an event whose payload cannot be read."""
    problem = {"error": f"{type(error).__name__} while the payload was read"}
    return _encode(_record(str(event), "ERROR", {}, problem))


def _record(event: str, level: str, common: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    now = common.get("timestamp") or datetime.now(UTC).isoformat(timespec="milliseconds")
    record: dict[str, Any] = {"ts": now, "lvl": level, "schema": _SCHEMA, "event": event}
    if "session_id" in common:
        record["session_id"] = common["session_id"]
    for key in TOP_LEVEL:
        if key in data:
            record[key] = data[key]
    rest = {key: value for key, value in data.items() if key not in TOP_LEVEL}
    if common.get("parent_id"):
        rest["parent_id"] = common["parent_id"]
    if rest:
        record["data"] = rest
    return record


# ── bounds ───────────────────────────────────────────────────────────────────────────────────────


def _short_members(data: dict[str, Any], most: int) -> dict[str, Any]:
    """What is left of a payload that is too large for one line: its short members, and those of the objects in it."""
    room = 0

    def short(members: dict[Any, Any], depth: int) -> dict[str, Any]:
        nonlocal room
        kept: dict[str, Any] = {}
        for key, value in islice(members.items(), _FEW):
            is_object = isinstance(value, dict) and depth < _DEEPEST_SHORT
            # A name is not cut: half a secret in it would not be recognised.
            if type(key) is not str or len(key) > _SHORT or not (is_object or _is_short(value)):
                continue
            if depth == 0:
                room = most // _SHARE  # for all that is in this member
            else:
                room -= len(key) + (len(value) if isinstance(value, str) else _LONGEST_NUMBER)
            if room >= 0 and (not is_object or (value := short(value, depth + 1))):
                kept[key] = value
        return kept

    why = "the payload is too large for one line: all but its short members is left out"
    return {**short(data, 0), "left_out": why}


def _is_short(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _SHORT
    return type(value) in (float, bool) or (type(value) is int and value.bit_length() <= 64)


def _cut(value: Any, longest: int) -> Any:
    """Copy a value with its texts cut to `longest` characters."""

    def cut(leaf: Any, _frames: Sequence[Frame]) -> Any:
        if isinstance(leaf, str):
            return _cut_text(leaf, longest)
        if isinstance(leaf, bytes | bytearray) and len(leaf) > longest:
            return f"[{len(leaf)} bytes left out]"
        return leaf

    return rebuild(value, cut, subject="", max_depth=_DEEPEST, mark=True)


def _cut_text(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    # What is in the margin may be half a secret, which is not recognised; redaction moves it to the left of the limit.
    found, unread = redact_text(text[: longest + _MARGIN]), max(0, len(text) - longest - _MARGIN)
    kept = found[: min(longest, max(0, len(found) - _MARGIN)) if unread else longest]
    left_out = unread + len(found) - len(kept)
    return f"{kept}… [{left_out} characters left out]" if left_out else kept


# ── text ─────────────────────────────────────────────────────────────────────────────────────────


def _encode(record: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # sets, bytes, third-party objects, numbers beyond 64 bits, lone surrogates
        shown = ToolResult(output=record).safe_hook_presentation()["output"]
        return json.dumps(shown, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n"
