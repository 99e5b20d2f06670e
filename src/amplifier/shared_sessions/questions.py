"""Questions that wait for a person's answer: for permission, or for anything else that a turn cannot go on without."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self, TypeAlias

import anyio
import attrs

from amplifier.contracts import current_call, log_unanswered, question_for
from amplifier.models.turns import ToolUse

from .edits import Edits
from .runs import EventLog

DENY: Final = "Deny"
_ALLOWING: Final = ("allow once", "allow", "allow always")

_LONGEST_SHOWN: Final = 365 * 24 * 3600.0
"""Seconds; a question that waits longer has no end that is worth showing."""


@attrs.frozen(kw_only=True)
class Question:
    """What an agent asks a person.

    Attributes:
        question_id: The name by which it is answered.
        options: The answers on offer.
        tool_name: The tool whose call asks.
        tool_call_id: The call it is about; None if it is about none that the client knows.
        timeout: Seconds for the answer.
        default: What counts when the time is over.
        expires_at: When that is, ISO 8601; None if that is not known, or very far.
        diff: What an edit would change, in place of the lines of the prompt that say the same.
    """

    question_id: str
    prompt: str
    options: tuple[str, ...]
    tool_name: str | None = None
    tool_call_id: str | None = None
    timeout: float | None = None
    default: str | None = None
    expires_at: str | None = None
    diff: tuple[str, ...] = ()

    @classmethod
    def for_permission(cls, prompt: str, options: list[str], timeout: float, default: str) -> Self:
        """A question of the kernel, about the outermost tool call that runs here: clients do not know those of child sessions.

        Its id cannot be guessed, because the names of sessions can.
        """
        call, outermost = current_call(), None
        while call is not None:
            outermost = call if call.kind == "tool" else outermost
            call = call.parent
        expires_at: str | None = None
        if timeout < _LONGEST_SHOWN:
            expires_at = (datetime.now(UTC) + timedelta(seconds=timeout)).isoformat(
                timespec="milliseconds"
            )
        return cls(
            question_id=f"q-{secrets.token_hex(12)}",
            prompt=prompt,
            options=tuple(options),
            tool_name=None if outermost is None else outermost.tool_name,
            tool_call_id=None if outermost is None else outermost.call_id,
            timeout=timeout,
            default=default,
            expires_at=expires_at,
        )


@attrs.define(eq=False)
class _Waiting:
    question: Question
    answered: anyio.Event = attrs.field(factory=anyio.Event)
    answer: Any = None


Asked: TypeAlias = Callable[[Question], Awaitable[None]]
Closed: TypeAlias = Callable[[Question, Any], None]


class Questions:
    """The questions that wait; the approval system of a session. The kernel keeps the time limit of a question.

    Args:
        asked: Announces a question.
        closed: Gets a question that does not wait any more, and its answer; None if it was not answered in time, or its turn was stopped.
        edits: What the calls that ask would change.
    """

    def __init__(
        self, asked: Asked | None = None, closed: Closed | None = None, edits: Edits | None = None
    ) -> None:
        self._asked = asked
        self._closed = closed
        self._edits = edits
        self._waiting: dict[str, _Waiting] = {}
        self.uses: Mapping[str, ToolUse] = {}
        """The tool calls of the turn that runs, by id."""

    def __repr__(self) -> str:
        return f"<Questions: {len(self._waiting)} wait for an answer>"

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: str
    ) -> str:
        """Ask for permission, and wait until it is given or denied."""
        about = question_for(prompt, timeout)
        edit = None if self._edits is None else self._edits.current()
        if edit is not None:
            prompt = "\n".join(line for line in prompt.split("\n") if line not in edit.covers)
        question = Question.for_permission(prompt, options, timeout, default)
        if edit is not None:
            question = attrs.evolve(question, diff=tuple(edit.lines))
        with log_unanswered(about):
            return str(await self.ask(question))

    async def ask(self, question: Question) -> Any:
        """Ask, and wait for the answer."""
        waiting = self._waiting[question.question_id] = _Waiting(question)
        try:
            with person_is_asked(self.uses):
                if self._asked is not None:
                    await self._asked(question)
                await waiting.answered.wait()
        finally:  # answered, too late, or the turn was stopped
            del self._waiting[question.question_id]
            if self._closed is not None:
                self._closed(question, waiting.answer)
        return waiting.answer

    def waiting(self) -> list[Question]:
        """Those without an answer, the oldest first."""
        return [each.question for each in self._waiting.values() if not each.answered.is_set()]

    def find(self, question_id: str) -> Question | None:
        """The question of this id, if it waits for an answer."""
        found = self._waiting.get(question_id)
        return None if found is None or found.answered.is_set() else found.question

    def answer(self, question_id: str, answer: Any) -> bool:
        """Answer a question; returns False if no one asks it. The first answer counts."""
        found = self._waiting.get(question_id)
        if found is not None and not found.answered.is_set():
            found.answer = answer
            found.answered.set()
        return found is not None


def allowing(options: Iterable[str]) -> list[str]:
    """The options that count as yes for the kernel, the narrowest first; everything else is a no."""
    by_name = {option.lower(): option for option in options}
    return [by_name[name] for name in _ALLOWING if name in by_name]


@contextmanager
def person_is_asked(uses: Mapping[str, ToolUse]) -> Iterator[None]:
    """A person is asked about the current call; the time that takes is not the call's own, nor that of the calls around it."""
    began, call = time.monotonic(), current_call()
    try:
        yield
    finally:
        while call is not None:
            if (use := uses.get(call.call_id)) is not None:
                use.waited += time.monotonic() - max(began, use.started_at)
            call = call.parent


def questions_on(log: EventLog, edits: Edits | None = None) -> Questions:
    """Questions that are announced as ``approval_required`` and ``approval_closed`` of a log, with the diffs of edits."""

    async def asked(question: Question) -> None:
        log.add("approval_required", **shown(question))

    def closed(question: Question, answer: Any) -> None:
        log.add("approval_closed", question=question.question_id, answer=answer)

    return Questions(asked, closed, edits)


def shown(question: Question) -> dict[str, Any]:
    """A question as entries of a log and descriptions of a session have it."""
    return {
        "question": question.question_id,
        "prompt": question.prompt,
        "options": list(question.options),
        "timeout": question.timeout,
        "default": question.default,
        "tool_call_id": question.tool_call_id,
        **({"diff": list(question.diff)} if question.diff else {}),
    }
