"""Estimates how many tokens a message takes: the bytes of its JSON text, divided.

Bytes of UTF-8 rather than characters: for English they are the same, and for Cyrillic, Chinese or emoji a byte count
is much nearer to what tokenizers do. A picture counts as a picture, and audio as much as one, not as the base64 it is written in. Nothing here runs code of third-party classes or recurses.
"""

from __future__ import annotations

import math
from typing import Any

import orjson

_NOT_JSON = 32  # bytes that count for a value without a JSON form
_PICTURE_TOKENS = 1600  # what the large providers charge at most for one picture that they scale down


_MEDIA = ("image", "audio")


def count_tokens(message: Any, chars_per_token: float) -> int:
    """Tokens of one message, roughly; at least one."""
    pictures = 0
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list) and any(map(_may_hold_picture, content)):
        rest, pictures = _without_pictures(content)
        if pictures:
            message = {**message, "content": rest}
    return max(1, math.ceil(_json_size(message) / chars_per_token) + pictures * _PICTURE_TOKENS)


def _may_hold_picture(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") in ("tool_result", *_MEDIA)


def _without_pictures(blocks: list[Any]) -> tuple[list[Any], int]:
    """The blocks without pictures and audio, and how many there were; looks into the parts of tool results, too."""
    rest: list[Any] = []
    pictures = 0
    for block in blocks:
        if not isinstance(block, dict):
            rest.append(block)
            continue
        if block.get("type") in _MEDIA:
            pictures += 1
            continue
        for key in ("content", "output"):
            parts = block.get(key)
            if block.get("type") == "tool_result" and isinstance(parts, list):
                others = [part for part in parts if not (isinstance(part, dict) and part.get("type") in _MEDIA)]
                pictures += len(parts) - len(others)
                block = {**block, key: others}  # noqa: PLW2901 — a copy without pictures takes its place
        rest.append(block)
    return rest, pictures


def _json_size(value: Any) -> int:
    try:
        return len(orjson.dumps(value))
    except (TypeError, RecursionError):  # integers beyond 64 bits, lone surrogates, values that are not JSON
        return _walked_size(value)


def _walked_size(root: Any) -> int:
    """The same size, give or take, for what the encoder refuses."""
    size, left = 0, [root]
    while left:
        value = left.pop()
        kind = type(value)
        if issubclass(kind, dict):
            left.extend(dict.keys(value))
            left.extend(dict.values(value))
            size += 2 + 2 * len(value)
        elif issubclass(kind, list | tuple):
            left.extend(value)
            size += 2 + len(value)
        elif issubclass(kind, str):
            size += 2 + len(str.encode(value, "utf-8", "surrogatepass"))
        elif issubclass(kind, bytes):
            size += 2 + len(value)
        elif issubclass(kind, int) and not issubclass(kind, bool):
            size += 1 + int.bit_length(value) * 3 // 10
        else:
            size += 5 if value is None or kind is bool else _NOT_JSON
    return size
