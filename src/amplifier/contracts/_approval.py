"""The contracts of an application's user interface: approvals, input and display."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

import anyio
import attrs

from amplifier._internal.json import visible_text
from amplifier.models import ApprovalDefault, ApprovalRequest, ApprovalResponse, UserMessageLevel

from .calls import CurrentCall, current_call


@runtime_checkable
class ApprovalProvider(Protocol):
    """Answers the request of a published approval hook.

    The hook passes the whole request. The kernel calls an `ApprovalSystem` instead.
    """

    async def request_approval(self, request: ApprovalRequest) -> ApprovalResponse:
        """Ask the user and return the response.

        Args:
            request: The tool, the action, the risk and the time until the caller stops waiting.
        """


@runtime_checkable
class ApprovalSystem(Protocol):
    """Answers the questions of hooks on behalf of the application's user.

    The application passes it to the session. The kernel calls it with a deadline, and cancels a
    question that exceeds it. If the system fails, the answer is a denial.
    """

    async def request_approval(
        self,
        prompt: str,
        options: list[str],
        timeout: float,
        default: ApprovalDefault,
    ) -> str:
        """Ask, wait, and return the chosen option.

        Args:
            prompt: Text of the question.
            options: Possible answers. "Allow", "Allow once" and "Allow always", in any case, mean
                yes, and every other answer means no.
            timeout: Seconds until the kernel stops waiting.
            default: Decision of the kernel without an answer in time.

        Raises:
            ApprovalTimeoutError: The system stopped waiting. The kernel applies the default.
        """


@attrs.frozen(kw_only=True)
class ApprovalQuestion:
    """A question for the person who decides about a call. ``str(question)`` is its text.

    Attributes:
        text: The whole question, to be shown as plain text.
        tool: Name of the tool, empty for a question that is not about a tool call.
        arguments: Input of the call, empty if the hook did not pass it.
        module: Id of the module that mounted the tool, or None if the application mounted it.
        reason: Reason for the question, empty if the hook did not pass it.
        seconds: Seconds that the session waits for the answer.
    """

    text: str
    tool: str = ""
    arguments: Mapping[str, Any] = attrs.field(factory=dict)
    module: str | None = None
    reason: str = ""
    seconds: float = 300.0

    def __str__(self) -> str:
        """Return the text."""
        return self.text


_logger = logging.getLogger(__name__)
_MAX_NOTED = 16
_noted: ContextVar[tuple[CurrentCall | None, tuple[ApprovalQuestion, ...]]] = ContextVar(
    "amplifier_noted_questions", default=(None, ())
)


def note_question(question: ApprovalQuestion) -> None:
    """Record the details of a question, in a hook that is going to ask it.

    The result of a hook has only the text. `question_for` looks up the details by the text, in the
    same task, when the approval system is called.
    """
    call = current_call()
    noted_call, questions = _noted.get()
    earlier = questions[1 - _MAX_NOTED :] if noted_call is call else ()
    _noted.set((call, (*earlier, question)))


def question_for(prompt: str, seconds: float) -> ApprovalQuestion:
    """Return the question that an approval system was called with as an object.

    Args:
        prompt: The text, as `ApprovalSystem.request_approval` gets it.
        seconds: Seconds that the session waits for the answer.
    """
    call = current_call()
    noted_call, questions = _noted.get()
    for question in reversed(questions if noted_call is call else ()):
        if visible_text(question.text, strict=True) == prompt:
            return attrs.evolve(question, text=prompt, seconds=seconds)
    tool = call.tool_name if call is not None else None
    return ApprovalQuestion(text=prompt, tool=tool or "", seconds=seconds)


@contextmanager
def log_unanswered(question: ApprovalQuestion) -> Iterator[None]:
    """Log a question by name if its deadline passes before the block ends."""
    deadline = min(anyio.current_effective_deadline(), anyio.current_time() + question.seconds)
    try:
        yield
    except anyio.get_cancelled_exc_class():
        if anyio.current_time() >= deadline:
            about = f"the call of {question.tool}" if question.tool else repr(question.text[:80])
            _logger.warning(
                "no one answered the question about %s within %g s", about, question.seconds
            )
        raise


@runtime_checkable
class UserInput(Protocol):
    """Asks the user for values, not only for permission.

    An `ApprovalSystem` may implement this method too. A module that needs values, such as an MCP
    server with a form, looks for it on the session's approval system.
    """

    async def request_input(
        self,
        prompt: str,
        schema: dict[str, Any],
        timeout: float,
    ) -> dict[str, Any] | None:
        """Ask, wait, and return the values.

        Args:
            prompt: Text of the question.
            schema: JSON Schema of an object with texts, numbers, booleans or enumerations.
            timeout: Seconds until the caller stops waiting.

        Returns:
            Values that fit the schema, or None if the user declines.
        """


@runtime_checkable
class DisplaySystem(Protocol):
    """Shows messages to the user. The application passes it to the session.

    The session logs an error of the system and continues.
    """

    def show_message(self, message: str, level: UserMessageLevel, source: str = "hook") -> None:
        """Show a message without waiting for the user.

        Args:
            message: Text of the message.
            level: Importance of the message.
            source: Origin of the message, such as ``hook:redaction``.
        """
