"""Read foreign input into attrs classes, with a path for every problem.

A class declares its fields with `option` and a `Kind`. The reader, the messages and the JSON Schema
are derived from these declarations. Mount plans and options of modules are read with it.

Example::

    @attrs.frozen(kw_only=True)
    class Options:
        timeout: float = option(seconds, 30.0, "How long one search may take.")
        tools: tuple[str, ...] = option(choices("grep", "glob"), ("grep", "glob"))
"""

from __future__ import annotations

import inspect
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs

from amplifier.errors import PlanError, Problem

from .json import format_path
from .spelling import suggestion

_KEY: Final = "amplifier.key"
_C = TypeVar("_C", bound=attrs.AttrsInstance)


def show(value: object) -> str:
    """Return a short ``repr`` for messages.

    Containers, which may have secrets, and other objects are named by their class only.
    """
    kind = type(value)
    if value is None or kind in (bool, float):
        return repr(value)
    if kind is int and isinstance(value, int) and abs(value) < 10**18:
        return repr(value)
    if kind is str:
        text = ascii(value)
        return text if len(text) <= 80 else f"{text[:77]}..."
    return f"{'an' if kind.__name__[:1].lower() in 'aeiou' else 'a'} {kind.__name__}"


def check_timeout(seconds: object) -> float | None:
    """Return a timeout of the API as a float, or None for no limit.

    Raises:
        TypeError: It isn't a number.
        ValueError: It is zero, negative, infinite or NaN.
    """
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"a timeout must be a number of seconds or None, got {seconds!r}")
    # An int can be larger than any float.
    if not 0 < seconds <= sys.float_info.max:
        raise ValueError(
            f"a timeout must be a positive, finite number of seconds, got {seconds!r:.40}; "
            "None means no limit"
        )
    return float(seconds)


def can_call(function: Any, *arguments: Any, **keywords: Any) -> bool:
    """Return whether a function accepts arguments. One without a signature is assumed to."""
    try:
        inspect.signature(function).bind(*arguments, **keywords)
    except TypeError:
        return False
    # The function has no signature that Python can read.
    except ValueError:
        return True
    return True


def _unchanged(value: Any) -> Any:
    return value


@attrs.frozen
class Kind:
    """A set of accepted values, with their conversion and JSON Schema.

    Attributes:
        expected: Description for the message ``expected …, got …``.
        accepts: Function that returns whether a value is accepted.
        convert: Function from an accepted value to the value of the field. It may raise a
            `PlanError` with paths relative to the value (``$[0].name``).
        is_secret: Whether messages and ``repr`` hide the value.
        schema: JSON Schema of the values, as far as it can express them.
        words: The accepted words, for suggestions in messages. Empty for other values.
    """

    expected: str
    accepts: Callable[[Any], bool]
    convert: Callable[[Any], Any] = _unchanged
    is_secret: bool = False
    schema: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True)
    words: tuple[str, ...] = attrs.field(default=(), kw_only=True)

    def read(self, value: Any) -> Any:
        """Check and convert a value.

        Raises:
            PlanError: The value is not of this kind. Paths are relative to the value.
        """
        if not self.accepts(value):
            shown = type(value).__name__ if self.is_secret else show(value)
            problem = f"expected {self.expected}, got {shown}{suggestion(value, self.words)}"
            raise PlanError([("$", problem)])
        return value if self.convert is _unchanged else self.convert(value)


@attrs.frozen
class Key:
    """One key of a mapping, declared by a field of an attrs class.

    Attributes:
        key: The key itself.
        name: Name of the field for the value.
        kind: The accepted values.
        doc: Description for the schema.
        aliases: Other keys with the same meaning.
        restricts: Whether a misspelling of the key is a problem where unknown keys are allowed.
    """

    key: str
    name: str
    kind: Kind
    doc: str
    aliases: tuple[str, ...]
    restricts: bool


def option(
    kind: Kind,
    default: Any = attrs.NOTHING,
    doc: str = "",
    *,
    key: str = "",
    aliases: tuple[str, ...] = (),
    restricts: bool = False,
) -> Any:
    """Declare a field of an attrs class that is read from a mapping.

    Args:
        kind: The accepted values.
        default: The value without the key, or an `attrs.Factory`.
        doc: Description for the schema.
        key: The key, if it is not the name of the field.
        aliases: Other keys with the same meaning.
        restricts: Whether a misspelling of the key is a problem where unknown keys are allowed,
            because ignoring it would lift a restriction.
    """
    metadata = {_KEY: (kind, key, doc, aliases, restricts)}
    return attrs.field(default=default, metadata=metadata, repr=not kind.is_secret)


@cache
def keys_of(cls: type[attrs.AttrsInstance]) -> dict[str, Key]:
    """Return the keys of a class by name, including aliases."""
    keys: dict[str, Key] = {}
    for field in attrs.fields(cls):
        if _KEY in field.metadata:
            kind, name, doc, aliases, restricts = field.metadata[_KEY]
            key = Key(name or field.name, field.name, kind, doc, aliases, restricts)
            keys |= dict.fromkeys((key.key, *aliases), key)
    return keys


def read_value(
    kind: Kind, value: Any, path: str, problems: list[Problem], default: Any = None
) -> Any:
    """Return the converted value. If it is not accepted, add the problem and return the default."""
    try:
        return kind.read(value)
    except PlanError as error:
        problems += _below(path, error)
        return default


def _below(path: str, error: PlanError) -> list[Problem]:
    return [(f"{path}{inner.removeprefix('$')}", problem) for inner, problem in error.problems]


def read_record(
    keys: Mapping[str, Key],
    record: Mapping[Any, Any],
    path: str,
    problems: list[Problem],
    unknown: Callable[[Any, str], None] | None = None,
    noun: str = "key",
) -> dict[str, Any]:
    """Return the accepted values of a mapping, by the names of their fields.

    Args:
        keys: The known keys, as from `keys_of`.
        record: The mapping.
        path: Path of the mapping.
        problems: List to which problems are added.
        unknown: Function of an unknown key and its path. Without it, an unknown key is a problem.
        noun: Noun for keys in messages.
    """
    values, written = dict[str, Any](), dict[str, str]()
    for name, value in record.items():
        key = keys.get(name)
        if key is not None and key.key not in written:
            written[key.key] = name
            try:
                values[key.name] = key.kind.read(value)
            except PlanError as error:
                problems += _below(format_path([name], path), error)
            continue
        where = format_path([name], path)
        if key is not None:
            first = format_path([written[key.key]], path)
            problems.append((where, f"has the same meaning as {first}; expected one of the two"))
        elif unknown is not None:
            unknown(name, where)
        else:
            known = f"; known are {', '.join(keys)}"
            problems.append((where, f"unknown {noun}{suggestion(name, keys) or known}"))
    return values


def read_arguments(cls: type[_C], arguments: Mapping[str, Any], subject: str) -> _C:
    """Read the arguments of a call into a class. None means that an argument is missing.

    Raises:
        PlanError: Arguments cannot be used. The error lists all of them.
    """
    present = {name: value for name, value in arguments.items() if value is not None}
    try:
        return cls(**_read_members(cls, present, "argument"))
    except PlanError as error:
        problems = [(path.removeprefix("$."), text) for path, text in error.problems]
        raise PlanError(problems, subject=subject) from None


def schemas_of(cls: type[attrs.AttrsInstance]) -> dict[str, dict[str, Any]]:
    """Return the JSON Schemas of all keys of a class, with defaults and descriptions."""
    defaults = {field.name: field.default for field in attrs.fields(cls)}
    schemas: dict[str, dict[str, Any]] = {}
    for key in keys_of(cls).values():
        schema = schemas[key.key] = {**key.kind.schema}
        default: Any = defaults[key.name]
        if default is None or isinstance(default, str | int | float):
            schema["default"] = default
        if key.doc:
            schema["description"] = key.doc
    return schemas


# ── kinds of values ──────────────────────────────────────────────────────────────────────────────

anything: Final = Kind("anything", lambda value: True)
flag: Final = Kind(
    "true or false", lambda value: isinstance(value, bool), schema={"type": "boolean"}
)


def number(
    least: float | None = None,
    most: float | None = None,
    *,
    above: bool = False,
    what: str = "a number",
) -> Kind:
    """Accept a finite number.

    Args:
        least: The minimum, or None.
        most: The maximum, or None.
        above: Whether the number has to be larger than `least`.
        what: Noun for the number in messages, with its article.
    """
    bounds = []
    schema: dict[str, Any] = {"type": "number"}
    if least is not None:
        bounds.append(f"above {least:.15g}" if above else f"of at least {least:.15g}")
        schema["exclusiveMinimum" if above else "minimum"] = least
    if most is not None:
        bounds.append(f"at most {most:.15g}")
        schema["maximum"] = most
    low, high = -math.inf if least is None else least, math.inf if most is None else most

    def accepts(value: Any) -> bool:
        return _is_finite(value) and (value > low if above else value >= low) and value <= high

    return Kind(f"{what} {' and '.join(bounds)}".strip(), accepts, schema=schema)


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def whole_number(least: int | None = None, most: int | None = None) -> Kind:
    """Accept a whole number in a range."""
    kind = number(least, most, what="a whole number")
    return attrs.evolve(
        kind,
        accepts=lambda value: isinstance(value, int) and kind.accepts(value),
        schema={**kind.schema, "type": "integer"},
    )


seconds: Final = attrs.evolve(number(0, above=True), expected="a positive number of seconds")
delay: Final = attrs.evolve(number(0), expected="a number of seconds")


def optional(kind: Kind, *, null: str = "") -> Kind:
    """Accept the values of another kind, or null.

    Args:
        kind: The other kind.
        null: Meaning of null for messages, such as ``for no limit``.
    """
    schema = dict(kind.schema)
    if "type" in schema:
        schema["type"] = [schema["type"], "null"]
    elif "enum" in schema:
        schema["enum"] = [*schema["enum"], None]
    elif "anyOf" in schema:
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]
    return attrs.evolve(
        kind,
        expected=f"{kind.expected}, or null {null}".strip(),
        accepts=lambda value: value is None or kind.accepts(value),
        convert=lambda value: None if value is None else kind.convert(value),
        schema=schema,
    )


no_limit_or_seconds: Final = optional(seconds, null="for no limit")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


text: Final = Kind("a non-empty text", _is_text, schema={"type": "string"})
any_text: Final = Kind("text", lambda value: isinstance(value, str), schema={"type": "string"})
secret: Final = attrs.evolve(any_text, is_secret=True)


def choice(*words: str) -> Kind:
    """Accept one of some words."""
    return Kind(
        f"one of {', '.join(map(repr, words))}",
        lambda value: isinstance(value, str) and value in words,
        schema={"enum": list(words)},
        words=words,
    )


def list_of(plural: str, accepts: Callable[[Any], bool], *, least: int = 0) -> Kind:
    """Accept a list, and convert it to a tuple.

    Args:
        plural: Noun for the items in messages.
        accepts: Function that returns whether an item is accepted.
        least: Minimum number of items.
    """

    def accepts_list(value: object) -> bool:
        if not isinstance(value, list | tuple) or len(value) < least:
            return False
        return all(map(accepts, value))

    expected = f"a list of {f'at least {least} ' if least else ''}{plural}"
    return Kind(expected, accepts_list, convert=tuple, schema={"type": "array"})


def texts(*, least: int = 0) -> Kind:
    """Accept a list of non-empty texts."""
    return list_of("non-empty texts", _is_text, least=least)


def choices(*words: str) -> Kind:
    """Accept a list of some words."""
    plural = ", ".join(map(repr, words))
    return list_of(plural, lambda item: isinstance(item, str) and item in words)


def list_each(plural: str, kind: Kind, *, least: int = 0) -> Kind:
    """Accept a list whose items are converted separately. Problems have the paths of the items.

    Args:
        plural: Noun for the items in messages.
        kind: The accepted items.
        least: Minimum number of items.
    """

    def convert(items: Any) -> tuple[Any, ...]:
        return tuple(_read_each(kind, ((f"$[{index}]", item) for index, item in enumerate(items))))

    return attrs.evolve(list_of(plural, lambda item: True, least=least), convert=convert)


def mapping_each(expected: str, kind: Kind) -> Kind:
    """Accept an object whose values are converted separately. Problems have their paths."""

    def convert(members: Any) -> dict[str, Any]:
        pairs = ((format_path([name], "$"), value) for name, value in members.items())
        return dict(zip(members, _read_each(kind, pairs), strict=True))

    schema = {"type": "object", "additionalProperties": kind.schema}
    return Kind(expected, _is_mapping, convert, schema=schema)


def _read_each(kind: Kind, items: Iterator[tuple[str, Any]]) -> list[Any]:
    problems: list[Problem] = []
    values = [read_value(kind, item, path, problems) for path, item in items]
    if problems:
        raise PlanError(problems)
    return values


def object_with(kinds: Mapping[str, Kind]) -> Kind:
    """Accept an object with some of these members. An unknown member is a problem."""
    cls = attrs.make_class("Members", {name: option(kind, None) for name, kind in kinds.items()})
    return attrs.evolve(record(cls), convert=lambda members: _read_members(cls, members))


def record(cls: type[attrs.AttrsInstance], expected: str = "", *, is_open: bool = False) -> Kind:
    """Accept an object, and convert it to an attrs class. Members without defaults are required.

    Args:
        cls: The class.
        expected: Description of the object for messages.
        is_open: Whether unknown members are ignored. If not, they are problems.
    """
    required = [key.key for key in _required(cls)]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": schemas_of(cls),
        "additionalProperties": is_open,
    }
    return Kind(
        expected or f"an object with {', '.join(keys_of(cls))}",
        lambda value: isinstance(value, Mapping),
        lambda members: cls(**_read_members(cls, members, is_open=is_open)),
        schema={**schema, "required": required} if required else schema,
    )


def _read_members(
    cls: type[attrs.AttrsInstance],
    members: Mapping[Any, Any],
    noun: str = "key",
    *,
    is_open: bool = False,
) -> dict[str, Any]:
    problems: list[Problem] = []
    ignore = (lambda _name, _path: None) if is_open else None
    values = read_record(keys_of(cls), members, "$", problems, ignore, noun)
    for key in _required(cls):
        if members.keys().isdisjoint((key.key, *key.aliases)):
            problem = f"is missing; expected {key.kind.expected}"
            problems.append((format_path([key.key], "$"), problem))
    if problems:
        raise PlanError(problems)
    return values


def _required(cls: type[attrs.AttrsInstance]) -> list[Key]:
    fields = attrs.fields_dict(cls)
    keys = [key for name, key in keys_of(cls).items() if name == key.key]
    return [key for key in keys if fields[key.name].default is attrs.NOTHING]


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


mapping: Final = Kind("an object", _is_mapping, convert=dict, schema={"type": "object"})


def mapping_of_secrets(
    what: str,
    accepts_name: Callable[[str], bool] = bool,
    accepts_text: Callable[[str], bool] = lambda text: True,
) -> Kind:
    """Accept an object of texts that messages do not show.

    Args:
        what: Description of the object for messages.
        accepts_name: Function that returns whether a name is accepted.
        accepts_text: Function that returns whether a text is accepted.
    """

    def accepts(value: Any) -> bool:
        return _is_mapping(value) and all(
            accepts_name(name) and isinstance(item, str) and accepts_text(item)
            for name, item in value.items()
        )

    return Kind(what, accepts, convert=dict, is_secret=True)


def _is_path(value: object) -> bool:
    if not isinstance(value, str | os.PathLike):
        return False
    return bool(os.fspath(value)) and "\0" not in str(value)


def _expanded(value: Any) -> Path:
    return Path(value).expanduser()


directory_name: Final = Kind("the name of a folder", _is_path, _expanded)
file_name: Final = Kind("the name of a file", _is_path, _expanded)
existing_directory: Final = Kind(
    "an existing directory", lambda value: _is_path(value) and _expanded(value).is_dir(), _expanded
)
existing_file: Final = Kind(
    "an existing file", lambda value: _is_path(value) and _expanded(value).is_file(), _expanded
)


def _without_credentials(value: str) -> str:
    # The message does not show the value, because logs would keep the password.
    if "@" in value.split("/")[2]:
        raise PlanError([("$", "expected a URL without a user name and password")])
    return value


url: Final = Kind(
    "a URL that begins with http:// or https://",
    lambda value: isinstance(value, str) and value.startswith(("http://", "https://")),
    _without_credentials,
)
