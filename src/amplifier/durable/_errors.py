"""Errors about turns on an engine.

DurableError
├── EngineUnavailableError (ConnectionError)   the engine can't be reached
├── EngineClosedError                          the engine was used after its `async with` block
├── UnknownTurnError (LookupError)             there is no turn with this id
├── TurnConflictError (ValueError)             the id belongs to another turn
├── QuestionClosedError                        the question isn't waiting for this answer
├── TurnFailedError                            the turn ended with an error
├── TurnStoppedError                           the turn was stopped
└── TurnHeldError                              the turn waits for a decision
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amplifier.errors import AmplifierError, SessionBusyError

if TYPE_CHECKING:
    from ._values import TurnStatus


class DurableError(AmplifierError):
    """Base class of the errors about turns on an engine."""


class EngineUnavailableError(DurableError, ConnectionError):
    """The engine can't be reached. Everything stored before is kept.

    Attributes:
        engine: The URL of its database, without credentials.
    """

    def __init__(self, message: str, *, engine: str = "") -> None:
        super().__init__(message)
        self.engine = engine


class EngineClosedError(DurableError):
    """The engine was used after its ``async with`` block. It ends a running worker as well."""


def closed_error(name: str) -> EngineClosedError:
    """Return the error about an engine that is used after its block."""
    return EngineClosedError(
        f"the engine on {name} was closed: its `async with` block has ended. Use it inside the "
        "block, and let the block end after the task group that runs its workers"
    )


class _TurnError(DurableError):
    """An error about one turn.

    Attributes:
        turn_id: The id of the turn.
    """

    def __init__(self, message: str, *, turn_id: str = "") -> None:
        super().__init__(message)
        self.turn_id = turn_id


class UnknownTurnError(_TurnError, LookupError):
    """There is no turn with this id."""


def unknown_turn_error(turn_id: str) -> UnknownTurnError:
    """Return the error about an id that no turn has."""
    return UnknownTurnError(
        f"there is no turn {turn_id!r}; expected an id that start() returned, and the engine it "
        "was started on",
        turn_id=turn_id,
    )


class TurnConflictError(_TurnError, ValueError):
    """A turn with this id exists, for another session or prompt."""


def check_same_turn(turn_id: str, wanted: tuple[str, str], existing: tuple[str, str]) -> None:
    """Refuse an id that belongs to another turn. Session and prompt identify a turn.

    Raises:
        TurnConflictError: The two turns differ.
    """
    if existing != wanted:
        raise TurnConflictError(
            f"turn {turn_id!r} exists already, for session {existing[0]!r} and another prompt or "
            "session; choose another id",
            turn_id=turn_id,
        )


class QuestionClosedError(_TurnError):
    """The question is unknown or already answered, or doesn't offer the option."""


def check_answer(status: TurnStatus, question_id: str, option: str) -> None:
    """Refuse an answer that the turn isn't waiting for.

    Raises:
        QuestionClosedError: The question isn't open, or doesn't offer the option.
    """
    turn_id = status.turn_id
    waiting = {question.question_id: question for question in status.questions}
    if question_id not in waiting:
        names = ", ".join(map(repr, waiting)) or "none"
        raise QuestionClosedError(
            f"turn {turn_id!r} ({status.state}) does not wait for an answer to {question_id!r}; "
            f"open questions: {names}",
            turn_id=turn_id,
        )
    if option not in waiting[question_id].options:
        raise QuestionClosedError(
            f"question {question_id!r} of turn {turn_id!r} does not offer {option!r}; it offers "
            f"{', '.join(map(repr, waiting[question_id].options))}",
            turn_id=turn_id,
        )


class TurnFailedError(_TurnError):
    """The turn ended with an error, possibly in another process.

    Attributes:
        error_type: The name of the error's class.
    """

    def __init__(self, message: str, *, turn_id: str = "", error_type: str = "") -> None:
        super().__init__(message, turn_id=turn_id)
        self.error_type = error_type


class TurnStoppedError(_TurnError):
    """The turn was stopped before it had an answer."""


class TurnHeldError(_TurnError):
    """The turn is held until someone resumes or stops it."""


def busy_error(session_id: str, turn_id: str, state: str) -> SessionBusyError:
    """Return the error about a second open turn of a session."""
    return SessionBusyError(
        f"session {session_id!r} has an open turn, {turn_id!r} ({state}); wait for its result or "
        "stop it",
        session_id=session_id,
    )


class TurnLost(Exception):
    """Another worker has taken the turn over. Stays inside the package.

    A worker that receives this error must stop writing.
    """
