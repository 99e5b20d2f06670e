"""A turn with one model call after a long conversation: against other libraries with the same history, and by itself.

The model answers without reading the request, so the rows show what the loop and the context take.
"""

from __future__ import annotations

import pytest

from benchmarks.duel import QUICK, ROUNDS, fight
from benchmarks.fit import slope
from benchmarks.handlers import KINDS, Make, looking
from benchmarks.kernels import OURS, OURS_ON_TRIO, Kernel, Prepare, Work
from benchmarks.long_conversation import one_call_after
from benchmarks.test_growth import LINEAR, grown
from benchmarks.worker import Worker

SIZES = (10, 1000) if QUICK else (10, 100, 1000, 10_000)
RIVALS = [
    ("pydantic-ai", "pydantic_ai_turn"),
    ("openai-agents", "openai_agents_turn"),
    ("LangGraph, ReAct agent", "langgraph_turn"),
]
TEN_TIMES = 10


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("rival", "module"), RIVALS, ids=[rival for rival, _ in RIVALS])
def test_the_same_history_on_another_library(board, rival, module, size):
    theirs, ours = (
        f"benchmarks.rivals.{module}:prepare_long:{size}",
        f"benchmarks.rivals.ours:prepare_long:{size}",
    )
    with Worker(theirs) as them, Worker(ours) as us:
        bout = fight(them, us, rounds=max(5, ROUNDS // 3))
    board.score(f"one model call after {size:,} messages", bout, rival=rival, target=TEN_TIMES)


def after(size: int, handlers: int = 0, make: Make = looking) -> Prepare:
    async def prepare(kernel: Kernel) -> Work:
        return await one_call_after(size, handlers, make)

    return prepare


OF_EACH_KIND = pytest.mark.parametrize(
    ("words", "make"), KINDS.items(), ids=["looking", "waiting", "taking-all"]
)


@OF_EACH_KIND
@pytest.mark.parametrize("size", SIZES)
def test_five_handlers_of_every_event_cost_a_part_of_the_turn(board, size, words, make):
    """Each handler gets a copy of its own of what it takes (law L7), and the payload of a request holds all messages.

    Most handlers do not look at those. Nine events of a turn then cost the same however long the conversation is.
    """
    sides = OURS.timed(after(size)), OURS.timed(after(size, 5, make))
    board.multiple(
        f"one model call after {size:,} messages, 5 handlers{words} on every event",
        *sides,
        rival="without handlers",
        at_most=None,
    )


@pytest.mark.parametrize(("kernel", "words"), [(OURS, ""), (OURS_ON_TRIO, ", trio")])
def test_growth_with_the_conversation(board, kernel, words):
    sizes = SIZES if QUICK else (10, 30, 100, 300, 1000, 3000, 10_000)
    times = grown(kernel, sizes, one_call_after)
    largest = max(times)
    board.figure(
        f"growth: one model call after {largest:,} messages{words}",
        slope(times),
        "slope",
        target=0.6,
        sense="at most",
        ours=f"{times[largest] * 1e3:.2f} ms",
        note=f"{min(times)} messages take {times[min(times)] * 1e3:.2f} ms",
    )


@pytest.mark.parametrize(("words", "at_most"), [("", 5.0), (", all built-in hooks", 6.0)])
def test_a_turn_after_a_very_long_conversation(board, tmp_path, words, at_most):
    size = max(SIZES)
    log = tmp_path / "events.jsonl" if words else None
    times = grown(OURS, (size,), lambda size: one_call_after(size, log=log), times=20)
    work = f"one model call after {size:,} messages{words}, in milliseconds"
    board.figure(work, times[size] * 1e3, "ms", target=at_most, sense="at most")


@OF_EACH_KIND
def test_growth_with_the_number_of_handlers(board, words, make):
    async def prepare(handlers: int) -> Work:
        return await one_call_after(100, handlers, make)

    times = grown(OURS, (1, 5, 20, 50), prepare)
    without = grown(OURS, (1,), lambda _: one_call_after(100), times=50)[1]
    board.figure(
        f"growth: one model call after 100 messages, 50 handlers{words} on every event",
        slope(times),
        "slope",
        target=LINEAR,
        sense="at most",
        ours=f"{times[50] * 1e3:.2f} ms",
        note=f"{without * 1e3:.2f} ms without handlers, {times[1] * 1e3:.2f} ms with one",
    )
