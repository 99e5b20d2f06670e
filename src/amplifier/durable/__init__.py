"""Turns that survive the processes that run them: one interface, several engines.

    async with open_local_engine("turns.db") as engine:     # or amplifier.durable.dbos.open_dbos_engine(url)
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
from ._local import open_engine, open_local_engine
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
    "open_local_engine",
]
