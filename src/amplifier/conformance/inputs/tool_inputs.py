"""Inputs for a tool, listed and not drawn: what its schema accepts, and near misses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from amplifier.conformance.inputs.json_schema import acceptor, fingerprint, resolved
from amplifier.conformance.inputs.values import (
    Values,
    changed_inside,
    is_harmless,
    kinds_of,
    near_misses,
    properties_of,
    required_of,
)

Input = dict[str, Any]

_MAX_SAMPLES = 9
_MAX_VALID = 60
_MAX_CHOICES = 6


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
        guessed = {word: Values({}, file_name).plain({"type": "string"}, word) for word in words[:12]}
        return _distinct([{}, guessed, dict.fromkeys(words[:12], 2)])
    return valid_inputs(schema, file_name, choices)[:_MAX_SAMPLES] or [{}]


def valid_inputs(schema: Mapping[str, Any] | None, file_name: str, choices: Sequence[str] = ()) -> list[Input]:
    """What the schema accepts: the least, everything, everything with each choice, and each alternative of each property on both.

    Args:
        schema: The tool's schema; without one every object is valid, and the list has only the empty one.
        file_name: The name of a file that exists.
        choices: Words that the tool's source compares with; they are used where any text will do.
    """
    if not schema:
        return [{}]
    accepts = acceptor(schema)
    found = (each for each in _inputs(schema, file_name, choices) if isinstance(each, dict))
    return _distinct(each for each in found if accepts is None or accepts(each))[:_MAX_VALID]


def invalid_inputs(
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
    for word in [word for word in choices if is_harmless(word)][:20]:
        for key in keys[:12]:
            for given in ({**base, key: word}, {key: word}):
                yield from (given, given)  # what works once may fail the second time
    yield from near_misses(base, keys)
    for each in bases[1:]:
        yield from (each, each)
        yield from changed_inside(each)


def _distinct(inputs: Iterable[Input]) -> list[Input]:
    return list({fingerprint(each): each for each in inputs}.values())


def _inputs(schema: Mapping[str, Any], file_name: str, choices: Sequence[str]) -> Iterator[Any]:
    values, top = Values(schema, file_name), {**resolved(schema, schema), "type": "object"}
    least, full = values.plain(top, least=True), values.plain(top)
    if not isinstance(least, dict) or not isinstance(full, dict):  # a default or an example may be anything
        return
    yield least
    yield full
    yield from values.branches(top)
    properties = {name: resolved(part, schema) for name, part in properties_of(top).items()}
    harmless = [word for word in choices if is_harmless(word)]
    alternatives = {name: values.alternatives(part, name) for name, part in properties.items()}
    for name, part in properties.items():
        if "enum" in part or "boolean" in kinds_of(part):
            yield from ({**full, name: value} for value in alternatives[name])
    for name, part in properties.items():
        if kinds_of(part) == ["string"] and "enum" not in part:
            words = [word for word in harmless if word not in properties]
            yield from ({**full, name: word} for word in words[:_MAX_CHOICES])
        if kinds_of(part) == ["string"] and not {"enum", "const", "format", "pattern"} & part.keys():
            alternatives[name] += harmless
    for branch in (each for key in ("anyOf", "oneOf") if isinstance(top.get(key), list) for each in top[key]):
        yield values.plain({**top, **resolved(branch, schema), "type": "object"}, least=True)
    yield from ({**least, name: full[name]} for name in properties if name not in required_of(top) and name in full)
    most = max((len(each) for each in alternatives.values()), default=0)
    for index in range(most):  # breadth first: every property gets its turn before the list is full
        for name, its_values in alternatives.items():
            for value in its_values[index : index + 1]:
                yield {**least, name: value}
                yield {**full, name: value}
