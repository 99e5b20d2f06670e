"""Strategies for turns: answers of a model, what tools do, what hooks demand, failures and graceful stops.

Every case is dense: it holds many things that may go wrong at once, since few cases are drawn. `harness.scripted_turns`
defines what the words in a case mean.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from amplifier.conformance.harness.scripted_turns import TOOLS
from amplifier.conformance.harness.scripted_turns.basic_turns import (
    BREAKS,
    ERRORS,
    ODD,
    POST,
    PRE,
    PROMPTS,
    THOUGHTS,
    WORKS,
)

Cases = SearchStrategy[dict[str, Any]]

_IDS = ("call_", "toolu_01AbC", "", "functions.look:")


def _calls(does: SearchStrategy[str], **more: Any) -> SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"call": st.sampled_from(TOOLS), "does": does, "steps": st.integers(0, 4), "id": st.sampled_from(_IDS), **more}
    )


def _asides() -> SearchStrategy[list[dict[str, Any]]]:
    """Texts and thoughts of a model beside its calls."""
    thought = st.sampled_from(THOUGHTS).map(lambda kind: {kind: "hm "})
    text = st.sampled_from(("", "So. ", "Ünï ☂ ", "a\nb ", "<b>&amp;</b> ")).map(lambda each: {"say": each})
    return st.lists(thought | text, max_size=3)


def _answer(asides: list[dict[str, Any]], calls: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"blocks": [*asides, *calls], **more}


def _last() -> SearchStrategy[dict[str, Any]]:
    """A model's last answer: thoughts and text, or nothing at all."""
    text = _asides().map(lambda asides: _answer(asides, [{"say": "Done. "}]))
    return st.one_of(text, text, text, st.just({"blocks": []}))


def turns(facts: dict[str, Any]) -> Cases:
    """One or two turns in which no hook objects."""
    does = st.one_of(st.sampled_from(WORKS), st.sampled_from(BREAKS), st.sampled_from((*ODD, *BREAKS)))
    some = st.builds(
        _answer, _asides(), st.lists(_calls(does, twin=st.sampled_from((False, False, True))), min_size=1, max_size=4)
    )
    turn = st.builds(
        lambda prompt, answers, last: {"prompt": prompt, "answers": [*answers, last]},
        st.sampled_from(PROMPTS),
        st.lists(some, max_size=3),
        _last(),
    )
    return _cases(st.lists(turn, min_size=1, max_size=2), history=st.sampled_from((0, 2, 4)), compacts=st.booleans())


def hooked_turns(facts: dict[str, Any]) -> Cases:
    """A turn in which hooks object to nearly everything."""
    pre, post = st.sampled_from((None, *PRE)), st.sampled_from((None, *POST))
    does = st.sampled_from(("returns", "returns", "returns object", "returns list", "fails"))

    def answer(drawn: list[tuple[str | None, str | None, str, int]], asides: list[Any], request: str | None) -> Any:
        calls = [
            {"call": tool, "pre": pre, "post": post, "does": does, "steps": steps}
            for tool, (pre, post, does, steps) in zip(TOOLS, drawn, strict=False)
        ]
        return _answer(asides, calls, request=request)

    some = st.builds(
        answer,
        st.lists(st.tuples(pre, post, does, st.integers(0, 2)), min_size=1, max_size=3),
        _asides(),
        st.sampled_from((None, None, "whisper", "inject", "whisper to the result", "deny")),
    )
    turn = st.builds(
        lambda prompt, answers, last, request, submit: {
            "prompt": prompt,
            "submit": submit,
            "answers": [*answers, {**last, "request": request}],
        },
        st.sampled_from(PROMPTS[:2]),
        st.lists(some, min_size=1, max_size=3),
        _last(),
        st.sampled_from((None, "whisper", "deny", "inject")),
        st.sampled_from((None, None, None, None, "whisper", "inject", "modify", "deny")),
    )
    return _cases(st.lists(turn, min_size=1, max_size=1))


def failing_turns(facts: dict[str, Any]) -> Cases:
    """A turn that fails, and one that does not."""
    some = st.builds(_answer, _asides(), st.lists(_calls(st.sampled_from((*WORKS, *BREAKS))), min_size=1, max_size=2))
    broken = st.builds(lambda error: {"error": error}, st.sampled_from(ERRORS))
    bad = st.builds(
        lambda answers, error: {"prompt": "Try this.", "answers": [*answers, error]}, st.lists(some, max_size=2), broken
    )
    good = st.builds(
        lambda answers, last: {"prompt": "And this.", "answers": [*answers, last]}, st.lists(some, max_size=1), _last()
    )
    by_provider = _cases(st.tuples(bad, good).map(list))
    fails = st.tuples(st.sampled_from(("add", "view")), st.integers(1, 4)).map(list)
    fine = st.builds(
        lambda answers, last: {"prompt": "Remember this.", "answers": [*answers, last]},
        st.lists(some, min_size=1, max_size=2),
        _last(),
    )
    by_context = _cases(st.tuples(fine).map(list), fails=fails)
    return st.one_of(by_provider, by_provider, by_context)


def stopped_turns(facts: dict[str, Any]) -> Cases:
    """A turn with a graceful stop while the model or a tool works."""
    usual = _calls(st.sampled_from(("returns", "returns", "fails", "raises ValueError no", "unknown")))

    def stopping(place: str, calls: list[dict[str, Any]], index: int, before: list[Any], last: Any) -> Any:
        if place == "tool":
            # Long enough for neighbours that are to run beside it to have been started.
            stopper = {"call": "alpha", "does": "returns", "steps": 60, "stops": True}
            calls = [stopper if number == index % len(calls) else call for number, call in enumerate(calls)]
        answer = _answer([{"say": "Let me see. "}], calls, **({} if place == "tool" else {"stops": place}))
        return {"prompt": "Work until I say stop.", "answers": [*before, answer, _answer([], [{"call": "beta"}]), last]}

    earlier = st.builds(_answer, _asides(), st.lists(usual, min_size=1, max_size=2))
    turn = st.builds(
        stopping,
        st.sampled_from(("tool", "tool", "asked", "told")),
        st.lists(usual, min_size=1, max_size=4),
        st.integers(0, 3),
        st.lists(earlier, max_size=1),
        _last(),
    )
    return _cases(turn.map(lambda each: [each]))


def _cases(turns: SearchStrategy[list[Any]], **more: Any) -> Cases:
    return st.fixed_dictionaries({"turns": turns, "streams": st.booleans(), **more})
