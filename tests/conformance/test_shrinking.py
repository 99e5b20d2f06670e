"""The smallest case that still fails."""

from __future__ import annotations

from typing import Any

from amplifier.conformance.engine.shrinking import shrunk


def test_text_keeps_the_character_that_matters() -> None:
    text = "many words " * 200 + "\u2028" + " and more" * 50
    found = shrunk({"input": {"text": text, "other": 3}}, lambda case: "\u2028" in str_of(case))
    assert found == {"input": {"text": "\u2028"}}


def test_steps_that_do_not_matter_go() -> None:
    steps = [{"do": "say", "content": f"m{number}"} for number in range(12)]

    def fails(case: Any) -> bool:
        texts = [step.get("content") for step in case.get("steps", ())]
        return "m3" in texts and "m9" in texts

    found = shrunk({"placed": True, "steps": steps}, fails)
    wanted = [{"do": "say", "content": "m3"}, {"do": "say", "content": "m9"}]
    assert found == {"steps": wanted}


def test_words_of_a_case_stay_as_they_are() -> None:
    case = {"steps": [{"do": "sweep", "what": "clear", "role": "user"}]}
    found = shrunk(case, lambda each: bool(each.get("steps")))
    assert found == {"steps": [{"do": "sweep", "what": "clear", "role": "user"}]}


def str_of(case: Any) -> str:
    return str(case.get("input", {}).get("text", ""))
