"""Scripted turns: a session of doubles around a loop, everything that log in it, and judges who know the contract."""

from .basic_turns import failing_cases, hooked_cases, plain_cases, stopped_cases
from .hook_rules import hook_violations, stop_violations
from .record import RecordedTurn, results_in, words_of
from .script import RAISED, TOOLS
from .session import PROVIDERS, ScriptedSession, accepted_keywords, needs_coordinator
from .turn_rules import repeated_answer_violations, turn_violations

__all__ = [
    "PROVIDERS",
    "RAISED",
    "TOOLS",
    "RecordedTurn",
    "ScriptedSession",
    "accepted_keywords",
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
