"""A tool's output as a language model can read it: total functions from any object to JSON values and to text.

For `ToolResult` only. It never raises and may lose types, unlike the converter.
"""

from __future__ import annotations

import enum
import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import date, time
from typing import Any

from amplifier.models._codec.plain_values import MANY_CONTAINERS, MAX_DEPTH, MAX_SHARING, is_writable_size

from .._json import rebuild, sanitize_text

_SURROGATES = re.compile(r"[\ud800-\udfff]")
# Far beyond any number a model could use, and below the length at which Python refuses to write it.
_MAX_BITS = 12_000


def clean_text(value: object) -> str:
    """The object's text without control characters."""
    return sanitize_text(_shown(value))


def json_text(value: object) -> str:
    """Valid JSON text for any object whatever."""
    return sanitize_text(json.dumps(json_value(value), allow_nan=False))


def json_value(value: object) -> Any:
    """The nearest JSON value for any object whatever."""
    plain = rebuild(value, _as_json, subject="tool output", max_depth=MAX_DEPTH - 2, mark=True)
    return plain if is_writable_size([plain]) else _cut_sharing(plain)


def _cut_sharing(plain: Any) -> Any:
    """The value with a marker where sharing would make its text many times larger than the value is."""
    distinct: set[int] = set()
    waiting = [plain]
    while waiting:
        container = waiting.pop()
        if isinstance(container, (dict, list)) and id(container) not in distinct:
            distinct.add(id(container))
            waiting += container.values() if isinstance(container, dict) else container
    budget = max(MANY_CONTAINERS, MAX_SHARING * len(distinct))

    def unroll(value: Any) -> Any:
        nonlocal budget
        if not isinstance(value, (dict, list)):
            return value
        budget -= 1
        if budget < 0:
            return "[TOO LARGE]"
        if isinstance(value, dict):
            return {key: unroll(member) for key, member in value.items()}
        return [unroll(member) for member in value]

    return unroll(plain)


def _as_json(value: Any, frames: Sequence[object]) -> Any:
    """One step of the walk; what it returns is entered in turn if it is a dict or a list."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _SURROGATES.sub("", value)
    if value is None or kind is bool:
        return value
    if isinstance(value, enum.Enum):
        return _as_json(value.value, frames)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MAX_BITS else _shown(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return _with_text_keys(value)
    if isinstance(value, (list, tuple)):
        return list(value) if kind is not list else value
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=_shown)
    return _SURROGATES.sub("", _shown(value))


def _with_text_keys(value: Mapping[Any, Any]) -> dict[str, Any]:
    if type(value) is dict and all(type(key) is str and key.isascii() for key in value):
        return value
    texts = (json.dumps(key) if key is None or isinstance(key, bool) else _shown(key) for key in value)
    return {_SURROGATES.sub("", text): member for text, member in zip(texts, value.values(), strict=True)}


def _shown(value: object) -> str:
    try:
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value).decode("utf-8", errors="replace")
        return value.isoformat() if isinstance(value, (date, time)) else str(value)
    except Exception:  # noqa: BLE001  # a tool's own class may have any __str__; showing it must not fail the turn
        return f"<{type(value).__name__}>"
