"""What can go wrong with a turn on an engine.

DurableError
├── EngineUnavailableError (ConnectionError)   the engine cannot be reached, or not any more
├── EngineClosedError                          the engine was used after its `async with` block
├── UnknownTurnError (LookupError)             there is no turn with this id
├── TurnConflictError (ValueError)             the id belongs to another turn
├── QuestionClosedError                        the question is not waiting for this answer
├── TurnFailedError                            the turn ended with an error
├── TurnStoppedError                           the turn was stopped
└── TurnHeldError                              the turn waits for a decision, for example because the plan has changed
"""

from __future__ import annotations

from amplifier.errors import AmplifierError


class DurableError(AmplifierError):
    """Something about a turn on an engine; see the subclasses."""


class EngineUnavailableError(DurableError, ConnectionError):
    """The engine cannot be reached; what was stored before is kept.

    Attributes:
        engine: Which one, without credentials.
    """

    def __init__(self, message: str, *, engine: str = "") -> None:
        super().__init__(message)
        self.engine = engine


class EngineClosedError(DurableError):
    """The engine was used after its ``async with`` block was left; a worker that is still running then ends with this."""


def closed_error(name: str) -> EngineClosedError:
    """The error about an engine that is used after its block."""
    return EngineClosedError(
        f"the engine on {name} was closed: its `async with` block has ended. Use it inside the block, and let the block end after the "
        "task group that runs its workers"
    )


class _TurnError(DurableError):
    """An error about one turn.

    Attributes:
        turn_id: The turn.
    """

    def __init__(self, message: str, *, turn_id: str = "") -> None:
        super().__init__(message)
        self.turn_id = turn_id


class UnknownTurnError(_TurnError, LookupError):
    """There is no turn with this id."""


def unknown_turn_error(turn_id: str) -> UnknownTurnError:
    """The error about an id that no turn has."""
    return UnknownTurnError(
        f"there is no turn {turn_id!r}; expected an id that start() returned, and the engine it was started on",
        turn_id=turn_id,
    )


class TurnConflictError(_TurnError, ValueError):
    """A turn with this id exists, for another session or prompt."""


class QuestionClosedError(_TurnError):
    """The question does not wait for this answer: it is unknown, was answered, or does not offer the option."""


class TurnFailedError(_TurnError):
    """The turn ended with an error, which another process raised.

    Attributes:
        error_type: The class of that error.
    """

    def __init__(self, message: str, *, turn_id: str = "", error_type: str = "") -> None:
        super().__init__(message, turn_id=turn_id)
        self.error_type = error_type


class TurnStoppedError(_TurnError):
    """The turn was stopped before it had an answer."""


class TurnHeldError(_TurnError):
    """The turn does not go on by itself: someone has to resume or stop it."""


class TurnLost(Exception):
    """Another worker has taken the turn over; this one must not write any more. Stays inside the package."""
