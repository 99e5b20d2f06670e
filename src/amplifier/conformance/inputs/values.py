"""List values for inputs: values that JSON allows and few programs expect, and valid values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from amplifier.conformance.inputs.json_schema import acceptor, fingerprint, merged, resolved

# No value can do harm in a module that uses it. There is no absolute path, parent directory or
# home, no address beyond this machine, no program, and no number that fills the memory of code that
# counts to it. A schema gets one plain value for everything, as a model would write it, and one
# value for each alternative, such as a choice or a bound.

LONG = "long " * 1_200

ODD_TEXTS = (
    "",
    " ",
    "0",
    "-1",
    "nul\x00byte",
    "two\nlines\r\n\ttabbed",
    "ünïcödé ✓ 漢字 👩\u200d👩\u200d👧 \u202ertl",
    "[",
    "(*",
    "{0} {} %s %d %",
    "\\",
    "\"quoted\" 'twice'",
    "null",
    "true",
    "{}",
    "1e400",
    LONG,
)
"""Texts that break naive code.

They are empty or very long, have control characters, or look like a pattern, a template or a number
out of range.
"""

IRREGULAR = ("naïve e\u0301 漢字 👩\u200d👧 " * 40, "Straße", "Strasse", "STRASSE", "9", "10")
"""Texts of ordinary users.

They are longer in bytes than in characters, nearly equal, or sorted differently as numbers and as
texts.
"""

DEEP: Any = json.loads('{"deep": [' * 50 + '"leaf"' + "]}" * 50)
"""A value with a hundred levels."""

ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1000,
    3.5,
    -0.0,
    1e300,
    [],
    [None],
    ["a", 1, None, {}],
    [[]],
    {},
    {"": None},
    {"unknown": {"nested": [1, 2, {"x": "y"}]}},
    DEEP,
    *ODD_TEXTS,
)
"""A value of each JSON type, with the edge cases of each."""

_ODD: tuple[Any, ...] = (
    None,
    7,
    -1,
    1.5,
    "",
    "text",
    "ünï ✓",
    [],
    {},
    "nul\x00byte",
    ["a", None],
    LONG,
)


def near_misses(base: Mapping[str, Any], keys: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield objects with one thing wrong at any depth, and objects with everything wrong.

    A key is missing, unknown, or has a value of another type.
    """
    yield {}
    yield {"": None, "unknown key": {"nested": [1, None]}}
    yield {**base, "unknown key": None}
    yield from ({name: value for name, value in base.items() if name != key} for key in base)
    yield {**dict.fromkeys(keys, "text"), **base}
    for value in ODD_VALUES:
        yield dict.fromkeys(keys, value)
        yield from ({**base, key: value} for key in keys)
    yield from changed_inside(base)


def changed_inside(value: Any, extra_keys: Sequence[str] = ()) -> Iterator[Any]:
    """Yield copies of a list or an object with one change each, at any depth.

    Args:
        value: The list or the object.
        extra_keys: Other keys that an object may have.
    """
    if isinstance(value, list):
        yield from ([odd] for odd in _ODD)
        yield from ([*value, odd] for odd in _ODD)
        for item in value[:1]:
            yield from ([changed] for changed in changed_inside(item, extra_keys))
    elif isinstance(value, dict):
        for key in dict.fromkeys([*value, *extra_keys][:16]):
            yield {name: member for name, member in value.items() if name != key}
            yield from ({**value, key: odd} for odd in _ODD)
            yield from (
                {**value, key: changed} for changed in changed_inside(value.get(key), extra_keys)
            )
        yield {**value, "unknown key": None}


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value with every text in it changed, except the name of a tool."""
    if isinstance(value, dict):
        return {
            key: with_texts(member, change) if key != "tool_name" else member
            for key, member in value.items()
        }
    if isinstance(value, list):
        return [with_texts(member, change) for member in value]
    return change(value) if isinstance(value, str) else value


_HARMLESS = re.compile(r"[A-Za-z][\w.:-]{0,30}")


def is_harmless(text: str) -> bool:
    """Return True if a text of a module's source may be passed to it.

    It has to be a word, not a path or a command line.
    """
    return _HARMLESS.fullmatch(text) is not None and ".." not in text


_MAX_DEPTH = 6
_MAX_CHOICES = 12
_MAX_LENGTH = 5_000
_MAX_LISTED = 200
_MAX_NUMBER = 1_000_000
"""Largest bound in use, because code that counts to a bound must come to an end."""

FORMATS = {
    "date": "2024-05-17",
    "date-time": "2024-05-17T12:30:00Z",
    "time": "12:30:00Z",
    "duration": "P1D",
    "email": "someone@example.org",
    "hostname": "localhost",
    "ipv4": "127.0.0.1",
    "ipv6": "::1",
    "uri": "http://127.0.0.1:9/",
    "url": "http://127.0.0.1:9/",
    "uri-reference": "text",
    "uuid": "12345678-1234-4678-9234-567812345678",
    "json-pointer": "/a",
    "regex": "t.xt",
}
"""A text for each format of a schema. No address leads out of this machine."""


_FORMATS_BY_NAME = {
    "date": "date",
    "regex": "regex",
    "pattern": "regex",
    "email": "email",
    "timestamp": "date-time",
}
"""The format that a word in the name of a property implies, for a schema without a format."""


def use_address(address: str) -> None:
    """Point URLs to a server that answers, so that a tool that fetches them can succeed."""
    FORMATS.update(uri=address, url=address)


SHAPED_TEXTS = (
    *FORMATS.values(),
    "text",
    "a",
    "A",
    "abc",
    "ABC",
    "1",
    "12",
    "0.5",
    "a1",
    "#a0b1c2",
    "a-b",
    "a.txt",
    "1.2.3",
)
"""Texts of many shapes, for a tool that needs an undocumented one."""


class Values:
    """The values of one schema.

    Args:
        root: The schema, in which references are resolved.
        file_name: The name of an existing file, for properties that look like paths.
    """

    def __init__(self, root: Mapping[str, Any], file_name: str) -> None:
        self._root = root
        self._file_name = file_name

    def plain(self, schema: Any, name: str = "", *, least: bool = False, depth: int = 0) -> Any:
        """Return the most ordinary value, with nothing optional in it if ``least`` is True."""
        return next(self._values(schema, name, least, depth))

    def alternatives(self, schema: Any, name: str = "", depth: int = 0) -> list[Any]:
        """Return the plain value, and one for each alternative that the schema allows."""
        return distinct(self._values(schema, name, False, depth))

    def bounds(self, schema: Any, name: str = "") -> Iterator[tuple[float, Any, Any]]:
        """Yield each bound of a schema with a value just inside of it and one just beyond.

        A bound limits a number, the length of a text, or the length of a list.
        """
        part = resolved(schema, self._root)
        for key, step in (("minimum", 1), ("maximum", -1)):
            limit = _limit(part.get(key))
            if limit is not None:
                yield limit, limit, limit - step
            limit = _limit(part.get(f"exclusive{key.capitalize()}"))
            if limit is not None:
                yield limit, limit + step, limit
                if "integer" not in kinds_of(part):
                    yield limit, limit + step / 2, limit
        for min_key, max_key, max_length in (
            ("minLength", "maxLength", _MAX_LENGTH),
            ("minItems", "maxItems", _MAX_LISTED),
        ):
            for key, step in ((min_key, 1), (max_key, -1)):
                count = part.get(key)
                if isinstance(count, int) and 0 < count <= max_length:
                    inside = self._of_count(part, name, count)
                    yield count, inside, self._of_count(part, name, count - step)

    def _of_count(self, schema: Mapping[str, Any], name: str, count: int) -> Any:
        """Return a text of a length, or a list of a length with different items."""
        if "array" not in kinds_of(schema):
            return "t" * count
        item = self.plain(schema.get("items", {}), name)
        if isinstance(item, str):
            return [f"{item} {number}" for number in range(count)]
        return [item] * count

    def branches(
        self, part: Mapping[str, Any], name: str = "", *, least: bool = False, depth: int = 0
    ) -> Iterator[Any]:
        """Yield the plain value of each branch of an ``anyOf`` or ``oneOf``."""
        for key in ("anyOf", "oneOf"):
            branches = part.get(key)
            for branch in branches[:_MAX_CHOICES] if isinstance(branches, list) else ():
                whole = merged(resolved(branch, self._root), _without(part, key))
                yield self.plain(whole, name, least=least, depth=depth)

    def _values(self, schema: Any, name: str, least: bool, depth: int) -> Iterator[Any]:
        """Yield the values of a schema's constants, branches and types, the plain value first."""
        part = resolved(schema, self._root)
        if not part or depth > _MAX_DEPTH:
            yield "text"
            return
        if "const" in part:
            yield part["const"]
            return
        if "default" in part and not (least and isinstance(part["default"], dict)):
            yield part["default"]
        for key in ("enum", "examples"):
            if isinstance(part.get(key), list):
                yield from part[key][:_MAX_CHOICES]
        if "properties" not in part:
            yield from self.branches(part, name, least=least, depth=depth + 1)
        for kind in kinds_of(part) if not part.get("enum") else ():
            yield from self._of_kind({**part, "type": kind}, kind, name, least, depth)
        if "properties" in part:
            yield from self.branches(part, name, least=least, depth=depth + 1)

    def _of_kind(
        self, schema: dict[str, Any], kind: str, name: str, least: bool, depth: int
    ) -> Iterator[Any]:
        if kind == "object":
            yield self._object(schema, least, depth)
            yield self._object(schema, True, depth)
        elif kind == "array":
            yield self._array(schema, name, least, depth)
            yield from (
                [item] for item in self.alternatives(schema.get("items", {}), name, depth + 1)[:4]
            )
            yield []
        elif kind in ("integer", "number"):
            yield _number(schema, kind)
            bounds = [schema.get(key) for key in ("minimum", "maximum")]
            yield from (
                bound
                for bound in bounds
                if isinstance(bound, (int, float)) and abs(bound) <= _MAX_NUMBER
            )
            yield from (2, 7) if kind == "integer" else (2, 0.1, 1.5)
        elif kind in ("boolean", "null"):
            yield from (False, True) if kind == "boolean" else (None,)
        else:
            yield self._text(schema, name.lower())
            if "pattern" not in schema and "format" not in schema:
                for count in (schema.get("minLength"), schema.get("maxLength")):
                    if isinstance(count, int) and 0 < count <= _MAX_LENGTH:
                        yield "t" * count
                yield from (_of_length(text, schema) for text in IRREGULAR)

    def _object(self, schema: Mapping[str, Any], least: bool, depth: int) -> dict[str, Any]:
        properties = properties_of(schema)
        required = required_of(schema)
        names = [name for name in properties if not least or name in required]
        names += [name for name in required if name not in properties]
        return {
            name: self.plain(properties.get(name, {}), name, least=least, depth=depth + 1)
            for name in names
        }

    def _array(self, schema: Mapping[str, Any], name: str, least: bool, depth: int) -> list[Any]:
        count = schema.get("minItems", 0 if least else 1)
        count = min(count, 50) if isinstance(count, int) else 1
        if isinstance(schema.get("prefixItems"), list):
            return [
                self.plain(item, name, least=least, depth=depth + 1)
                for item in schema["prefixItems"]
            ]
        item = self.plain(schema.get("items", {}), name, least=least, depth=depth + 1)
        if schema.get("uniqueItems") is True and count > 1:
            others = self.alternatives(schema.get("items", {}), name, depth + 1)
            return [*others, *(f"text {index}" for index in range(count))][:count]
        return [item] * count

    def _text(self, schema: Mapping[str, Any], name: str) -> str:
        pattern, form = schema.get("pattern"), schema.get("format")
        if isinstance(pattern, str):
            return _matching(pattern, schema)
        if isinstance(form, str) and form in FORMATS:
            return FORMATS[form]
        if "url" in name or name == "uri":
            return FORMATS["uri"]
        if "path" in name or "file" in name:
            return self._file_name
        if "dir" in name or "folder" in name or name == "cwd":
            return "."
        if "command" in name or name == "cmd":
            return "true"
        for word, form in _FORMATS_BY_NAME.items():
            if word in name:
                return _of_length(FORMATS[form], schema)
        return _of_length("text", schema)


def _limit(value: Any) -> int | float | None:
    """Return a value if it is a bound that code may count to, else None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) <= _MAX_NUMBER else None


def kinds_of(schema: Mapping[str, Any]) -> list[str]:
    """Return the types that a schema allows, or a guessed one if it names none."""
    kinds = schema.get("type")
    named = [
        kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(kind, str)
    ]
    if named:
        return named
    return ["object"] if "properties" in schema else ["array"] if "items" in schema else ["string"]


def properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the properties that a schema names."""
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def required_of(schema: Mapping[str, Any]) -> list[str]:
    """Return the keys that a schema requires."""
    required = schema.get("required")
    return (
        [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    )


def _without(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name != key}


def _number(schema: Mapping[str, Any], kind: str) -> Any:
    low, high = schema.get("minimum"), schema.get("maximum")
    over, under = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    step = schema.get("multipleOf")
    value: Any = step if isinstance(step, (int, float)) and step > 0 else 1
    for bound, least in ((low, 0), (over, 1)):
        if isinstance(bound, (int, float)) and value < bound + least:
            value = bound + least
    for bound, least in ((high, 0), (under, 1)):
        if isinstance(bound, (int, float)) and value > bound - least:
            value = bound - least
    return int(value) if kind == "integer" else value


def _matching(pattern: str, schema: Mapping[str, Any]) -> str:
    """Return a text of some shape that a pattern accepts, or a text that it may refuse."""
    try:
        expression = re.compile(pattern)
    except re.error:
        return "text"
    for candidate in SHAPED_TEXTS:
        for text in (candidate, _of_length(candidate, schema)):
            if expression.search(text):
                return text
    # A pattern often begins with a literal prefix, so each shape is tried after it.
    literal = re.match(r"\^?([A-Za-z0-9 _:/@#-]*)", pattern)
    prefix = literal.group(1) if literal else ""
    return next(
        (prefix + text for text in SHAPED_TEXTS if expression.search(prefix + text)), "text"
    )


def _of_length(text: str, schema: Mapping[str, Any]) -> str:
    min_length, max_length = schema.get("minLength"), schema.get("maxLength")
    if isinstance(min_length, int) and len(text) < min_length:
        text = (text * (min_length // max(len(text), 1) + 1))[: min(min_length, _MAX_LENGTH)]
    return text[:max_length] if isinstance(max_length, int) else text


Input = dict[str, Any]

_HUGE = "9**9**9**9"
"""An expression that takes longer to evaluate than any call may take."""
_MAX_SAMPLES = 9
_MAX_VALID = 60
_MAX_WORDS = 6


def sample_inputs(
    schema: Mapping[str, Any] | None,
    file_name: str,
    *,
    source_keys: Sequence[str] = (),
    choices: Sequence[str] = (),
) -> list[Input]:
    """Return a few valid inputs such as a model would write.

    They have the required properties only, all properties, and all properties with each choice.

    Args:
        schema: The tool's schema, or None if it has none.
        file_name: The name of an existing file, for properties that look like paths.
        source_keys: Keys that the tool's source looks up, for a tool without a schema.
        choices: Texts of comparisons in the tool's source.
    """
    if not schema:
        guessed = {
            key: Values({}, file_name).plain({"type": "string"}, key) for key in source_keys[:12]
        }
        return distinct([{}, guessed, dict.fromkeys(source_keys[:12], 2)])
    return valid_inputs(schema, file_name, choices)[:_MAX_SAMPLES] or [{}]


def valid_inputs(
    schema: Mapping[str, Any] | None, file_name: str, choices: Sequence[str] = ()
) -> list[Input]:
    """Return inputs that a schema accepts.

    They have the required properties only or all properties, each with every alternative of every
    property, and all properties with each choice.

    Args:
        schema: The tool's schema. Without one, the result is an empty object.
        file_name: The name of an existing file.
        choices: Texts of comparisons in the tool's source, for properties that accept any text.
    """
    if not schema:
        return [{}]
    # The author's own examples often have a different format.
    accepts = acceptor(schema, check_formats=False)
    inputs = (given for given in _inputs(schema, file_name, choices) if isinstance(given, dict))
    return distinct(given for given in inputs if accepts is None or accepts(given))[:_MAX_VALID]


def invalid_inputs(
    schema: Mapping[str, Any] | None,
    bases: Sequence[Input],
    source_keys: Iterable[str],
    choices: Iterable[str] = (),
) -> Iterator[Input]:
    """Yield inputs with one thing wrong at any depth.

    A key is missing, unknown, or has a value of another type.

    Args:
        schema: The tool's schema, or None if it has none.
        bases: Valid inputs. The first one is changed in every way, and the others only in some
            ways.
        source_keys: Keys that the tool's source looks up.
        choices: Texts of comparisons in its source.
    """
    base = bases[0] if bases else {}
    declared = list(dict.fromkeys([*base, *properties_of(schema or {})]))
    undeclared = [key for key in source_keys if key not in declared]
    keys = [*declared, *undeclared[: 6 if schema else 20]]
    for word in [word for word in choices if is_harmless(word)][:20]:
        for key in keys[:12]:
            # A call that works the first time may fail the second time.
            for given in ({**base, key: word}, {key: word}):
                yield from (given, given)
    yield from near_misses(base, keys)
    yield from (
        {**base, key: _HUGE} for key in keys if "expr" in key.lower() or "formula" in key.lower()
    )
    for given in bases[1:]:
        yield from (given, given)
        yield from changed_inside(given)


def distinct(values: Iterable[Any]) -> list[Any]:
    """Return the values without repetitions, where 1, 1.0 and True are different."""
    return list({fingerprint(value): value for value in values}.values())


def _inputs(schema: Mapping[str, Any], file_name: str, choices: Sequence[str]) -> Iterator[Any]:
    values, top = Values(schema, file_name), {**resolved(schema, schema), "type": "object"}
    least, full = values.plain(top, least=True), values.plain(top)
    # A default or an example may be of any type.
    if not isinstance(least, dict) or not isinstance(full, dict):
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
            yield from ({**full, name: word} for word in words[:_MAX_WORDS])
        if (
            kinds_of(part) == ["string"]
            and not {"enum", "const", "format", "pattern"} & part.keys()
        ):
            alternatives[name] += harmless
    for key in ("anyOf", "oneOf"):
        for branch in top[key] if isinstance(top.get(key), list) else ():
            yield values.plain({**top, **resolved(branch, schema), "type": "object"}, least=True)
    yield from (
        {**least, name: full[name]}
        for name in properties
        if name not in required_of(top) and name in full
    )
    # The order is breadth first, so that every property gets its turn before the list is full.
    rounds = max((len(of_property) for of_property in alternatives.values()), default=0)
    for index in range(rounds):
        for name, of_property in alternatives.items():
            for value in of_property[index : index + 1]:
                yield {**least, name: value}
                yield {**full, name: value}
