"""Estimates how many tokens a message takes: the bytes of its JSON text, divided.

Bytes of UTF-8 rather than characters: for English they are the same, and for Cyrillic, Chinese or emoji a byte count
is much nearer to what tokenizers do. A picture counts as a picture, and audio as much as one, not as the base64 it is written in; a
PDF counts by its size. Nothing here runs code of third-party classes or recurses.
"""

from __future__ import annotations

import math
from typing import Any, final

import orjson

_NOT_JSON = 32  # bytes that count for a value without a JSON form
_PICTURE_TOKENS = 1600  # what the large providers charge at most for one picture that they scale down
_BASE64_PER_TOKEN = 67  # of a document: 50 bytes of PDF for a token, between one page of pictures and dense text
_MOST_DOCUMENT_TOKENS = 50_000  # whatever its size, a document must not seem larger than a usual context window
MEDIA = ("image", "audio", "document")


def count_tokens(message: Any, chars_per_token: float) -> int:
    """Tokens of one message, roughly; at least one."""
    media = 0
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list) and any(map(_may_hold_media, content)):
        rest, media = _without_media(content)
        if media:
            message = {**message, "content": rest}
    return max(1, math.ceil(_json_size(message) / chars_per_token) + media)


_APART = 1000  # tokens between two requests that show how many tokens of the model one of ours is
_LEAST_RATE, _MOST_RATE = 0.7, 3.0
_INCREDIBLE = 4  # times the estimate and the budget together: as if every byte were a token
_CREDIBLE = 0.5  # of the estimate: some providers leave out what came from a cache, and those of tests invent numbers


@final
class Calibration:
    """Corrects estimates by what responses report: a line through the first request and the latest one.

    A request takes more than its messages: tools and the service's own words are the part of it that does not grow.

    Attributes:
        error: By how much the latest expectation was off, as a share of what was reported; None before the first report.
    """

    def __init__(self) -> None:
        self._expected = 0
        self._budget = 0
        self._first: tuple[int, int] | None = None
        self._latest: tuple[int, int] = (0, 0)
        self._rate = 1.0
        self.error: float | None = None

    @property
    def known(self) -> int:
        """Our estimate of the latest request that was counted; 0 before the first."""
        return self._latest[0]

    def expect(self, estimate: int) -> None:
        """The next request takes so many tokens, by our estimate."""
        self._expected = estimate

    def learn(self, reported: int, *, is_sure: bool = False) -> bool:
        """The request took so many, by the provider's count. One that cannot be right is left out; one that was asked for may be small.

        Returns:
            Whether it was taken.
        """
        if reported < _CREDIBLE * self._expected and not is_sure:
            return False
        if reported > _INCREDIBLE * (self._expected + self._budget):
            return False
        if self._first is not None:
            self.error = self.predicted(self._expected) / reported - 1
        self._latest = self._expected, reported
        if self._first is None or self._expected < self._first[0]:
            self._first = self._latest
        estimates, reports = (late - first for late, first in zip(self._latest, self._first, strict=True))
        if estimates >= _APART:
            self._rate = min(max(reports / estimates, _LEAST_RATE), _MOST_RATE)
        return True

    def predicted(self, estimate: int) -> float:
        """What the provider will count."""
        return max(1.0, self._latest[1] + self._rate * (estimate - self._latest[0]))

    def estimated(self, budget: int) -> int:
        """What messages may take by our estimate for a request to fit a budget of the provider's tokens."""
        self._budget = max(self._budget, budget)
        if self._first is None:
            return budget
        found = int(self._latest[0] + (budget - self._latest[1]) / self._rate)
        return min(max(min(budget, 1), found), int(budget / _LEAST_RATE))


def _media_tokens(block: dict[str, Any]) -> int:
    source = block.get("source") if block["type"] == "document" else None
    data = source.get("data") if isinstance(source, dict) else None
    size = len(data) // _BASE64_PER_TOKEN if isinstance(data, str) else 0
    return min(max(size, _PICTURE_TOKENS), _MOST_DOCUMENT_TOKENS)


def _may_hold_media(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") in ("tool_result", *MEDIA)


def _without_media(blocks: list[Any]) -> tuple[list[Any], int]:
    """The blocks without pictures, audio and documents, and the tokens of these; looks into the parts of tool results, too."""
    rest: list[Any] = []
    tokens = 0
    for block in blocks:
        if not isinstance(block, dict):
            rest.append(block)
            continue
        if block.get("type") in MEDIA:
            tokens += _media_tokens(block)
            continue
        for key in ("content", "output"):
            parts = block.get(key)
            if block.get("type") == "tool_result" and isinstance(parts, list):
                media = [part for part in parts if isinstance(part, dict) and part.get("type") in MEDIA]
                tokens += sum(map(_media_tokens, media))
                others = [part for part in parts if part not in media]
                block = {**block, key: others}  # noqa: PLW2901 — a copy without pictures takes its place
        rest.append(block)
    return rest, tokens


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
