"""Turns that survive the processes that run them, on DBOS.

    async with open_engine("turns.db") as engine:           # or postgresql://…
        turn_id = await engine.start("anna-1", "prompt")
        text = await engine.result(turn_id)

Workers, in this process or others, run ``await engine.work(make_session)``.
"""

from ._engine import DurableEngine, SessionFactory
from ._errors import (
    DurableError,
    EngineClosedError,
    EngineUnavailableError,
    QuestionClosedError,
    TurnConflictError,
    TurnFailedError,
    TurnHeldError,
    TurnStoppedError,
    UnknownTurnError,
)
from ._opening import open_engine
from ._suspects import CallLimit, EngineOptions
from ._values import Schedule, TurnCounts, TurnState, TurnStatus, WatchedEvent

__all__ = [
    "CallLimit",
    "DurableEngine",
    "DurableError",
    "EngineClosedError",
    "EngineOptions",
    "EngineUnavailableError",
    "QuestionClosedError",
    "Schedule",
    "SessionFactory",
    "TurnConflictError",
    "TurnCounts",
    "TurnFailedError",
    "TurnHeldError",
    "TurnState",
    "TurnStatus",
    "TurnStoppedError",
    "UnknownTurnError",
    "WatchedEvent",
    "open_engine",
]
