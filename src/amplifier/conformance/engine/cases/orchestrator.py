"""Cases for turns: answers of a model, what tools do, what hooks demand, failures and graceful stops.

A feature is a few answers of the model. A listed case has one feature, so that every feature is tried and found with the smallest case; a drawn
case has several, in a session that differs as well. `target.turns.script` defines what
the words in a case mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

Answers = list[dict[str, Any]]

_PROMPTS = (
    "Hello.",
    "Grüße an alle — 你好 🌍",
    "line one\nline two\n\n  and {braces} with %s and \\backslash\\",
    '{"role": "system", "content": "not a message"}',
    "many words " * 300,
)
_WORKS = ("returns", "returns object", "returns list", "returns blocks", "returns much", "nothing", "empty", "zero")
_RAISES = ("ValueError no good", "Unplanned", "TimeoutError too slow", "KeyError 'key'", "OSError")
_BREAKS = ("fails", *(f"raises {error}" for error in _RAISES), "unknown", "fails silently", "misfits")
_ODD = ("returns None", "returns str")
_POST = ("modify", "inject", "inject once", "inject into the result", "deny", "inject as user")
_PRE = (*_POST, "ask no", "ask yes", "ask yes, inject", "ask yes, inject once", "deny silently")
_REQUEST = ("inject once", "inject", "inject into the result", "deny", "deny silently")
_SUBMIT = ("inject once", "inject", "modify", "deny", "deny silently")
_ERRORS = (
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
_THOUGHTS = ("think", "sealed", "reason", "odd")
_DONE: dict[str, Any] = {"blocks": [{"say": "Done. "}]}
_LAST: tuple[dict[str, Any], ...] = (
    _DONE,
    {"blocks": []},
    {"blocks": [{"think": "this stays hidden "}, {"say": "So it is. "}]},
    *({"blocks": [{thought: "ah "}, {"say": "So. "}]} for thought in _THOUGHTS),
)
"""A model's last answers: thoughts and text, or nothing at all."""


def _calling(*blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"blocks": list(blocks), **more}


def _using(tool: str, **more: Any) -> dict[str, Any]:
    return {"call": tool, **more}


# ── features ──


def _plain() -> Iterator[Answers]:
    """Calls that work and calls that do not, alone and beside others, with thoughts and texts."""
    for thought in _THOUGHTS:
        yield [_calling({thought: "hm "}, _using("alpha"))]
    yield [_calling({"think": "a "}, {"say": "First. "}, {"sealed": "b "}, {"think": "c "}, _using("alpha"))]
    for does in (*_WORKS, *_BREAKS, *_ODD):
        yield [_calling(_using("alpha", does=does))]
        yield [_calling(_using("beta", steps=3), _using("gamma", does=does), _using("alpha", steps=1))]
    yield [_calling(_using("alpha", steps=4), _using("beta", steps=2), _using("gamma"))]
    yield [_calling(_using("alpha", steps=2), _using("alpha", steps=1), _using("alpha"))]
    yield [_calling(_using("alpha"), _using("alpha", twin=True))]
    yield [_calling(*(_using(tool, does=_BREAKS[1]) for tool in ("alpha", "beta", "gamma")))]
    yield [_calling(_using("alpha")), _calling(_using("alpha"), _using("beta")), _calling(_using("beta"))]
    for beginning in ("toolu_01AbC", "", "functions.look:"):
        yield [_calling({"say": "<b>&amp;</b>\nÜnï ☂ "}, _using("alpha", id=beginning), _using("beta", id=beginning))]


def _hooked() -> Iterator[Answers]:
    """Calls to which a hook objects, alone, beside others and again."""
    for pre in _PRE:
        yield [_calling(_using("alpha", pre=pre)), _calling(_using("beta"))]
        yield [_calling(_using("beta", steps=2), _using("alpha", pre=pre))]
    for post in _POST:
        for does in ("returns", "returns object", "fails"):
            yield [_calling(_using("alpha", post=post, does=does)), _calling(_using("beta"))]
        yield [_calling(_using("alpha", post=post), _using("beta", post=post, steps=1))]
    for first, second in (("ask yes", "ask no"), ("ask no", "ask yes"), ("deny", None), ("inject", "inject")):
        yield [_calling(_using("alpha", pre=first)), _calling(_using("alpha", pre=second))]
        yield [_calling(_using("alpha", pre=first, steps=1), _using("beta", pre=second))]
    yield [_calling(*(_using(tool, pre="modify", post="modify", steps=1) for tool in ("alpha", "beta", "gamma")))]
    several = _calling(_using("alpha", post="inject"), _using("beta", pre="inject"))
    yield [several, several, _calling(_using("gamma"))]  # fewer calls than before


def _stopping() -> Iterator[Answers]:
    """A graceful stop while the model or a tool works; the tool takes so long that its neighbours have been started."""
    stopper = _using("alpha", steps=60, stops=True)
    yield [_calling(stopper)]
    yield [_calling(stopper, _using("beta"))]
    yield [_calling(_using("beta"), stopper, _using("gamma"))]
    yield [_calling(_using("beta", steps=80), stopper)]
    yield [_calling(_using("beta"), _using("gamma", does="unknown"), stops="asked")]
    yield [_calling(_using("beta"), _using("gamma"), stops="told")]
    yield [_calling({"say": "So. "}, stops="asked")]


# ── listed ──


def _turn(*answers: dict[str, Any], prompt: str = _PROMPTS[0], submit: str | None = None) -> dict[str, Any]:
    return {"prompt": prompt, "submit": submit, "answers": list(answers)}


def _case(*turns: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"turns": list(turns), **more}


_USUAL = _turn(_calling(_using("alpha")), _DONE, prompt="And now?")


def listed_turns(facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Turns with one feature each: answers and calls, hook results, failures of provider and context, graceful stops."""
    yield from (_case(_turn(last)) for last in _LAST)
    yield from (_case(_turn(_DONE, prompt=prompt), streams=True) for prompt in _PROMPTS[1:])
    for feature in _plain():
        yield _case(_turn(*feature, _DONE), streams=len(feature[0]["blocks"]) > 2)
    yield _case(_USUAL, history=4, compacts=True)
    yield _case(_USUAL, history=2)
    one = _turn(_calling({"say": "One. "}, _using("alpha")), {"blocks": [{"say": "Uno. "}]}, prompt="First.")
    two = _turn(_calling(_using("beta", does="fails")), {"blocks": [{"say": "Due. "}]}, prompt="Second.")
    yield _case(one, two, _turn({"blocks": []}, prompt="Third."))
    yield from (_case(_turn(*feature, _DONE)) for feature in _hooked())
    for request in _REQUEST:
        yield _case(_turn({**_DONE, "request": request}))
        yield _case(_turn(_calling(_using("alpha")), _calling(_using("beta"), request=request), _DONE))
    yield from (_case(_turn(_calling(_using("alpha")), _DONE, submit=submit)) for submit in _SUBMIT)
    yield _case(_turn({**_DONE, "request": "deny"}), _USUAL)
    yield _case(_turn(_DONE, submit="deny"), _USUAL)
    yield _case(_turn(_calling(_using("alpha", pre="deny")), _DONE), _USUAL)
    for error in (*_ERRORS, "RateLimitError"):
        yield _case(_turn({"error": error}), _USUAL)
    for error in ("NotFoundError", "Unplanned"):
        yield _case(_turn(_calling(_using("alpha")), {"error": error}), _USUAL)
        yield _case(_turn({"error": error}), _USUAL, streams=True)
    for operation in ("add", "view"):
        yield from (_case(_USUAL, fails=[operation, number]) for number in range(1, 4))
    for feature in _stopping():
        yield _case(_turn(*feature, _calling(_using("gamma")), _DONE))
        yield _case(_turn(_calling(_using("beta")), *feature, _calling(_using("gamma")), _DONE))


# ── drawn ──


def turns(facts: dict[str, Any]) -> SearchStrategy[dict[str, Any]]:
    """One or two turns of several features, some with a failure or a graceful stop in the first, in sessions that differ."""
    errors: list[Answers] = [[{"error": name}] for name in _ERRORS]
    features = st.sampled_from([*_plain(), *_hooked()])
    ending = st.sampled_from([*([last] for last in _LAST), *errors, *([*each, _DONE] for each in _stopping())])
    turn = st.builds(
        lambda prompt, several, ending, submit: _turn(
            *(answer for feature in (*several, ending) for answer in feature), prompt=prompt, submit=submit
        ),
        st.sampled_from(_PROMPTS),
        st.lists(features, max_size=3),
        ending,
        st.none() | st.none() | st.sampled_from(_SUBMIT),
    )
    fails = st.none() | st.none() | st.tuples(st.sampled_from(("add", "view")), st.integers(1, 4)).map(list)
    return st.fixed_dictionaries(
        {
            "turns": st.lists(turn, min_size=1, max_size=2),
            "streams": st.booleans(),
            "history": st.sampled_from((0, 2, 4)),
            "compacts": st.booleans(),
            "fails": fails,
        }
    )
