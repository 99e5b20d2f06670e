"""The smallest case that still fails."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from amplifier.conformance.engine.shrinking import shrunk
from amplifier.conformance.engine.worker import SHRINKING_SECONDS, explore
from amplifier.conformance.target.calls import Budget, worked_time
from amplifier.conformance.target.mounted import CheckContext, Fault

AMPLE = Budget(math.inf)
SECONDS = SHRINKING_SECONDS / 8


def test_text_keeps_the_character_that_matters() -> None:
    text = "many words " * 200 + "\u2028" + " and more" * 50
    found = shrunk(
        {"input": {"text": text, "other": 3}}, lambda case: "\u2028" in str_of(case), AMPLE, 10_000
    )
    assert found == {"input": {"text": "\u2028"}}


def test_steps_that_do_not_matter_go() -> None:
    steps = [{"do": "say", "content": f"m{number}"} for number in range(12)]

    def fails(case: Any) -> bool:
        texts = [step.get("content") for step in case.get("steps", ())]
        return "m3" in texts and "m9" in texts

    found = shrunk({"placed": True, "steps": steps}, fails, AMPLE, 10_000)
    wanted = [{"do": "say", "content": "m3"}, {"do": "say", "content": "m9"}]
    assert found == {"steps": wanted}


def test_words_of_a_case_stay_as_they_are() -> None:
    case = {"steps": [{"do": "sweep", "what": "clear", "role": "user"}]}
    found = shrunk(case, lambda each: bool(each.get("steps")), AMPLE, 10_000)
    assert found == {"steps": [{"do": "sweep", "what": "clear", "role": "user"}]}


def test_deep_case_ends_after_its_tries() -> None:
    """Looking for more cases without playing them took a minute here."""
    value: Any = "text" * 10
    for _ in range(100):
        value = {"other": 1, "deep": [value, "beside"]}
    played: list[Any] = []

    def fails(case: Any) -> bool:
        played.append(case)
        return len(played) == 3

    assert shrunk(value, fails, AMPLE, 20) == played[2]
    assert len(played) == 20


def test_slow_case_ends_with_the_time() -> None:
    played: list[Any] = []

    def fails(case: Any) -> bool:
        played.append(case)
        work()
        return len(played) == 2

    found = shrunk({"text": "word " * 200}, fails, Budget(math.inf, SHRINKING_SECONDS), 10_000)
    assert found == played[1]
    assert len(played) <= 8


def test_slow_drawn_case_ends_with_the_time() -> None:
    played: list[Any] = []

    def play(case: Any) -> list[Fault]:
        if sum(case) < 1_000:
            return []
        played.append(case)
        work()
        return [Fault(clause="T8", what=f"it is {case}")]

    cases = st.lists(st.integers(0, 10**9), min_size=20, max_size=20)
    ctx = CheckContext(loaded=None, backend="asyncio")  # type: ignore[arg-type]
    (fault,) = explore(cases, play, ctx, examples=4)
    assert fault.clause == "T8"
    assert len(played) <= 4 + 8


def work() -> None:
    """Keep the processor for an eighth of the time of shrinking."""
    until = worked_time() + SECONDS
    while worked_time() < until:
        pass


def str_of(case: Any) -> str:
    return str(case.get("input", {}).get("text", ""))
