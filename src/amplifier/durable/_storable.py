"""Text and JSON that an engine can store: what it cannot hold is replaced, everything else stays as it is.

What a model, a tool or an exception contains must not keep a turn from being recorded, nor end the worker that records it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import orjson

from amplifier._json import Frame, rebuild

_SURROGATES = re.compile(r"[\ud800-\udfff]")
_DEEPEST = 200
_LONGEST_KEY = 500
_REPLACEMENT = "\ufffd"


def storable_text(text: str, *, allows_nul: bool) -> str:
    """Text without lone surrogates, and without NUL where that is not allowed; U+FFFD takes their place.

    Args:
        text: Of any origin.
        allows_nul: Postgres has no NUL in text, SQLite has.
    """
    if not allows_nul and "\0" in text:
        text = text.replace("\0", _REPLACEMENT)
    return text if text.isascii() else _SURROGATES.sub(_REPLACEMENT, text)


def as_json(value: Any) -> str:
    """A value as JSON. Objects become text; so do integers beyond 64 bits, which JSON readers round."""
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # a lone surrogate, a large integer, a value that is too deep or contains itself
        plain = rebuild(value, _storable_value, subject="value cannot be stored", max_depth=_DEEPEST, mark=True)
        return orjson.dumps(plain, default=_object_text, option=orjson.OPT_NON_STR_KEYS).decode()


def _storable_value(value: Any, frames: Sequence[Frame]) -> Any:
    if isinstance(value, str):
        return storable_text(value, allows_nul=True)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        # Python refuses to write very long ones in decimal.
        return str(value) if value.bit_length() < 10_000 else hex(value)
    if isinstance(value, dict):
        return {storable_text(str(key), allows_nul=True): each for key, each in value.items()}
    return value


def _object_text(value: Any) -> str:
    return storable_text(str(value), allows_nul=True)


def storable_key(key: str) -> str:
    """A step's key as it is stored. The model chooses a part of it, and an index of Postgres has limits."""
    if len(key) <= _LONGEST_KEY and "\0" not in key:
        return key
    return f"sha256-{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"


_COMPACTIONS = "compactions"


def with_compactions(messages: list[dict[str, Any]], records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A conversation as engines store it: the journal of its compactions is in the metadata of its last message."""
    if not messages or not records:
        return messages
    *before, last = messages
    return [*before, {**last, "metadata": {**(last.get("metadata") or {}), _COMPACTIONS: records}}]


def without_compactions(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What `with_compactions` was given."""
    metadata = messages[-1].get("metadata") if messages else None
    if not metadata or _COMPACTIONS not in metadata:
        return messages, []
    *before, last = messages
    rest = {name: value for name, value in metadata.items() if name != _COMPACTIONS}
    own = {name: value for name, value in last.items() if name != "metadata"}
    return [*before, {**own, "metadata": rest} if rest else own], metadata[_COMPACTIONS]
