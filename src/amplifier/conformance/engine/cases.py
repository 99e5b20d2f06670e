"""Cases for the checks, listed and drawn, by contract. Needs the ``testing`` extra."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException
from hypothesis.strategies import SearchStrategy

from amplifier.conformance.inputs.conversations import prose
from amplifier.conformance.inputs.payloads import (
    EVENTS,
    UNKNOWN_EVENTS,
    odd_payloads,
    ordinary_payload,
    reaching_payloads,
    session_events,
)
from amplifier.conformance.inputs.values import (
    ODD_VALUES,
    invalid_inputs,
    is_harmless,
    sample_inputs,
    valid_inputs,
)
from amplifier.conformance.inputs.varied import VariedInputs
from amplifier.conformance.target.mounted import CANARY

# A listed case has one feature, so that every feature is tried in its smallest case. A drawn case
# has several. Cases are small JSON values and legal: calls have results, and ids come from
# positions. `target.turn_script` defines the words in the case of a turn.

Facts = dict[str, Any]


def quiet_settings(examples: int, *phases: Phase) -> settings:
    """Return settings of Hypothesis that draw `examples` cases, keep none and print nothing."""
    return settings(
        max_examples=examples,
        phases=phases,
        database=None,
        deadline=None,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )


# ── contexts: programs of operations, and long conversations ──

_STORED_TEXTS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12
) | st.sampled_from(
    [
        "",
        " ",
        "hello",
        "line one\nline two",
        "a\u2028b\x85c\r\nd",
        "é漢字🙂",
        '{"role": "user"}',
        "x" * 3000,
    ]
)
_LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([0.5, "", "text"])
_VALUES: SearchStrategy[Any] = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2)
    ),
    max_leaves=4,
)
_EXTRAS: SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["name", "metadata", "cache", "source", "x-y"]), _VALUES, max_size=2
)
_BLOCKS = st.lists(
    st.one_of(
        st.builds(lambda text: {"type": "text", "text": text}, _STORED_TEXTS),
        st.builds(
            lambda text: {"type": "thinking", "thinking": text, "signature": "sig=="}, _STORED_TEXTS
        ),
        st.just(
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": "aGk="},
            }
        ),
    ),
    min_size=1,
    max_size=3,
)
_CONTENTS = _STORED_TEXTS | st.none() | _BLOCKS
_ROLES = st.sampled_from(["user", "assistant", "user", "assistant", "system", "developer"])


def _plain_messages() -> SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"do": st.just("say"), "role": _ROLES, "content": _CONTENTS, "extra": _EXTRAS}
    )


def _tool_turns() -> SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "do": st.just("call"),
            "calls": st.integers(1, 3),
            "content": st.none() | _STORED_TEXTS | _BLOCKS,
            "between": st.sampled_from([None, None, "system", "user"]),
            "blocks": st.booleans(),
        }
    )


def programs(facts: Facts) -> SearchStrategy[Any]:
    """Draw sequences of operations."""
    adding = st.one_of(
        _plain_messages(), _plain_messages(), _tool_turns(), st.just({"do": "again"})
    )
    steps = st.one_of(
        adding,
        adding,
        st.fixed_dictionaries({"do": st.just("set"), "messages": st.lists(adding, max_size=4)}),
        st.just({"do": "clear"}),
        st.fixed_dictionaries(
            {
                "do": st.just("overwrite"),
                "what": st.sampled_from(["given", "stored", "view", "small view"]),
            }
        ),
        st.fixed_dictionaries(
            {"do": st.just("view"), "budget": st.sampled_from([None, 1, 5, 20, 100, 10_000_000])}
        ),
        st.fixed_dictionaries({"do": st.just("burst"), "count": st.integers(2, 5)}),
        st.fixed_dictionaries(
            {
                "do": st.just("cancel"),
                "what": st.sampled_from(
                    ["add_message", "set_messages", "clear", "get_messages_for_request"]
                ),
                "at": st.integers(1, 4),
                "content": _STORED_TEXTS,
            }
        ),
    )
    return st.fixed_dictionaries(
        {"placed": st.booleans(), "steps": st.lists(steps, min_size=1, max_size=12)}
    )


def listed_programs(facts: Facts) -> Iterator[dict[str, Any]]:
    """List programs that store one of everything, then change, view, replace and clear it."""

    def say(role: str, content: Any, **extra: Any) -> dict[str, Any]:
        return {"do": "say", "role": role, "content": content, "extra": extra}

    blocks = [
        {"type": "thinking", "thinking": "so", "signature": "sig=="},
        {"type": "text", "text": "m0033 blocks", "visibility": None},
    ]
    call = {"do": "call", "calls": 1, "content": "m0079 I look", "between": None}
    everything = [
        say("system", prose(10, 5)),
        say(
            "user",
            "a\u2028b\x85c\r\nd é漢字🙂",
            name=None,
            metadata={"n": [1, {"deep": None}], "ok": False},
        ),
        {"do": "call", "calls": 3, "content": None, "between": "system", "blocks": True},
        say("assistant", blocks, cache={"type": "ephemeral"}),
        say("developer", "m0050 be brief"),
        say("user", ""),
        {"do": "again"},
        say("user", "  spaces around it \n"),
        say("assistant", None),
        say("user", prose(60, 5)),
        {"do": "again"},
        call,
        say("user", prose(80, 5)),
    ]
    looks: list[dict[str, Any]] = [
        {"do": "overwrite", "what": what} for what in ("given", "stored", "view", "small view")
    ]
    looks += [{"do": "view", "budget": budget} for budget in (None, 200, 60, 20, 10_000_000)]
    sets = [
        {"do": "set", "messages": messages}
        for messages in ([say("user", "m0500 next")], [], everything)
    ]
    for placed in (True, False):
        yield {"placed": placed, "steps": [*everything, *looks, *sets, {"do": "clear"}]}
    yield {"placed": True, "steps": [sets[-1], *looks, sets[0], say("user", "m0600 more")]}
    # These histories differ early and agree late, so that anything remembered of one is wrong for
    # the other.
    late = [say("user", "m0700 and so on"), say("assistant", "m0701 yes")]
    alike = [
        {"do": "set", "messages": [say("user", text), *late]}
        for text in ("m0699 first", "m0698 other", "m0699 first")
    ]
    yield {
        "placed": True,
        "steps": [step for history in alike for step in (history, looks[4], looks[-1])],
    }
    # The context is closed and mounted again, and a file then has the last state.
    again, replaced = {"do": "remount"}, {"do": "remount", "replaced": True}
    many = [*everything, *(say("user", prose(100 + number, 3)) for number in range(15))]
    yield {
        "placed": True,
        "steps": [*many, again, say("user", "m0600 more"), again, {"do": "clear"}, replaced],
    }
    yield {"placed": True, "steps": [{"do": "set", "messages": many[:2]}, replaced]}
    yield {"placed": True, "steps": [*many, {"do": "set", "messages": many[5:]}, replaced]}
    for what in ("add_message", "get_messages_for_request", "set_messages", "clear"):
        yield {"placed": True, "steps": [{"do": "sweep", "what": what}]}
        yield {"placed": True, "steps": [{"do": "sweep", "what": what, "stays": True}]}
        yield {"placed": True, "steps": [{"do": "sweep", "what": what, "late": True}]}
    repeated = [call, say("tool", prose(29, 5), tool_call_id="call-10-0")]
    yield {"placed": True, "steps": repeated}
    yield {"placed": True, "steps": [{"do": "set", "messages": repeated}]}


def _unit() -> SearchStrategy[dict[str, Any]]:
    words = st.integers(20, 40)
    return st.one_of(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "words": words}),
        st.fixed_dictionaries(
            {
                "calls": st.integers(1, 3),
                "words": st.integers(8, 24),
                "between": st.sampled_from([None, None, "user"]),
                "says": st.booleans(),
                "blocks": st.booleans(),
            }
        ),
    )


def long_conversations(facts: Facts) -> SearchStrategy[Any]:
    """Draw patterns of units to repeat, with system messages and a huge message at some places."""
    return st.fixed_dictionaries(
        {
            "placed": st.booleans(),
            "pattern": st.lists(_unit(), min_size=1, max_size=7),
            "count": st.integers(50, 90),
            "systems": st.lists(st.integers(0, 120), max_size=3, unique=True),
            "huge": st.none() | st.sampled_from(["user", "assistant", "tool"]),
            "how": st.sampled_from(["add", "set", "both"]),
            "units": st.sampled_from([4, 12, 16]),
            "ends": st.sampled_from(["user", "calls"]),
            "again": st.integers(1, 2),
            "echo": st.booleans(),
        }
    )


def listed_conversations(facts: Facts) -> Iterator[dict[str, Any]]:
    """List a late system message before a newest message that takes much of the budget."""
    common = {
        "placed": False,
        "count": 60,
        "huge": None,
        "how": "add",
        "units": 12,
        "again": 1,
        "echo": False,
    }
    pattern = [{"role": "user", "words": 30}, {"role": "assistant", "words": 30}]
    yield {**common, "pattern": pattern, "systems": [0, 40], "ends": "user", "newest": 200}


# ── loops: answers of a model, actions of tools, demands of hooks, failures and graceful stops ──

Answers = list[dict[str, Any]]

_PROMPTS = (
    "Hello.",
    "Grüße an alle — 你好 🌍",
    "line one\nline two\n\n  and {braces} with %s and \\backslash\\",
    '{"role": "system", "content": "not a message"}',
    "many words " * 300,
)
_WORKS = (
    "returns",
    "returns object",
    "returns list",
    "returns blocks",
    "returns much",
    "nothing",
    "empty",
    "zero",
)
_RAISES = ("ValueError no good", "Unplanned", "TimeoutError too slow", "KeyError 'key'", "OSError")
_BREAKS = (
    "fails",
    *(f"raises {error}" for error in _RAISES),
    "unknown",
    "fails silently",
    "misfits",
)
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
_NAMES = ("alpha", "beta", "gamma")
_EMPTY = ("nothing", "empty", "zero")
_THINKING = ("think", "sealed", "reason", "odd")
_DONE: dict[str, Any] = {"blocks": [{"say": "Done. "}]}
_LAST: tuple[dict[str, Any], ...] = (
    _DONE,
    {"blocks": []},
    {"blocks": [{"say": "First. "}, {"say": "Second. "}]},
    {"blocks": [{"say": "First. "}, {"think": "ah "}, {"say": "Second. "}, {"say": "Third. "}]},
    {"blocks": [{"think": "this stays hidden "}, {"say": "So it is. "}]},
    *({"blocks": [{thought: "ah "}, {"say": "So. "}]} for thought in _THINKING),
)
"""Last answers of a model: thoughts and text, or nothing at all."""


def _calling(*blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"blocks": list(blocks), **more}


def _using(tool: str, **more: Any) -> dict[str, Any]:
    return {"call": tool, **more}


# ── loops: features ──


def _plain() -> Iterator[Answers]:
    """Yield calls that succeed and fail, alone and next to others, with thoughts and texts."""
    for thought in _THINKING:
        yield [_calling({thought: "hm "}, _using("alpha"))]
    yield [
        _calling(
            {"think": "a "}, {"say": "First. "}, {"sealed": "b "}, {"think": "c "}, _using("alpha")
        )
    ]
    for does in (*_WORKS, *_BREAKS, *_ODD):
        yield [_calling(_using("alpha", does=does))]
        yield [
            _calling(_using("beta", steps=3), _using("gamma", does=does), _using("alpha", steps=1))
        ]
    yield [_calling(_using("alpha", steps=4), _using("beta", steps=2), _using("gamma"))]
    yield [_calling(_using("alpha", steps=2), _using("alpha", steps=1), _using("alpha"))]
    yield [_calling(_using("alpha"), _using("alpha", twin=True))]
    yield [_calling(*(_using(tool, does=_BREAKS[1]) for tool in ("alpha", "beta", "gamma")))]
    yield [
        _calling(_using("alpha")),
        _calling(_using("alpha"), _using("beta")),
        _calling(_using("beta")),
    ]
    # These are empty results, and many concurrent calls that end in a different order than they
    # began.
    yield [_calling(*(_using(tool, does=does) for tool, does in zip(_NAMES, _EMPTY, strict=True)))]
    for count in (5, 12):
        yield [
            _calling(
                *(_using(_NAMES[number % 3], steps=(count - number) % 5) for number in range(count))
            )
        ]
        mixed = [_WORKS, _BREAKS][count % 2]
        yield [
            _calling(
                {"say": "One. "},
                {"say": "Two. "},
                *(
                    _using(_NAMES[number % 3], does=mixed[number % len(mixed)], steps=number % 3)
                    for number in range(count)
                ),
            ),
            _calling({"say": "Three. "}, _using("beta")),
        ]
    for beginning in ("toolu_01AbC", "", "functions.look:"):
        yield [
            _calling(
                {"say": "<b>&amp;</b>\nÜnï ☂ "},
                _using("alpha", id=beginning),
                _using("beta", id=beginning),
            )
        ]


def _hooked() -> Iterator[Answers]:
    """Yield calls that a hook objects to, alone, next to others and repeatedly."""
    for pre in _PRE:
        yield [_calling(_using("alpha", pre=pre)), _calling(_using("beta"))]
        yield [_calling(_using("beta", steps=2), _using("alpha", pre=pre))]
    for post in _POST:
        for does in ("returns", "returns object", "fails"):
            yield [_calling(_using("alpha", post=post, does=does)), _calling(_using("beta"))]
        yield [_calling(_using("alpha", post=post), _using("beta", post=post, steps=1))]
    for first, second in (
        ("ask yes", "ask no"),
        ("ask no", "ask yes"),
        ("deny", None),
        ("inject", "inject"),
    ):
        yield [_calling(_using("alpha", pre=first)), _calling(_using("alpha", pre=second))]
        yield [_calling(_using("alpha", pre=first, steps=1), _using("beta", pre=second))]
    yield [
        _calling(
            *(
                _using(tool, pre="modify", post="modify", steps=1)
                for tool in ("alpha", "beta", "gamma")
            )
        )
    ]
    several = _calling(_using("alpha", post="inject"), _using("beta", pre="inject"))
    # The last answer has fewer calls than the previous ones.
    yield [several, several, _calling(_using("gamma"))]


def _stopping() -> Iterator[Answers]:
    """Yield graceful stops while the model works, or a tool so slow that its neighbours run too."""
    stopper = _using("alpha", steps=60, stops=True)
    yield [_calling(stopper)]
    yield [_calling(stopper, _using("beta"))]
    yield [_calling(_using("beta"), stopper, _using("gamma"))]
    yield [_calling(_using("beta", steps=80), stopper)]
    yield [_calling(_using("beta"), _using("gamma", does="unknown"), stops="asked")]
    yield [_calling(_using("beta"), _using("gamma"), stops="told")]
    yield [_calling({"say": "So. "}, stops="asked")]
    many = [_using(_NAMES[number % 3], steps=20) for number in range(10)]
    yield [_calling(*many[:4], stopper, *many[4:])]


# ── loops: listed ──


def _turn(
    *answers: dict[str, Any], prompt: str = _PROMPTS[0], submit: str | None = None
) -> dict[str, Any]:
    return {"prompt": prompt, "submit": submit, "answers": list(answers)}


def _case(*turns: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"turns": list(turns), **more}


_USUAL = _turn(_calling(_using("alpha")), _DONE, prompt="And now?")


def listed_turns(facts: Facts) -> Iterator[dict[str, Any]]:
    """List turns with one feature each: answers, calls, hook results, failures, graceful stops."""
    yield from (_case(_turn(last)) for last in _LAST)
    yield from (_case(_turn(_DONE, prompt=prompt), streams=True) for prompt in _PROMPTS[1:])
    for feature in _plain():
        yield _case(_turn(*feature, _DONE), streams=len(feature[0]["blocks"]) > 2)
    yield _case(_USUAL, history=4, compacts=True)
    yield _case(_USUAL, history=2)
    one = _turn(
        _calling({"say": "One. "}, _using("alpha")), {"blocks": [{"say": "Uno. "}]}, prompt="First."
    )
    two = _turn(
        _calling(_using("beta", does="fails")), {"blocks": [{"say": "Due. "}]}, prompt="Second."
    )
    yield _case(one, two, _turn({"blocks": []}, prompt="Third."))
    yield from (_case(_turn(*feature, _DONE)) for feature in _hooked())
    for request in _REQUEST:
        yield _case(_turn({**_DONE, "request": request}))
        yield _case(
            _turn(_calling(_using("alpha")), _calling(_using("beta"), request=request), _DONE)
        )
    yield from (_case(_turn(_calling(_using("alpha")), _DONE, submit=submit)) for submit in _SUBMIT)
    yield _case(_turn({**_DONE, "request": "deny"}), _USUAL)
    yield _case(_turn(_DONE, submit="deny"), _USUAL)
    yield _case(_turn(_calling(_using("alpha", pre="deny")), _DONE), _USUAL)
    for error in (*_ERRORS, "RateLimitError"):
        yield _case(_turn({"error": error}), _USUAL)
    for error in ("NotFoundError", "Unplanned"):
        yield _case(_turn(_calling(_using("alpha")), {"error": error}), _USUAL)
        yield _case(_turn({"error": error}), _USUAL, streams=True)
    # The provider answers at a later attempt.
    for times in (1, 2, 3):
        yield _case(_turn({"error": "RateLimitError", "times": times}, _DONE), _USUAL)
        broken = {"error": "RateLimitError", "times": times}
        yield _case(_turn(_calling(_using("alpha")), broken, _calling(_using("beta")), _DONE))
    for operation in ("add", "view"):
        yield from (_case(_USUAL, fails=[operation, number]) for number in range(1, 4))
    for feature in _stopping():
        yield _case(_turn(*feature, _calling(_using("gamma")), _DONE))
        yield _case(_turn(_calling(_using("beta")), *feature, _calling(_using("gamma")), _DONE))


# ── loops: drawn ──


def turns(facts: Facts) -> SearchStrategy[dict[str, Any]]:
    """Draw one or two turns with several features, in sessions that differ.

    The first turn may end with a failure or a graceful stop.
    """
    errors: list[Answers] = [[{"error": name}] for name in _ERRORS]
    features = st.sampled_from([*_plain(), *_hooked()])
    ending = st.sampled_from(
        [*([last] for last in _LAST), *errors, *([*feature, _DONE] for feature in _stopping())]
    )
    turn = st.builds(
        lambda prompt, several, ending, submit: _turn(
            *(answer for feature in (*several, ending) for answer in feature),
            prompt=prompt,
            submit=submit,
        ),
        st.sampled_from(_PROMPTS),
        st.lists(features, max_size=3),
        ending,
        st.none() | st.none() | st.sampled_from(_SUBMIT),
    )
    fails = (
        st.none()
        | st.none()
        | st.tuples(st.sampled_from(("add", "view")), st.integers(1, 4)).map(list)
    )
    return st.fixed_dictionaries(
        {
            "turns": st.lists(turn, min_size=1, max_size=2),
            "streams": st.booleans(),
            "history": st.sampled_from((0, 2, 4)),
            "compacts": st.booleans(),
            "fails": fails,
        }
    )


# ── providers: conversations with every role and block ──

_PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
_TEXTS = [
    "hello",
    "What is it?",
    'é漢字🙂\u2028\r\n\t"\\',
    "a\nb\u2028c",
    " ",
    "{'x': 1}",
    "<b>&amp;</b>",
    "x" * 2000,
]
_TEXT = {"type": "text", "text": "words"}
_HIDDEN = {"type": "text", "text": "words", "visibility": "internal"}
_IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _PIXEL}}
_IMAGE_URL = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
_UNKNOWN = {"type": "hologram", "beam": {"angle": 3}}
_THOUGHT = {"type": "thinking", "thinking": "a thought", "signature": "c2lnbmF0dXJl"}
_THOUGHTS = (
    _THOUGHT,
    {"type": "thinking", "thinking": "an unsigned thought"},
    {"type": "redacted_thinking", "data": "aGlkZGVu"},
    {"type": "reasoning", "content": [], "summary": [{"type": "summary_text", "text": "because"}]},
)


def _user(*content: Any, **more: Any) -> dict[str, Any]:
    return {
        "role": "user",
        "content": content[0] if isinstance(content[0], str) else list(content),
        **more,
    }


def _assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def _conversations() -> Iterator[list[dict[str, Any]]]:
    user, end = _user("Hello."), _user("Go on.")
    brief, kind = (
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": "Be kind."},
    )
    call = {
        "type": "tool_call",
        "id": "toolu_one",
        "name": "look",
        "input": {"text": "é", "n": [None]},
    }
    other = {"type": "tool_call", "id": "toolu_two", "name": "count", "input": {}}
    result = {"type": "tool_result", "tool_call_id": "toolu_one", "output": {"seen": [1, None]}}
    seen = {"role": "tool", "tool_call_id": "toolu_one", "name": "look", "content": "seen"}
    counted = {"role": "tool", "tool_call_id": "toolu_two", "name": "count", "content": "seen"}
    for instruction in (brief, {**brief, "role": "developer"}, {**brief, "content": [_TEXT]}):
        yield [instruction, user]
    yield [brief, kind, user]
    yield [user, _assistant(_TEXT), brief, end]
    for content in ("", *_TEXTS, "words " * 400):
        yield [_user(content)]
    for blocks in (
        [_TEXT],
        [_TEXT, _TEXT],
        [_HIDDEN, _TEXT],
        [_IMAGE],
        [_TEXT, _IMAGE_URL],
        [_TEXT, _UNKNOWN],
    ):
        yield [_user(*blocks)]
    yield [user, end]
    yield [_user("Hello.", name="ann", metadata={"trace": {"id": 1}})]
    yield [user, {"role": "assistant", "content": "Hello."}, end]
    yield [user, {"role": "assistant", "content": "One."}, _assistant(_TEXT), end]
    for thought in (*_THOUGHTS, _HIDDEN):
        yield [user, _assistant(thought, _TEXT), end]
    yield [user, _assistant(_TEXT, _UNKNOWN), end]
    yield [user, {"role": "function", "name": "look", "content": "seen"}, end]
    yield [user, _assistant(call), seen]
    yield [user, _assistant(_THOUGHT, _TEXT, call), seen, end]
    yield [user, _assistant(call, other), seen, counted, end]
    yield [user, _assistant(call), {**seen, "content": ""}, end]
    yield [user, _assistant(call), {**seen, "content": [result]}]
    for output in (result["output"], "", ["a", "b"], None, 3):
        yield [user, _assistant(call), _user({**result, "output": output})]


def listed_requests(facts: Facts) -> Iterator[dict[str, Any]]:
    """List short conversations with one feature each."""
    yield from ({"messages": messages} for messages in _conversations())


def requests(facts: Facts) -> SearchStrategy[Any]:
    """Draw several of the conversations in a row, with distinct call ids, and options."""
    options = {
        "temperature": st.sampled_from([0.0, 0.5]),
        "top_p": st.just(0.9),
        "max_output_tokens": st.sampled_from([64, 4096]),
        "stop": st.just(["END"]),
        "metadata": st.just({"trace": {"id": 7}}),
        "conversation_id": st.just("conversation-1"),
        "reasoning_effort": st.sampled_from(["low", "high"]),
        "tool_choice": st.sampled_from(["auto", "none"]),
    }
    parts = st.lists(st.sampled_from(list(_conversations())), min_size=1, max_size=4)
    return st.fixed_dictionaries(
        {
            "messages": parts.map(_joined),
            "options": st.fixed_dictionaries({}, optional=options),
            "tools": st.booleans(),
        }
    )


def _joined(parts: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    own = [
        json.loads(json.dumps(part).replace("toolu_", f"toolu_case{number}x"))
        for number, part in enumerate(parts)
    ]
    return [message for part in own for message in part]


def dialogues(facts: Facts) -> SearchStrategy[Any]:
    """Draw the user's messages for each turn, common ones and texts of the module's own source."""
    known = [text for text in facts.get("texts", []) if text.strip()]
    known += [text for text in facts.get("triggers", []) if text not in known]
    usual = [
        "Hello.",
        "Please use a tool.",
        "Use the tool look and then count.",
        "Think step by step.",
        "And now?",
    ]
    options = [{}, {}, {"conformance_unknown": 1}, {"extended_thinking": True, "zebra": None}]
    return st.fixed_dictionaries(
        {
            "words": st.lists(st.sampled_from([*usual, *known]), min_size=3, max_size=5),
            "tools": st.booleans() | st.just(True),
            "options": st.sampled_from(options),
        }
    )


def listed_dialogues(facts: Facts) -> list[dict[str, Any]]:
    """List usual conversations: tool calls in every turn, compacted, plain answers, no tools."""
    tool = "Please use a tool."
    return [
        {"words": [tool] * 12, "tools": True, "options": {}},
        {
            "words": [f"{tool} This is turn {turn}." for turn in "abcd"],
            "tools": True,
            "options": {},
            "compacts": True,
        },
        {
            "words": ["Hello.", "Hello.", tool, "Thanks."],
            "tools": True,
            "options": {"conformance_unknown": 1},
        },
        {"words": ["Hello.", tool], "tools": False, "options": {}},
    ]


# ── tools and hooks: inputs and events ──


_MAX_LISTED = 2_000
"""Maximum number of listed inputs of all tools of a module together."""
_MOST_VARIED = 100
_MAX_DISTANCE = 1000
"""Maximum distance of a drawn number from a bound, because code that counts to it has to end."""


def listed_inputs(facts: Facts) -> Iterator[dict[str, Any]]:
    """List the values of each tool's schema, inputs with one defect, and varied valid inputs."""
    tools, choices = facts["tools"], facts["choices"]
    yield from _changed_inputs(facts)
    for name, schema in tools.items():
        if schema:
            drawn = VariedInputs(schema, CANARY, words=choices, texts=facts.get("sought", [])).draw(
                _MOST_VARIED
            )
            yield {"tool": name, "inputs": drawn[: _MOST_VARIED // len(tools)]}


def _changed_inputs(facts: Facts) -> Iterator[dict[str, Any]]:
    """Yield the listed inputs of each tool, which change one thing at a time."""
    tools, words, choices = facts["tools"], facts["words"], facts["choices"]
    for name, schema in tools.items():
        valid = valid_inputs(schema, CANARY, choices)
        samples = sample_inputs(schema, CANARY, source_keys=words, choices=choices)
        # The fullest input comes first.
        bases = [*samples[1:2], *samples[:1], *samples[2:]]
        inputs = [*valid[:20], *invalid_inputs(schema, bases, words, choices), *valid[20:]]
        yield {"tool": name, "inputs": inputs[: _MAX_LISTED // len(tools)]}


def tool_inputs(facts: Facts) -> SearchStrategy[Any]:
    """Draw a tool and a few inputs in a row: two listed ones merged into one, or any object."""
    drawn = [st.just({"tool": "", "inputs": []})]
    for listed in _changed_inputs(facts):
        one = st.sampled_from(listed["inputs"])
        keys = list(dict.fromkeys(key for entry in listed["inputs"] for key in entry))
        wild = wild_objects(keys, _harmless(facts, "choices"))
        inputs = st.lists(
            st.one_of(one, st.builds(operator.or_, one, one | wild)), min_size=1, max_size=5
        )
        drawn.append(st.fixed_dictionaries({"tool": st.just(listed["tool"]), "inputs": inputs}))
    return st.one_of(drawn[1:] or drawn)


def _harmless(facts: Facts, key: str) -> list[str]:
    return [word for word in facts.get(key, []) if is_harmless(word)]


# ── tools and hooks: anything ──


def texts(choices: list[str] | None = None) -> SearchStrategy[str]:
    """Draw harmless texts, which contain no path outside the working directory."""
    letters = st.characters(exclude_categories=["Cs"], exclude_characters="/~")
    drawn = st.text(letters, max_size=12).filter(lambda text: ".." not in text)
    return drawn | st.sampled_from(choices) if choices else drawn


def wild_values(choices: list[str] | None = None) -> SearchStrategy[Any]:
    """Draw any JSON value of limited size."""
    leaves = (
        st.none()
        | st.booleans()
        | st.integers(-20, _MAX_DISTANCE)
        | st.floats(-1e6, 1e6)
        | texts(choices)
    )
    nested = st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(), inner, max_size=3),
        max_leaves=5,
    )
    return nested | st.sampled_from(ODD_VALUES)


def wild_objects(keys: list[str], choices: list[str]) -> SearchStrategy[dict[str, Any]]:
    """Draw objects with some of the given keys, and others."""
    names = st.sampled_from(keys) | texts() if keys else texts()
    return st.dictionaries(names, wild_values(choices), max_size=4)


def _likely_events(facts: Facts) -> list[str]:
    """Return the events that the module registers for and names, then those of either kind."""
    registered = [event for _, event in facts["handlers"] if event != "*"]
    named = [event for event in EVENTS if event in facts["texts"]]
    known = [event for event in registered if event in facts["texts"]]
    return list(dict.fromkeys([*known, *named, *registered])) or list(_USUAL_EVENTS)


def listed_events(facts: Facts) -> Iterator[dict[str, Any]]:
    """List every event with a few payloads, likely ones with one defect, and whole sessions."""
    words, choices = facts["words"], facts["choices"]
    few = [(event, ordinary_payload(event)) for event in (*EVENTS, *UNKNOWN_EVENTS)]
    few += [(event, data) for event, _ in few for data in odd_payloads(event, words, briefly=True)]
    many = [
        (event, data)
        for event in _likely_events(facts)[:_MOST_EVENTS]
        for data in (
            *reaching_payloads(event, words, choices, facts["triggers"]),
            *odd_payloads(event, words),
        )
    ]
    yield from (
        {"events": [{"event": event, "data": data} for event, data in events]}
        for events in (few, many)
    )
    tool_input = next(reaching_payloads("tool:pre", words, ()))["tool_input"]
    names = ["look", *(word for word in _harmless(facts, "choices") if word not in tool_input)]
    for number, name in enumerate(names[:_MOST_NAMES]):
        # If the name is another, only the tool differs.
        events = [
            (event, data)
            for event, data in session_events(name, tool_input)
            if not number or event.startswith("tool:")
        ]
        yield {"events": [{"event": event, "data": data} for event, data in events], "routed": True}


_USUAL_EVENTS = ("tool:pre", "tool:post", "prompt:submit")
_MOST_EVENTS = 6
_MOST_NAMES = 3


def hook_events(facts: Facts) -> SearchStrategy[Any]:
    """Draw a few listed events in a row, some with another event's payload or with changed keys."""
    listed = [entry for events in listed_events(facts) for entry in events["events"]]
    names = st.sampled_from([*_likely_events(facts), *EVENTS, *UNKNOWN_EVENTS]) | texts()
    payloads = st.sampled_from([entry["data"] for entry in listed])
    keys = [
        *_harmless(facts, "words"),
        "path",
        "command",
        "text",
        "tool_name",
        "tool_input",
        "result",
    ]
    changed = st.builds(operator.or_, payloads, wild_objects(keys, _harmless(facts, "choices")))
    happening = st.sampled_from(listed) | st.fixed_dictionaries(
        {"event": names, "data": payloads | changed}
    )
    return st.fixed_dictionaries({"events": st.lists(happening, min_size=1, max_size=4)})


# ── hooks: patterns ──

_META = re.compile(r"[\\\[\](){}|*+?^$.]")
_READABLE = st.characters(min_codepoint=32, max_codepoint=126)
_MAX_LENGTH = 120


def texts_matching(text: str) -> list[str]:
    """Return a few texts that match a text read as a pattern, or the text itself if it is plain.

    A gate that looks for certain words never objects to text drawn at random, so that its
    examination needs these words.
    """
    try:
        expression = re.compile(text, re.IGNORECASE) if _META.search(text) else None
    except (re.error, RecursionError, OverflowError):
        expression = None
    if expression is None:
        return [text]
    matches: list[str] = []
    quiet = settings(
        max_examples=6, database=None, deadline=None, phases=[Phase.generate], derandomize=True
    )
    draw = given(st.from_regex(re.compile(text), fullmatch=True, alphabet=_READABLE))

    def collect(drawn: str) -> None:
        matches.append(drawn)

    # Maybe no readable text matches the pattern.
    with suppress(HypothesisException, ValueError):
        quiet(draw(collect))()
    usable = [
        match
        for match in dict.fromkeys(matches)
        if 0 < len(match) <= _MAX_LENGTH and expression.search(match)
    ]
    # A text with a dot may be literal: a file name, or the end of a sentence.
    literal = [text] if expression.search(text) else []
    return list(dict.fromkeys([*sorted(usable, key=len)[:4], *literal])) or [text]


CASES: dict[
    str, tuple[Callable[[Facts], SearchStrategy[Any]], Callable[[Facts], Iterable[Any]]]
] = {
    "context_programs": (programs, listed_programs),
    "long_conversations": (long_conversations, listed_conversations),
    "hook_events": (hook_events, listed_events),
    "turns": (turns, listed_turns),
    "provider_requests": (requests, listed_requests),
    "provider_dialogues": (dialogues, listed_dialogues),
    "tool_inputs": (tool_inputs, listed_inputs),
}
"""Strategies by the name of an input, each with the listed cases that run before any are drawn.

Both are functions of the facts about the module.
"""
