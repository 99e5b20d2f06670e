"""Scripted turns: a world of doubles around a loop, everything that happened in it, and judges who know the contract."""

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
    "judge_memory",
    "judge_stop",
    "needs_coordinator",
    "results_in",
    "words_of",
]
