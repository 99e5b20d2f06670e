"""The same scripted turn against other agent libraries, each in a process of its own, strictly in turn."""

from __future__ import annotations

import pytest

from benchmarks.duel import ROUNDS, fight
from benchmarks.worker import Worker

RIVALS = [
    ("pydantic-ai", "pydantic_ai_turn:prepare"),
    ("openai-agents", "openai_agents_turn:prepare"),
    ("LangGraph, ReAct agent", "langgraph_turn:react"),
    ("LangGraph, raw StateGraph", "langgraph_turn:raw"),
    ("LangChain, create_agent", "langgraph_turn:langchain"),
]


@pytest.mark.parametrize(("rival", "work"), RIVALS, ids=[rival for rival, _ in RIVALS])
def test_the_same_turn_on_another_library(board, rival, work):
    with (
        Worker(f"benchmarks.rivals.{work}") as theirs,
        Worker("benchmarks.rivals.ours:prepare") as ours,
    ):
        bout = fight(theirs, ours, rounds=ROUNDS)
    board.score("the same turn", bout, rival=rival)


@pytest.mark.orientation
@pytest.mark.parametrize(("rival", "work"), RIVALS, ids=[rival for rival, _ in RIVALS])
def test_the_same_turn_with_our_built_in_loop(board, rival, work):
    """For orientation: the loop and the context that we ship check, copy and announce more than the scripted ones."""
    with (
        Worker(f"benchmarks.rivals.{work}") as theirs,
        Worker("benchmarks.rivals.ours:prepare_built_in") as ours,
    ):
        bout = fight(theirs, ours, rounds=max(5, ROUNDS // 3))
    board.score("the same turn, our loop-basic and context-simple", bout, rival=rival)
