"""Inputs for a tool, listed and not drawn: ordinary ones, all that its schema accepts, and near misses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from amplifier.conformance.inputs.json_schema import acceptor, fingerprint, resolved
from amplifier.conformance.inputs.values import (
    LONG,
    ODD_VALUES,
    Values,
    is_harmless,
    kinds_of,
    properties_of,
    required_of,
)

Input = dict[str, Any]

_MAX_SAMPLES = 9
_MAX_VALID = 60
_ODD: tuple[Any, ...] = (None, 7, -1, 1.5, "", "text", "ünï ✓", [], {}, "nul\x00byte", ["a", None], LONG)


def sample_inputs(
    schema: Mapping[str, Any] | None, file_name: str, *, words: Sequence[str] = (), choices: Sequence[str] = ()
) -> list[Input]:
    """A few valid inputs, such as a model would write: the required properties only, all, and all with each choice.

    Args:
        schema: The tool's schema; None when it gives none.
        file_name: The name of a file that exists, for properties that look like paths.
        words: Keys that the tool's source looks up, for one without a schema.
        choices: Words that its source compares with.
    """
    if not schema:
        text = {"type": "string"}
        guessed = {word: Values({}, file_name).plain(text, word) for word in words[:12]}
        return _distinct([{}, guessed, dict.fromkeys(words[:12], 2)])
    return _accepted(schema, _samples(schema, file_name, choices))[:_MAX_SAMPLES] or [{}]


def valid_inputs(schema: Mapping[str, Any] | None, file_name: str, choices: Sequence[str] = ()) -> list[Input]:
    """What the schema accepts: the least, everything, and each alternative of each property on both.

    Args:
        schema: The tool's schema; without one every object is valid, and the list has only the empty one.
        file_name: The name of a file that exists.
        choices: Words that the tool's source compares with; they are used where any text will do.
    """
    if not schema:
        return [{}]
    return _accepted(schema, _alternatives(schema, file_name, choices))[:_MAX_VALID]


def near_misses(
    schema: Mapping[str, Any] | None, bases: Sequence[Input], words: Iterable[str], choices: Iterable[str] = ()
) -> Iterator[Input]:
    """Inputs with one thing wrong: a key missing, one too many, a value of another type, at any depth.

    Args:
        schema: The tool's schema, if it gives one.
        bases: Valid inputs; the first is changed in every way, the others, for what else there is to choose, in some.
        words: Keys that the tool's source looks up.
        choices: Words that its source compares with.
    """
    base = bases[0] if bases else {}
    declared = list(dict.fromkeys([*base, *properties_of(schema or {})]))
    keys = [*declared, *[word for word in words if word not in declared][: 6 if schema else 20]]
    yield {}
    yield {"": None}
    yield {"unknown key": {"nested": [1, None]}}
    yield {**base, "unknown key": None}
    for each in bases:
        yield from ({name: value for name, value in each.items() if name != key} for key in each)
    yield {**dict.fromkeys(keys, "text"), **base}
    for word in [word for word in choices if is_harmless(word)][:20]:
        for key in keys[:12]:
            for given in ({**base, key: word}, {key: word}):
                yield from (given, given)  # what works once may fail the second time
    for value in ODD_VALUES:
        yield dict.fromkeys(keys, value)
        yield from ({**base, key: value} for key in keys)
    for each in bases[1:]:
        yield from (each, each)
        yield from ({**each, key: value} for value in _ODD for key in each)
    for each in bases:
        for key, value in each.items():
            yield from ({**each, key: changed} for changed in _changed_inside(value))


def _accepted(schema: Mapping[str, Any], inputs: Iterable[Any]) -> list[Input]:
    accepts = acceptor(schema)
    return _distinct(each for each in inputs if isinstance(each, dict) and (accepts is None or accepts(each)))


def _distinct(inputs: Iterable[Input]) -> list[Input]:
    return list({fingerprint(each): each for each in inputs}.values())


def _samples(schema: Mapping[str, Any], file_name: str, choices: Sequence[str]) -> Iterator[Any]:
    values, top = Values(schema, file_name), {**resolved(schema, schema), "type": "object"}
    least, full = values.plain(top, least=True), values.plain(top)
    if not isinstance(least, dict) or not isinstance(full, dict):  # a default or an example may be anything
        return
    yield least
    yield full
    yield from values.branches(top)
    properties = {name: resolved(part, schema) for name, part in properties_of(top).items()}
    for name, part in properties.items():
        if "enum" in part:
            yield from ({**full, name: value} for value in values.alternatives(part, name))
    for name, part in properties.items():
        if "boolean" in kinds_of(part):
            yield {**full, name: full.get(name) is not True}
    for name, part in properties.items():
        if kinds_of(part) == ["string"] and "enum" not in part:
            yield from ({**full, name: word} for word in choices if is_harmless(word) and word not in properties)


def _alternatives(schema: Mapping[str, Any], file_name: str, choices: Sequence[str]) -> Iterator[Any]:
    values, top = Values(schema, file_name), {**resolved(schema, schema), "type": "object"}
    properties = properties_of(top)
    least, full = values.plain(top, least=True), values.plain(top)
    if not isinstance(least, dict) or not isinstance(full, dict):  # a default or an example may be anything
        return
    yield least
    yield full
    for key in ("anyOf", "oneOf"):
        branches = top.get(key)
        for branch in branches if isinstance(branches, list) else ():
            yield values.plain({**top, **resolved(branch, schema), "type": "object"}, least=True)
    yield from ({**least, name: full[name]} for name in properties if name not in required_of(top) and name in full)
    alternatives = {name: values.alternatives(part, name) for name, part in properties.items()}
    for name, part in properties.items():
        if _is_free_text(resolved(part, schema)):
            alternatives[name] += [word for word in choices if is_harmless(word)]
    most = max((len(each) for each in alternatives.values()), default=0)
    for index in range(most):  # breadth first: every property gets its turn before the list is full
        for name, its_values in alternatives.items():
            for value in its_values[index : index + 1]:
                yield {**least, name: value}
                yield {**full, name: value}


def _is_free_text(schema: Mapping[str, Any]) -> bool:
    return kinds_of(schema) == ["string"] and not {"enum", "const", "format", "pattern"} & schema.keys()


def _changed_inside(value: Any) -> Iterator[Any]:
    """A list or an object with one thing changed in it."""
    if isinstance(value, list):
        yield from ([each] for each in _ODD)
        yield from ([*value, each] for each in _ODD)
        for item in value[:1]:
            yield from ([changed] for changed in _changed_inside(item))
    elif isinstance(value, dict):
        for key in value:
            yield {name: member for name, member in value.items() if name != key}
            yield from ({**value, key: each} for each in _ODD)
            yield from ({**value, key: changed} for changed in _changed_inside(value[key]))
        yield {**value, "unknown key": None}
