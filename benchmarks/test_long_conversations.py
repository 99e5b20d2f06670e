"""A turn with one model call after a long conversation, against other libraries with the same history.

The model answers without reading the request, so the rows show what the loop and the context take.
"""

from __future__ import annotations

import pytest

from benchmarks.duel import QUICK, ROUNDS, fight
from benchmarks.worker import Worker

SIZES = (10, 1000) if QUICK else (10, 100, 1000, 10_000)
RIVALS = [
    ("pydantic-ai", "pydantic_ai_turn"),
    ("openai-agents", "openai_agents_turn"),
    ("LangGraph, ReAct agent", "langgraph_turn"),
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("rival", "module"), RIVALS, ids=[rival for rival, _ in RIVALS])
def test_the_same_history_on_another_library(board, rival, module, size):
    theirs, ours = (
        f"benchmarks.rivals.{module}:prepare_long:{size}",
        f"benchmarks.rivals.ours:prepare_long:{size}",
    )
    with Worker(theirs) as them, Worker(ours) as us:
        bout = fight(them, us, rounds=max(5, ROUNDS // 3))
    board.score(f"one model call after {size:,} messages", bout, rival=rival)
