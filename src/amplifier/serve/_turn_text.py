"""The text of a turn as one answer: what the model writes between tool calls, and the final answer."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from amplifier.events import PROVIDER_REQUEST, PROVIDER_RESPONSE
from amplifier.models import TextDelta, TurnEvent

__all__ = ["TurnText"]


@attrs.define
class TurnText:
    """Collects the text and the token counts from the events of one turn."""

    input_tokens: int = 0
    output_tokens: int = 0
    _has_text: bool = False
    _has_answer: bool = False

    def add(self, event: TurnEvent) -> str:
        """The new text in an event; texts of different model calls are separated by a blank line."""
        if isinstance(event, TextDelta) and event.text:
            separator = "\n\n" if self._has_text and not self._has_answer else ""
            self._has_text = self._has_answer = True
            return separator + event.text
        if event.name == PROVIDER_REQUEST:
            self._has_answer = False
        elif event.name == PROVIDER_RESPONSE:
            usage = event.data.get("usage")
            if isinstance(usage, Mapping):
                self.input_tokens += _tokens(usage.get("input_tokens"))
                self.output_tokens += _tokens(usage.get("output_tokens"))
        return ""

    def rest(self, result: str) -> str:
        """The answer, if it was not streamed."""
        if self._has_answer or not result:
            return ""
        separator = "\n\n" if self._has_text else ""
        self._has_text = self._has_answer = True
        return separator + result


def _tokens(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
