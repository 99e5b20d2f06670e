"""Inputs for a tool, listed and not drawn: what its schema accepts, and everything that is wrong by one thing.

Pure. Above stand the exercises and the checks of tools; below stand `_schema_values` and `_odd_values`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .hostile_values import LONG, ODD_VALUES, is_harmless
from .json_schema import acceptor, fingerprint, resolved
from .schema_values import Values, kinds_of, properties_of, required_of

Input = dict[str, Any]

_MOST_VALID = 60


def valid_inputs(schema: Mapping[str, Any] | None, file_name: str, choices: Sequence[str] = ()) -> list[Input]:
    """What the schema accepts: the least, everything, and each alternative of each property on both.

    Args:
        schema: The tool's schema; without one every object is valid, and the list has only the empty one.
        file_name: The name of a file that exists.
        choices: Words that the tool's source compares with; they are tried where any text will do.
    """
    if not schema:
        return [{}]
    accepts = acceptor(schema)
    found = [each for each in _valid(schema, file_name, choices) if accepts is None or accepts(each)]
    return list({fingerprint(each): each for each in found}.values())[:_MOST_VALID]


def _valid(schema: Mapping[str, Any], file_name: str, choices: Sequence[str]) -> Iterator[Input]:
    values, top = Values(schema, file_name), resolved(schema, schema)
    properties = properties_of(top)
    least, full = values.plain({**top, "type": "object"}, least=True), values.plain({**top, "type": "object"})
    if not isinstance(least, dict) or not isinstance(full, dict):
        return
    yield least
    yield full
    for branch in _branches(top):
        yield values.plain({**top, **resolved(branch, schema), "type": "object"}, least=True)
    optional = [name for name in properties if name not in required_of(top)]
    yield from ({**least, name: full[name]} for name in optional if name in full)
    alternatives = {name: values.alternatives(part, name) for name, part in properties.items()}
    for name, part in properties.items():
        if _is_free_text(part, schema):
            alternatives[name] += [word for word in choices if is_harmless(word)]
    most = max((len(each) for each in alternatives.values()), default=0)
    for index in range(most):  # breadth first: every property gets its turn before the list is full
        for name, its_values in alternatives.items():
            for value in its_values[index : index + 1]:
                yield {**least, name: value}
                yield {**full, name: value}


def _branches(top: Mapping[str, Any]) -> list[Any]:
    found = [top.get(key) for key in ("anyOf", "oneOf")]
    return [each for branches in found if isinstance(branches, list) for each in branches]


def _is_free_text(schema: Any, root: Any) -> bool:
    found = resolved(schema, root)
    return kinds_of(found) == ["string"] and not {"enum", "const", "format", "pattern"} & found.keys()


def near_misses(
    schema: Mapping[str, Any] | None, bases: Sequence[Input], words: Iterable[str], choices: Iterable[str] = ()
) -> Iterator[Input]:
    """What is wrong by one thing: a key missing, one too many, a value of another kind, here or further inside.

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


_ODD: tuple[Any, ...] = (None, 7, -1, 1.5, "", "text", "ünï ✓", [], {}, "nul\x00byte", ["a", None], LONG)


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
