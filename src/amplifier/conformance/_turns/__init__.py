"""Scripted turns: a world of doubles around a loop, everything that happened in it, and judges who know the contract."""

from ._basics import failing_cases, hooked_cases, plain_cases, stopped_cases
from ._judges import complaints_about, judge_memory
from ._judges_hooks import complaints_about_hooks, judge_stop
from ._record import PlayedTurn, results_in, words_of
from ._script import RAISED, TOOLS
from ._world import PROVIDERS, World, accepted_keywords, needs_coordinator

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
