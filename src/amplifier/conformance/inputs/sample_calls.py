"""Plain inputs for a tool, made from its schema without any luck: the kind of call an ordinary model would make.

Pure; the hostile inputs are listed by `_tool_inputs` and drawn by `inputs`. Above stand the exercises.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .hostile_values import is_harmless
from .json_schema import acceptor, fingerprint, resolved
from .schema_values import Values, kinds_of, properties_of

_MOST = 9


def sample_inputs(
    schema: Mapping[str, Any] | None, file_name: str, *, words: Sequence[str] = (), choices: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """A few valid inputs: the required properties only, all of them, and all of them with each thing there is to choose.

    Args:
        schema: The tool's schema; None when it gives none.
        file_name: The name of a file that exists, for properties that look like paths.
        words: Keys that the tool's source looks up, for one without a schema.
        choices: Words that its source compares with.
    """
    if not schema:
        values = Values({}, file_name)
        guessed = [
            {},
            {word: values.plain({"type": "string"}, word) for word in words[:12]},
            dict.fromkeys(words[:12], 2),
        ]
        return _different(guessed)
    accepts = acceptor(schema)
    found = [each for each in _samples(schema, file_name, choices) if accepts is None or accepts(each)]
    return _different(found)[:_MOST] or [{}]


def _samples(schema: Mapping[str, Any], file_name: str, choices: Sequence[str]) -> Iterator[dict[str, Any]]:
    values, top = Values(schema, file_name), {**resolved(schema, schema), "type": "object"}
    least, full = values.plain(top, least=True), values.plain(top)
    if not isinstance(least, dict) or not isinstance(full, dict):
        return
    yield least
    yield full
    yield from (value for value in values.branches(top) if isinstance(value, dict))
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


def _different(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({fingerprint(each): each for each in found}.values())
