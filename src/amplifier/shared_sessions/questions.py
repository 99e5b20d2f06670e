"""Questions that wait for a person's answer, whether for permission or for another reason."""

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

_MAX_SHOWN_SECONDS: Final = 365 * 24 * 3600.0
"""The longest wait, in seconds, for which the time of its end is shown."""


@attrs.frozen(kw_only=True)
class Question:
    """A question of an agent to a person.

    Attributes:
        question_id: The id, with which an answer names the question.
        prompt: The text of the question.
        options: The answers on offer.
        tool_name: The tool of the call with the question, or None.
        tool_call_id: The call that the question is about. None if the client hasn't received the
            call.
        timeout: Seconds for the answer.
        default: The answer after that time.
        expires_at: The time at which the default applies, ISO 8601. None if unknown, or very far.
        diff: The diff of an edit, in place of the lines of the prompt with the same content.
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
        """Make a question that the kernel asks, about the outermost running tool call.

        Clients don't see the calls of child sessions. The id can't be guessed, unlike the names of
        sessions.
        """
        call, outermost = current_call(), None
        while call is not None:
            outermost = call if call.kind == "tool" else outermost
            call = call.parent
        expires_at: str | None = None
        if timeout < _MAX_SHOWN_SECONDS:
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
    """The waiting questions of a session, and its approval system.

    The kernel enforces the time limit of a question.

    Args:
        asked: Announces a question.
        closed: Receives a question that is no longer waiting, and its answer. The answer is None if
            the question wasn't answered in time or its turn was stopped.
        edits: The changes that the asking calls would make.
    """

    def __init__(
        self, asked: Asked | None = None, closed: Closed | None = None, edits: Edits | None = None
    ) -> None:
        self._asked = asked
        self._closed = closed
        self._edits = edits
        self._waiting: dict[str, _Waiting] = {}
        self.uses: Mapping[str, ToolUse] = {}
        """The tool calls of the running turn, by id."""

    def __repr__(self) -> str:
        return f"<Questions: {len(self._waiting)} wait for an answer>"

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: str
    ) -> str:
        """Ask for permission and wait for the answer."""
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
        """Ask a question and wait for the answer."""
        waiting = self._waiting[question.question_id] = _Waiting(question)
        try:
            with person_is_asked(self.uses):
                if self._asked is not None:
                    await self._asked(question)
                await waiting.answered.wait()
        finally:
            del self._waiting[question.question_id]
            if self._closed is not None:
                self._closed(question, waiting.answer)
        return waiting.answer

    def waiting(self) -> list[Question]:
        """Return the questions without an answer, the oldest first."""
        return [
            waiting.question for waiting in self._waiting.values() if not waiting.answered.is_set()
        ]

    def find(self, question_id: str) -> Question | None:
        """Return the question of this id if it waits for an answer, or None."""
        waiting = self._waiting.get(question_id)
        return None if waiting is None or waiting.answered.is_set() else waiting.question

    def answer(self, question_id: str, answer: Any) -> bool:
        """Answer a question. The first answer counts.

        Returns:
            False if the question is unknown or no longer open.
        """
        waiting = self._waiting.get(question_id)
        if waiting is not None and not waiting.answered.is_set():
            waiting.answer = answer
            waiting.answered.set()
        return waiting is not None


def allowing(options: Iterable[str]) -> list[str]:
    """Return the options that the kernel takes as yes, the narrowest first."""
    by_name = {option.lower(): option for option in options}
    return [by_name[name] for name in _ALLOWING if name in by_name]


@contextmanager
def person_is_asked(uses: Mapping[str, ToolUse]) -> Iterator[None]:
    """Exclude the time of the block, in which a person answers, from the running tool calls."""
    began, call = time.monotonic(), current_call()
    try:
        yield
    finally:
        while call is not None:
            if (use := uses.get(call.call_id)) is not None:
                use.waited += time.monotonic() - max(began, use.started_at)
            call = call.parent


def questions_on(log: EventLog, edits: Edits | None = None) -> Questions:
    """Return the questions that a log announces, with the diffs of edits.

    The entries are ``approval_required`` and ``approval_closed``.
    """

    async def asked(question: Question) -> None:
        log.add("approval_required", **shown(question))

    def closed(question: Question, answer: Any) -> None:
        log.add("approval_closed", question=question.question_id, answer=answer)

    return Questions(asked, closed, edits)


def shown(question: Question) -> dict[str, Any]:
    """Return a question as it appears in logs and in descriptions of a session."""
    return {
        "question": question.question_id,
        "prompt": question.prompt,
        "options": list(question.options),
        "timeout": question.timeout,
        "default": question.default,
        "tool_call_id": question.tool_call_id,
        **({"diff": list(question.diff)} if question.diff else {}),
    }
