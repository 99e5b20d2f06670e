"""Cases for tools, hooks and resolvers: inputs, events and questions, listed and drawn. Needs the ``testing`` extra."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException
from hypothesis.strategies import SearchStrategy

from amplifier.conformance.inputs.json_schema import resolved
from amplifier.conformance.inputs.payloads import (
    EVENTS,
    UNKNOWN_EVENTS,
    odd_payloads,
    ordinary_payload,
    reaching_payloads,
    session_events,
)
from amplifier.conformance.inputs.tool_inputs import near_misses, sample_inputs, valid_inputs
from amplifier.conformance.inputs.values import FORMATS, ODD_VALUES, is_harmless, kinds_of, properties_of, required_of
from amplifier.conformance.target.mounted import CANARY
from amplifier.conformance.target.resolver_samples import SAMPLES, UNHEARD_OF, ids_in

Facts = dict[str, Any]

_MAX_DEPTH = 4
_MOST_LISTED = 2_000
"""Listed inputs of all tools of a module together."""
_MAX_LENGTH = 60
_MAX_DISTANCE = 1000
"""How far a drawn number goes beyond a bound: code that counts to it must come to an end."""


def tool_inputs(facts: Facts) -> SearchStrategy[Any]:
    """A tool and a few inputs for it, one after the other."""
    tools: Mapping[str, Any] = facts["tools"]
    if not tools:
        return st.just({"tool": "", "inputs": []})
    words = [word for word in facts["words"] if is_harmless(word)]
    choices = [word for word in facts.get("choices", []) if is_harmless(word)]
    return st.one_of([_calls(name, tools[name], words, choices) for name in sorted(tools)])


def listed_inputs(facts: Facts) -> Iterator[dict[str, Any]]:
    """For each tool all that its schema names, and inputs that have one defect each."""
    tools, words, choices = facts["tools"], facts["words"], facts["choices"]
    for name, schema in tools.items():
        valid = valid_inputs(schema, CANARY, choices)
        samples = sample_inputs(schema, CANARY, words=words, choices=choices)
        bases = [*samples[1:2], *samples[:1], *samples[2:]]  # the fullest first
        inputs = [*valid[:20], *near_misses(schema, bases, words, choices), *valid[20:]]
        yield {"tool": name, "inputs": inputs[: _MOST_LISTED // len(tools)]}


def _calls(name: str, schema: Any, words: list[str], choices: list[str]) -> SearchStrategy[Any]:
    keys = list(dict.fromkeys([*properties_of(resolved(schema, schema)), *words]))
    wild = wild_objects(keys, choices)
    if schema:
        valid = accepted(schema, schema, choices)
        drawn = st.one_of(valid, st.builds(_bent, valid, wild), wild)
    else:
        drawn = wild
    return st.fixed_dictionaries({"tool": st.just(name), "inputs": st.lists(drawn, min_size=1, max_size=5)})


def _bent(valid: Any, wild: dict[str, Any]) -> dict[str, Any]:
    """A valid input of which some values are something else."""
    return {**valid, **wild} if isinstance(valid, dict) else wild


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


# ── by schema ──


def accepted(schema: Any, root: Any, choices: list[str], depth: int = 0) -> SearchStrategy[Any]:
    """Values that a schema accepts; keywords that are unusual for tools are ignored."""
    found = resolved(schema, root)
    if "const" in found:
        return st.just(found["const"])
    if isinstance(found.get("enum"), list) and found["enum"]:
        return st.sampled_from(found["enum"])
    for key in ("anyOf", "oneOf"):
        branches = found.get(key)
        if isinstance(branches, list) and branches and depth <= _MAX_DEPTH:
            rest = {name: value for name, value in found.items() if name != key}
            return st.one_of(
                [accepted({**rest, **resolved(each, root)}, root, choices, depth + 1) for each in branches]
            )
    if not found or depth > _MAX_DEPTH:
        return wild_values(choices)
    return st.one_of([_OF_KIND.get(kind, _anything)(found, root, choices, depth) for kind in kinds_of(found)])


def _anything(schema: dict[str, Any], root: Any, choices: list[str], depth: int) -> SearchStrategy[Any]:
    return wild_values(choices)


def _objects(schema: dict[str, Any], root: Any, choices: list[str], depth: int) -> SearchStrategy[Any]:
    required = required_of(schema)
    parts = {name: accepted(part, root, choices, depth + 1) for name, part in properties_of(schema).items()}
    always = {name: parts.get(name, wild_values(choices)) for name in required}
    return st.fixed_dictionaries(always, optional={name: parts[name] for name in parts if name not in required})


def _arrays(schema: dict[str, Any], root: Any, choices: list[str], depth: int) -> SearchStrategy[Any]:
    least = _whole(schema.get("minItems"), 0)
    most = max(least, min(_whole(schema.get("maxItems"), 4), least + 4))
    if schema.get("uniqueItems") is True:
        inner = accepted(schema.get("items", {}), root, choices, depth + 1)
        return st.lists(inner, min_size=least, max_size=most, unique_by=repr)
    return st.lists(accepted(schema.get("items", {}), root, choices, depth + 1), min_size=least, max_size=most)


def _strings(schema: dict[str, Any], root: Any, choices: list[str], depth: int) -> SearchStrategy[Any]:
    pattern, form = schema.get("pattern"), schema.get("format")
    if isinstance(pattern, str):
        try:
            # In Python a $ matches before a trailing newline as well, in JSON Schema it does not.
            drawn = st.from_regex(re.compile(pattern)).map(lambda text: text.rstrip("\n"))
            return drawn.map(lambda text: text if _stays_here(text) else "text")
        except re.error:
            return texts(choices)
    if isinstance(form, str) and form in FORMATS:
        return st.just(FORMATS[form])
    least = _whole(schema.get("minLength"), 0)
    most = _whole(schema.get("maxLength"), least + _MAX_LENGTH)
    long_enough = texts(choices).map(lambda text: (text + "t" * max(0, least - len(text)))[: max(most, least)])
    return long_enough | st.just("t" * min(most, least + 5_000))


def _stays_here(text: str) -> bool:
    return len(text) <= 500 and not text.startswith(("/", "~")) and ".." not in text


def _integers(schema: dict[str, Any], root: Any, choices: list[str], depth: int) -> SearchStrategy[Any]:
    low, high = _bounds(schema)
    step = schema.get("multipleOf")
    if isinstance(step, int) and step > 0:
        return st.integers(-(-int(low) // step), int(high) // step).map(lambda count: count * step)
    return st.integers(int(low), max(int(low), int(high)))


def _numbers(schema: dict[str, Any], root: Any, choices: list[str], depth: int) -> SearchStrategy[Any]:
    low, high = _bounds(schema)
    return st.floats(low, max(low, high), allow_nan=False) | _integers(schema, root, choices, depth)


def _bounds(schema: dict[str, Any]) -> tuple[float, float]:
    low = next((schema[key] for key in ("minimum", "exclusiveMinimum") if _is_number(schema.get(key))), None)
    high = next((schema[key] for key in ("maximum", "exclusiveMaximum") if _is_number(schema.get(key))), None)
    low = low + 1 if low is not None and "minimum" not in schema else low
    high = high - 1 if high is not None and "maximum" not in schema else high
    if low is None:
        low = -20 if high is None else min(-20, high - _MAX_DISTANCE)
    high = low + _MAX_DISTANCE if high is None else min(high, low + 1_000_000)
    return low, max(low, high)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _whole(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and value >= 0 else otherwise


_OF_KIND: dict[str, Callable[[dict[str, Any], Any, list[str], int], SearchStrategy[Any]]] = {
    "object": _objects,
    "array": _arrays,
    "string": _strings,
    "integer": _integers,
    "number": _numbers,
    "boolean": lambda *_: st.booleans(),
    "null": lambda *_: st.none(),
}


def hook_events(facts: Facts) -> SearchStrategy[Any]:
    """A few events with payloads, one after the other."""
    words = [word for word in facts["words"] if is_harmless(word)]
    choices = [word for word in facts.get("choices", []) if is_harmless(word)]
    registered = [event for _, event in facts["handlers"] if event != "*"]
    named = [event for event in EVENTS if event in facts["texts"]]
    likely = list(dict.fromkeys([*registered, *named])) or ["tool:pre", "tool:post"]
    events = st.sampled_from(likely) | st.sampled_from([*EVENTS, *UNKNOWN_EVENTS]) | texts()
    keys = list(dict.fromkeys([*words, *(key for event in likely[:6] for key in ordinary_payload(event))]))
    wild = wild_objects(keys, choices)
    inner = wild_objects([*words, "path", "command", "text"], choices)
    name = st.sampled_from(choices) | texts() if choices else texts()
    # Put together afterwards, and not drawn one from the other, which takes ten times as long.
    happening = st.builds(_happening, events, st.sampled_from(_WAYS), wild, inner, name, wild_values(choices))
    return st.fixed_dictionaries({"events": st.lists(happening, min_size=1, max_size=4)})


def listed_events(facts: Facts) -> Iterator[dict[str, Any]]:
    """Every event with a few payloads, likely ones with payloads that have one defect each, and sessions in which tools fail."""
    words, choices = facts["words"], facts["choices"]
    few = [(event, ordinary_payload(event)) for event in (*EVENTS, *UNKNOWN_EVENTS)]
    few += [(event, data) for event, _ in few for data in odd_payloads(event, words, briefly=True)]
    registered = [event for _, event in facts["handlers"] if event != "*"]
    named = [event for event in EVENTS if event in facts["texts"]]
    known = [event for event in registered if event in facts["texts"]]
    likely = list(dict.fromkeys([*known, *named, *registered])) or list(_USUAL)
    many = [
        (event, data)
        for event in likely[:_MOST_EVENTS]
        for data in (*reaching_payloads(event, words, choices, facts["triggers"]), *odd_payloads(event, words))
    ]
    yield from ({"events": [{"event": event, "data": data} for event, data in events]} for events in (few, many))
    tool_input = next(reaching_payloads("tool:pre", words, ()))["tool_input"]
    names = ["look", *(word for word in choices if is_harmless(word) and word not in tool_input)]
    for number, name in enumerate(names[:_MOST_NAMES]):
        events = [
            (event, data) for event, data in session_events(name, tool_input) if not number or event[:5] == "tool:"
        ]
        # With another name only the tool is another one.
        yield {"events": [{"event": event, "data": data} for event, data in events], "routed": True}


_USUAL = ("tool:pre", "tool:post", "prompt:submit")
_MOST_EVENTS = 6
_MOST_NAMES = 3
_WAYS = ("wild", "bent", "tool", "answer")


def _happening(
    event: str, way: str, wild: dict[str, Any], inner: dict[str, Any], name: str, answer: Any
) -> dict[str, Any]:
    usual = ordinary_payload(event)
    data = {
        "wild": wild,
        "bent": {**usual, **wild},
        "tool": {**usual, "tool_input": inner, "tool_name": name, "prompt": name},
        "answer": {**usual, "tool_name": name, "result": answer, "tool_result": answer},
    }[way]
    return {"event": event, "data": data}


_HINTS = (None, "a path", "another place", "a file URI", "a missing path", "a missing URI", "an empty text")


def questions(facts: dict[str, Any]) -> SearchStrategy[Any]:
    """Some questions, the same ones again and again among them."""
    ids = st.sampled_from([*SAMPLES, *ids_in(facts["texts"]), *UNHEARD_OF])
    one = st.tuples(ids, st.sampled_from(_HINTS)).map(list)
    some = st.lists(one, min_size=2, max_size=5)
    return some.map(lambda asked: {"questions": [*asked, *reversed(asked)]})


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
