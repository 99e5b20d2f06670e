"""Questions for permission that wait for an answer over HTTP."""

from __future__ import annotations

from typing import Any

import anyio
import attrs

from .._asked_call import asked_call_id
from ._event_log import EventLog

__all__ = ["Questions"]


@attrs.define
class _Question:
    prompt: str
    options: list[str]
    timeout: float
    default: str
    tool_call_id: str | None
    answered: anyio.Event = attrs.field(factory=anyio.Event)
    answer: str = "Deny"


class Questions:
    """The approval system of one session; the kernel keeps the time limit of a question.

    Args:
        log: Announces questions, and that they do not wait any more.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._waiting: dict[str, _Question] = {}
        self._asked = 0

    async def request_approval(self, prompt: str, options: list[str], timeout: float, default: str) -> str:
        """Ask, and wait until a client answers."""
        self._asked += 1
        key = f"q{self._asked}"
        question = self._waiting[key] = _Question(prompt, list(options), timeout, default, asked_call_id())
        self._log.add("approval_required", **self._shown(key, question))
        answer: str | None = None
        try:
            await question.answered.wait()
            answer = question.answer
        finally:  # answered, too late, or the turn was stopped
            del self._waiting[key]
            self._log.add("approval_closed", question=key, answer=answer)
        return answer

    def waiting(self) -> list[dict[str, Any]]:
        """The questions without an answer."""
        return [self._shown(key, question) for key, question in self._waiting.items()]

    @staticmethod
    def _shown(key: str, question: _Question) -> dict[str, Any]:
        return {
            "question": key,
            "prompt": question.prompt,
            "options": question.options,
            "timeout": question.timeout,
            "default": question.default,
            "tool_call_id": question.tool_call_id,
        }

    def options_of(self, key: str) -> list[str] | None:
        """The options of a question; None if it does not wait, or not any more."""
        question = self._waiting.get(key)
        return None if question is None or question.answered.is_set() else question.options

    def answer(self, key: str, option: str) -> None:
        """Answer a question that waits with one of its options."""
        question = self._waiting[key]
        question.answer = option
        question.answered.set()
