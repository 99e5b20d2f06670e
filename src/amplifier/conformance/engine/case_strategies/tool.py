"""Strategies for the inputs of tools: what a schema accepts, what is near it, and any other JSON.

Needs the ``testing`` extra.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from amplifier.conformance.inputs.hostile_values import ODD_VALUES, is_harmless
from amplifier.conformance.inputs.json_schema import resolved
from amplifier.conformance.inputs.schema_values import FORMATS, kinds_of, properties_of, required_of

Facts = dict[str, Any]

_MAX_DEPTH = 4
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
