"""The value of an answer while its text is still arriving."""

from __future__ import annotations

from typing import Any

from ._answer_format import WRAPPER_KEY, AnswerFormat

_ALWAYS_BELOW = 2048
_GROWTH = 1.05


class PartialAnswer:
    """Collects the pieces of an answer and parses what has arrived.

    A long text is parsed again only when it has grown by a twentieth, so that the whole effort stays linear in its length.
    """

    def __init__(self, answer_format: AnswerFormat[Any]) -> None:
        self._format = answer_format
        self._text = ""
        self._next = 0.0
        self._last: Any = None

    def add(self, piece: str) -> bool:
        """Take the next piece; whether `value` has changed."""
        from jiter import from_json  # noqa: PLC0415 — of an extra

        self._text += piece
        if len(self._text) < self._next:
            return False
        self._next = 0 if len(self._text) < _ALWAYS_BELOW else len(self._text) * _GROWTH
        begin = self._text.find("{")
        if begin < 0:
            return False
        try:
            value = from_json(self._text[begin:].encode(errors="replace"), partial_mode="trailing-strings")
        except ValueError:
            return False
        if self._format.is_wrapped:
            value = value.get(WRAPPER_KEY) if isinstance(value, dict) else None
        changed = value is not None and value != self._last
        self._last = value if changed else self._last
        return changed

    @property
    def value(self) -> Any:
        """What has arrived so far, as JSON values; members that have not arrived are missing."""
        return self._last
