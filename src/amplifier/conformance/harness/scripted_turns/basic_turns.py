"""Small scripted turns with one feature each, so that every feature is tried and found with the smallest case."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Case = dict[str, Any]

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

_DONE = {"blocks": [{"say": "Done. "}]}


def _case(*answers: Any, prompt: str = PROMPTS[0], submit: str | None = None, **more: Any) -> Case:
    return {"turns": [{"prompt": prompt, "submit": submit, "answers": list(answers)}], **more}


def _using(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"blocks": list(calls), **more}


def plain_cases() -> Iterator[Case]:
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


def hooked_cases() -> Iterator[Case]:
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


def failing_cases() -> Iterator[Case]:
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


def stopped_cases() -> Iterator[Case]:
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
