"""Estimates how many tokens a request takes, rather too many than too few: before a call no one knows the exact number."""

from __future__ import annotations

import math
from typing import Any

import orjson

from amplifier.models import to_dict

BYTES_PER_TOKEN = 3
"""Of JSON text in UTF-8. English prose has four or five, program text three to four, and most other languages about three."""
_PICTURE_TOKENS = 5_000
"""More than the large services count for one picture at its largest size, and at least for a document."""
_DOCUMENT_BYTES = 10
"""Of base64 for a token: half of what a page of dense text has in a PDF."""
_REQUEST_TOKENS, _TOOLS_TOKENS = 16, 700
"""What services add to every request, and to one with tools, for which they have instructions of their own."""
_PARTS = ("messages", "tools", "response_format")


def request_tokens(request: Any) -> int:
    """Tokens of a request: its messages, the schemas of its tools and of its answer."""
    media = 0

    def without_media(value: Any) -> Any:
        nonlocal media
        if isinstance(value, list):
            return [without_media(item) for item in value]
        if not isinstance(value, dict):
            return value
        if value.get("type") in ("image", "image_url", "input_image"):
            media += _PICTURE_TOKENS
            return None
        if value.get("type") == "document":
            media += max(_PICTURE_TOKENS, len(orjson.dumps(value)) // _DOCUMENT_BYTES)
            return None
        return {key: without_media(item) for key, item in value.items()}

    added = _REQUEST_TOKENS + (_TOOLS_TOKENS if getattr(request, "tools", None) else 0)
    try:
        plain = to_dict(request)
        size = len(orjson.dumps(without_media({part: plain.get(part) for part in _PARTS})))
    except Exception:  # noqa: BLE001 — a request of a third-party loop may hold anything; its text is the larger estimate
        size = len(repr(request).encode("utf-8", "replace"))
    return added + math.ceil(size / BYTES_PER_TOKEN) + media


class Density:
    """How many times more tokens the input of a provider's latest call had than was estimated; text may be denser than expected."""

    def __init__(self) -> None:
        self._factor = 1.0

    def applied(self, estimate: int) -> int:
        """An estimate for the next call."""
        return math.ceil(estimate * self._factor)

    def learn(self, estimate: int, reported: int) -> None:
        """Compare an estimate, in which the factor is included, with what the provider reports."""
        if estimate > 0:
            self._factor = max(1.0, self._factor * reported / estimate)


def text_tokens(text: str) -> int:
    """Tokens of a text."""
    return math.ceil(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN)


def content_tokens(response: Any) -> int:
    """Tokens of the content of a response that reports no usage."""
    try:
        size = len(orjson.dumps(to_dict(response).get("content")))
    except Exception:  # noqa: BLE001 — as above
        size = len(repr(response).encode("utf-8", "replace"))
    return math.ceil(size / BYTES_PER_TOKEN)
