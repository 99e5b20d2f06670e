"""Scripted turns: a loop runs in a session of doubles, everything is logged, and rules of the contract read the log."""

from .basic_turns import failing_cases, hooked_cases, plain_cases, stopped_cases
from .hook_rules import hook_violations, stop_violations
from .player import MAX_ENDLESS_MODEL_CALLS
from .record import RecordedTurn, results_in, words_of
from .script import TOOLS
from .session import ScriptedSession, needs_coordinator
from .turn_rules import repeated_answer_violations, turn_violations

__all__ = [
    "MAX_ENDLESS_MODEL_CALLS",
    "TOOLS",
    "RecordedTurn",
    "ScriptedSession",
    "failing_cases",
    "hook_violations",
    "hooked_cases",
    "needs_coordinator",
    "plain_cases",
    "repeated_answer_violations",
    "results_in",
    "stop_violations",
    "stopped_cases",
    "turn_violations",
    "words_of",
]
