"""Scripted turns: a world of doubles around a loop, everything that happened in it, and judges who know the contract."""

from .basic_turns import failing_cases, hooked_cases, plain_cases, stopped_cases
from .hook_rules import complaints_about_hooks, judge_stop
from .play import PROVIDERS, World, accepted_keywords, needs_coordinator
from .record import PlayedTurn, results_in, words_of
from .script import RAISED, TOOLS
from .turn_rules import complaints_about, judge_memory

__all__ = [
    "PROVIDERS",
    "RAISED",
    "TOOLS",
    "PlayedTurn",
    "World",
    "accepted_keywords",
    "complaints_about",
    "complaints_about_hooks",
    "failing_cases",
    "hooked_cases",
    "judge_memory",
    "judge_stop",
    "needs_coordinator",
    "plain_cases",
    "results_in",
    "stopped_cases",
    "words_of",
]
