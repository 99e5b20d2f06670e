"""The rules for `ToolResult.content`: text, and images and audio as base64, reduced to what a model request may carry.

Audio is an `UnknownBlock` of the type ``audio``: a class for it would refuse what transcripts hold under that type today.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from ..errors import ModelError
from ._content import ImageBlock, TextBlock, UnknownBlock

# RFC 6838's restricted name after a lower-case "image/" or "audio/"; no parameters, no wildcard. Compiled when it is first
# used: few sessions see an image.
_SUBTYPE = r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]*"
_EXAMPLES = {"image": "image/png", "audio": "audio/wav"}


def as_tool_content(value: Any) -> list[TextBlock | ImageBlock | UnknownBlock] | None:
    """Return fresh blocks without visibility and unknown members; nothing at all is None.

    Raises:
        ModelError: With paths relative to the list.
    """
    if value is None:
        return None
    if not isinstance(value, (list, tuple)):
        raise ModelError([("", f"invalid tool result content: expected list, got {type(value).__name__}")], subject="")
    blocks = []
    for index, given in enumerate(value):
        try:
            blocks.append(_as_block(given))
        except ValueError as error:
            raise ModelError([(f"[{index}]", str(error))], subject="") from None
    return blocks or None


def _as_block(given: Any) -> TextBlock | ImageBlock | UnknownBlock:
    kind, text = _member(given, "type"), _member(given, "text")
    if kind == "text" and isinstance(text, str):
        return TextBlock(text=text)
    if kind == "image":
        return ImageBlock(source=_as_source("image", _member(given, "source")))
    if kind == "audio":
        given = given.extra if isinstance(given, UnknownBlock) else given
        audio = UnknownBlock(type="audio")
        audio.extra["source"] = _as_source("audio", _member(given, "source"))
        return audio
    raise ValueError("invalid tool result content: expected a text block with a text, an image block or an audio block")


def _member(given: Any, name: str) -> Any:
    return given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)


def _as_source(kind: str, source: Any) -> dict[str, Any]:
    if not isinstance(source, Mapping) or source.get("type") != "base64":
        raise ValueError(f"invalid tool result {kind} source: expected a dict with type 'base64'")
    media_type, data = source.get("media_type"), source.get("data")
    if not isinstance(media_type, str) or re.fullmatch(f"{kind}/{_SUBTYPE}", media_type) is None:
        raise ValueError(f"invalid tool result {kind} media type: expected something like {_EXAMPLES[kind]!r}")
    if not isinstance(data, str) or not _is_strict_base64(data):
        raise ValueError(f"invalid tool result {kind} data: expected non-empty standard base64 with padding")
    return {"type": "base64", "media_type": media_type, "data": data}


def _is_strict_base64(data: str) -> bool:
    try:
        decoded = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return False
    # Encoding again catches what the decoder lets pass: stray bits in the last character.
    return bool(data) and base64.b64encode(decoded).decode("ascii") == data
