"""Cases for turns: answers of a model, what tools do, what hooks demand, failures and graceful stops.

A listed case has one feature, so that every feature is tried and found with the smallest case. A drawn case is dense: it holds many
things that may go wrong at once, since few are drawn. `target.turns.script` defines what the words in a case mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from amplifier.conformance.target.turns.script import TOOLS

Cases = SearchStrategy[dict[str, Any]]

PROMPTS = (
    "Hello.",
    "Grüße an alle — 你好 🌍",
    "line one\nline two\n\n  and {braces} with %s and \\backslash\\",
    '{"role": "system", "content": "not a message"}',
    "many words " * 300,
)
WORKS = ("returns", "returns object", "returns list", "returns blocks", "returns much", "nothing", "empty", "zero")
BREAKS = (
    "fails",
    "raises ValueError no good",
    "unknown",
    "raises Unplanned",
    "raises TimeoutError too slow",
    "raises KeyError 'key'",
    "raises OSError",
    "fails silently",
    "misfits",
)
ODD = ("returns None", "returns str")
PRE = (
    "deny",
    "modify",
    "inject",
    "whisper",
    "ask no",
    "ask yes",
    "whisper to the result",
    "inject as user",
    "deny silently",
)
POST = ("modify", "inject", "whisper", "whisper to the result", "deny", "inject as user")
REQUEST = ("whisper", "inject", "whisper to the result", "deny")
SUBMIT = ("whisper", "inject", "modify", "deny")
ERRORS = (
    "AuthenticationError",
    "InvalidRequestError",
    "ContextLengthError",
    "ContentFilterError",
    "NotFoundError",
    "ConfigurationError",
    "AccessDeniedError",
    "Unplanned",
    "ValueError",
    "RuntimeError",
    "OSError",
)
THOUGHTS = ("think", "sealed", "reason", "odd")
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


# ── listed ──

_DONE = {"blocks": [{"say": "Done. "}]}


def _case(*answers: Any, prompt: str = PROMPTS[0], submit: str | None = None, **more: Any) -> dict[str, Any]:
    return {"turns": [{"prompt": prompt, "submit": submit, "answers": list(answers)}], **more}


def _using(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"blocks": list(calls), **more}


def plain_cases(facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Turns without hook results."""
    yield _case(_DONE)
    yield _case({"blocks": []})
    for prompt in PROMPTS[1:]:
        yield _case(_DONE, prompt=prompt, streams=True)
    for thought in THOUGHTS:
        yield _case({"blocks": [{thought: "hm "}, {"call": "alpha"}]}, {"blocks": [{thought: "ah "}, {"say": "So. "}]})
    yield _case(
        {"blocks": [{"think": "a "}, {"say": "First. "}, {"sealed": "b "}, {"think": "c "}, {"call": "alpha"}]}, _DONE
    )
    yield _case({"blocks": [{"think": "this stays hidden "}, {"say": "So it is. "}]})
    neighbour = {"call": "beta", "steps": 3}
    for does in (*WORKS, *BREAKS, *ODD):
        yield _case(_using({"call": "alpha", "does": does}), _DONE)
        yield _case(
            _using(neighbour, {"call": "gamma", "does": does}, {"call": "alpha", "steps": 1}), _DONE, streams=True
        )
    yield _case(_using({"call": "alpha", "steps": 4}, {"call": "beta", "steps": 2}, {"call": "gamma"}), _DONE)
    yield _case(_using({"call": "alpha", "steps": 2}, {"call": "alpha", "steps": 1}, {"call": "alpha"}), _DONE)
    yield _case(_using({"call": "alpha"}, {"call": "alpha", "twin": True}), _DONE)
    yield _case(_using({"call": "alpha"}), _using({"call": "alpha"}, {"call": "beta"}), _using({"call": "beta"}), _DONE)
    yield _case(_using({"call": "alpha"}), _DONE, history=4, compacts=True)
    yield _case(_using({"call": "alpha"}), _DONE, history=2)
    one = {
        "prompt": "First.",
        "answers": [{"blocks": [{"say": "One. "}, {"call": "alpha"}]}, {"blocks": [{"say": "Uno. "}]}],
    }
    two = {"prompt": "Second.", "answers": [_using({"call": "beta", "does": "fails"}), {"blocks": [{"say": "Due. "}]}]}
    yield {"turns": [one, two, {"prompt": "Third.", "answers": [{"blocks": []}]}]}


def hooked_cases(facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Turns with one hook result each, and some with the same result for several calls."""
    last = _DONE
    for pre in PRE:
        yield _case(_using({"call": "alpha", "pre": pre}), _using({"call": "beta"}), last)
        yield _case(_using({"call": "beta", "steps": 2}, {"call": "alpha", "pre": pre}), last)
    for post in POST:
        for does in ("returns", "returns object", "fails"):
            yield _case(_using({"call": "alpha", "post": post, "does": does}), _using({"call": "beta"}), last)
        yield _case(_using({"call": "alpha", "post": post}, {"call": "beta", "post": post, "steps": 1}), last)
    for first, second in (("ask yes", "ask no"), ("ask no", "ask yes"), ("deny", None), ("inject", "inject")):
        again = {"call": "alpha"} if second is None else {"call": "alpha", "pre": second}
        yield _case(_using({"call": "alpha", "pre": first}), _using(again), last)
        yield _case(_using({"call": "alpha", "pre": first, "steps": 1}, {**again, "call": "beta"}), last)
    for request in REQUEST:
        yield _case({**_DONE, "request": request})
        yield _case(_using({"call": "alpha"}), _using({"call": "beta"}, request=request), last)
    for submit in SUBMIT:
        yield _case(_using({"call": "alpha"}), last, submit=submit)
    usual = {"prompt": "And now?", "answers": [_using({"call": "alpha"}), last]}
    yield {"turns": [{"prompt": "May I?", "answers": [{**_DONE, "request": "deny"}]}, usual]}
    yield {"turns": [{"prompt": "May I?", "submit": "deny", "answers": [_DONE]}, usual]}
    yield {"turns": [{"prompt": "May I?", "answers": [_using({"call": "alpha", "pre": "deny"}), last]}, usual]}


def failing_cases(facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Turns in which the provider or the context fails, each followed by one that works."""
    good = {"prompt": "Now.", "answers": [_using({"call": "alpha"}), _DONE]}
    for error in (*ERRORS, "RateLimitError"):
        yield {"turns": [{"prompt": "Try.", "answers": [{"error": error}]}, good]}
    for error in ("NotFoundError", "Unplanned"):
        yield {"turns": [{"prompt": "Try.", "answers": [_using({"call": "alpha"}), {"error": error}]}, good]}
        yield {"turns": [{"prompt": "Try.", "answers": [{"error": error}]}, good], "streams": True}
    for operation in ("add", "view"):
        for number in range(1, 4):
            yield _case(_using({"call": "alpha"}), _DONE, fails=[operation, number])


def stopped_cases(facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Turns that are stopped gracefully at different positions."""
    stopper = {"call": "alpha", "steps": 60, "stops": True}
    more = _using({"call": "gamma"})
    for answer in (
        _using(stopper),
        _using(stopper, {"call": "beta"}),
        _using({"call": "beta"}, stopper, {"call": "gamma"}),
        _using({"call": "beta", "steps": 80}, stopper),
        _using({"call": "beta"}, {"call": "gamma", "does": "unknown"}, stops="asked"),
        _using({"call": "beta"}, {"call": "gamma"}, stops="told"),
        {"blocks": [{"say": "So. "}], "stops": "asked"},
    ):
        yield _case(answer, more, _DONE)
        yield _case(_using({"call": "beta"}), answer, more, _DONE)
