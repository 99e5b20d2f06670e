"""Cases for tools, hooks and resolvers: inputs, events and questions, listed and drawn. Needs the ``testing`` extra."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException
from hypothesis.strategies import SearchStrategy

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
from amplifier.conformance.target.mounted import CANARY

Facts = dict[str, Any]

_MOST_LISTED = 2_000
"""Listed inputs of all tools of a module together."""
_MAX_DISTANCE = 1000
"""How far a drawn number goes beyond a bound: code that counts to it must come to an end."""


def listed_inputs(facts: Facts) -> Iterator[dict[str, Any]]:
    """For each tool all that its schema names, and inputs that have one defect each."""
    tools, words, choices = facts["tools"], facts["words"], facts["choices"]
    for name, schema in tools.items():
        valid = valid_inputs(schema, CANARY, choices)
        samples = sample_inputs(schema, CANARY, words=words, choices=choices)
        bases = [*samples[1:2], *samples[:1], *samples[2:]]  # the fullest first
        inputs = [*valid[:20], *invalid_inputs(schema, bases, words, choices), *valid[20:]]
        yield {"tool": name, "inputs": inputs[: _MOST_LISTED // len(tools)]}


def tool_inputs(facts: Facts) -> SearchStrategy[Any]:
    """A tool and a few inputs for it, one after the other: two of the listed ones in one, or any object."""
    drawn = [st.just({"tool": "", "inputs": []})]
    for listed in listed_inputs(facts):
        one = st.sampled_from(listed["inputs"])
        keys = list(dict.fromkeys(key for each in listed["inputs"] for key in each))
        wild = wild_objects(keys, _harmless(facts, "choices"))
        inputs = st.lists(st.one_of(one, st.builds(operator.or_, one, one | wild)), min_size=1, max_size=5)
        drawn.append(st.fixed_dictionaries({"tool": st.just(listed["tool"]), "inputs": inputs}))
    return st.one_of(drawn[1:] or drawn)


def _harmless(facts: Facts, key: str) -> list[str]:
    return [word for word in facts.get(key, []) if is_harmless(word)]


# ── anything ──


def texts(choices: list[str] | None = None) -> SearchStrategy[str]:
    """Texts that can do no harm: no path outside the working directory, no home."""
    letters = st.characters(exclude_categories=["Cs"], exclude_characters="/~")
    drawn = st.text(letters, max_size=12).filter(lambda text: ".." not in text)
    return drawn | st.sampled_from(choices) if choices else drawn


def wild_values(choices: list[str] | None = None) -> SearchStrategy[Any]:
    """Any JSON value, of limited size."""
    leaves = st.none() | st.booleans() | st.integers(-20, _MAX_DISTANCE) | st.floats(-1e6, 1e6) | texts(choices)
    nested = st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(), inner, max_size=3), max_leaves=5
    )
    return nested | st.sampled_from(ODD_VALUES)


def wild_objects(keys: list[str], choices: list[str]) -> SearchStrategy[dict[str, Any]]:
    """Objects with some of the keys that matter, and others."""
    names = st.sampled_from(keys) | texts() if keys else texts()
    return st.dictionaries(names, wild_values(choices), max_size=4)


def _likely_events(facts: Facts) -> list[str]:
    """The events that matter to the module: those it registers for and names, then the other ones of either."""
    registered = [event for _, event in facts["handlers"] if event != "*"]
    named = [event for event in EVENTS if event in facts["texts"]]
    known = [event for event in registered if event in facts["texts"]]
    return list(dict.fromkeys([*known, *named, *registered])) or list(_USUAL)


def listed_events(facts: Facts) -> Iterator[dict[str, Any]]:
    """Every event with a few payloads, likely ones with payloads that have one defect each, and sessions in which tools fail."""
    words, choices = facts["words"], facts["choices"]
    few = [(event, ordinary_payload(event)) for event in (*EVENTS, *UNKNOWN_EVENTS)]
    few += [(event, data) for event, _ in few for data in odd_payloads(event, words, briefly=True)]
    many = [
        (event, data)
        for event in _likely_events(facts)[:_MOST_EVENTS]
        for data in (*reaching_payloads(event, words, choices, facts["triggers"]), *odd_payloads(event, words))
    ]
    yield from ({"events": [{"event": event, "data": data} for event, data in events]} for events in (few, many))
    tool_input = next(reaching_payloads("tool:pre", words, ()))["tool_input"]
    names = ["look", *(word for word in _harmless(facts, "choices") if word not in tool_input)]
    for number, name in enumerate(names[:_MOST_NAMES]):
        # With another name only the tool is another one.
        events = [each for each in session_events(name, tool_input) if not number or each[0].startswith("tool:")]
        yield {"events": [{"event": event, "data": data} for event, data in events], "routed": True}


_USUAL = ("tool:pre", "tool:post", "prompt:submit")
_MOST_EVENTS = 6
_MOST_NAMES = 3


def hook_events(facts: Facts) -> SearchStrategy[Any]:
    """A few of the listed events one after the other, each with the payload of another one, or with any keys changed."""
    listed = [each for events in listed_events(facts) for each in events["events"]]
    names = st.sampled_from([*_likely_events(facts), *EVENTS, *UNKNOWN_EVENTS]) | texts()
    payloads = st.sampled_from([each["data"] for each in listed])
    keys = [*_harmless(facts, "words"), "path", "command", "text", "tool_name", "tool_input", "result"]
    changed = st.builds(operator.or_, payloads, wild_objects(keys, _harmless(facts, "choices")))
    happening = st.sampled_from(listed) | st.fixed_dictionaries({"event": names, "data": payloads | changed})
    return st.fixed_dictionaries({"events": st.lists(happening, min_size=1, max_size=4)})


# ── patterns ──

_META = re.compile(r"[\\\[\](){}|*+?^$.]")
_READABLE = st.characters(min_codepoint=32, max_codepoint=126)
_LONGEST = 120


def texts_matching(text: str) -> list[str]:
    """A few texts that a text matches when it is read as a pattern; the text itself if it is a plain one.

    A gate that looks for certain words never objects to text drawn at random; examining it takes the text that it looks for.
    """
    try:
        expression = re.compile(text, re.IGNORECASE) if _META.search(text) else None
    except (re.error, RecursionError, OverflowError):
        expression = None
    if expression is None:
        return [text]
    found: list[str] = []
    quiet = settings(max_examples=6, database=None, deadline=None, phases=[Phase.generate], derandomize=True)
    draw = given(st.from_regex(re.compile(text), fullmatch=True, alphabet=_READABLE))

    def collect(drawn: str) -> None:
        found.append(drawn)

    with suppress(HypothesisException, ValueError):  # a pattern that no readable text matches
        quiet(draw(collect))()
    matching = [each for each in dict.fromkeys(found) if 0 < len(each) <= _LONGEST and expression.search(each)]
    # A text with a dot in it may be meant literally: a name of a file, the end of a sentence.
    return list(dict.fromkeys([*sorted(matching, key=len)[:4], *([text] if expression.search(text) else [])])) or [text]
