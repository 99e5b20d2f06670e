"""Reads foreign input into attrs classes whose fields declare what they accept; every problem is reported with its path.

Mount plans and the options of modules are read with it. A `Kind` says which values are accepted, what they become and what they are
in JSON Schema; `option` declares a field of a class with its kind; `read_record` reads a mapping into the fields of such a class,
and `schemas_of` describes them. The reader, the messages and the schema come from one declaration.

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
    """A short ``repr`` for messages; containers, which may hold secrets, and objects are named by their class only."""
    kind = type(value)
    if (
        value is None
        or kind in (bool, float)
        or (kind is int and isinstance(value, int) and abs(value) < 10**18)
    ):
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
            f"a timeout must be a positive, finite number of seconds, got {seconds!r:.40}; None means no limit"
        )
    return float(seconds)


def can_call(function: Any, *arguments: Any, **keywords: Any) -> bool:
    """Whether a function takes these arguments, as far as its signature tells."""
    try:
        inspect.signature(function).bind(*arguments, **keywords)
    except (TypeError, ValueError) as error:
        return isinstance(error, ValueError)  # Python knows no signature of it
    return True


def _unchanged(value: Any) -> Any:
    return value


@attrs.frozen
class Kind:
    """Which values are accepted.

    Attributes:
        expected: Completes the message ``expected …, got …``.
        accepts: Whether a value is of this kind.
        convert: Makes the value of the field from an accepted value. It may raise a `PlanError` whose paths are
            relative to the value (``$[0].name``).
        is_secret: Messages and ``repr`` do not show the value.
        schema: The values of this kind in JSON Schema, as far as it can express them.
        words: Those that are accepted, if the kind is some words: a message names the one that was probably meant.
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
            PlanError: The value is not of this kind; paths are relative to the value.
        """
        if not self.accepts(value):
            found = type(value).__name__ if self.is_secret else show(value)
            raise PlanError(
                [("$", f"expected {self.expected}, got {found}{suggestion(value, self.words)}")]
            )
        return value if self.convert is _unchanged else self.convert(value)


@attrs.frozen
class Key:
    """One key of a mapping, declared by a field of an attrs class.

    Attributes:
        key: The key itself.
        name: The field that holds the value.
        kind: Which values are accepted.
        doc: What it means, for the schema.
        aliases: Other keys with the same meaning.
        restricts: Whether a misspelling of the key is a problem, where unknown keys are allowed.
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
        kind: Which values are accepted.
        default: The value without the key, or an `attrs.Factory`.
        doc: What it means, for the schema.
        key: The key, if it is not the name of the field.
        aliases: Other keys with the same meaning.
        restricts: A misspelling of the key is a problem, because ignoring it would lift a restriction.
    """
    metadata = {_KEY: (kind, key, doc, aliases, restricts)}
    return attrs.field(default=default, metadata=metadata, repr=not kind.is_secret)


@cache
def keys_of(cls: type[attrs.AttrsInstance]) -> dict[str, Key]:
    """The keys of a class, aliases included."""
    found: dict[str, Key] = {}
    for field in attrs.fields(cls):
        if _KEY in field.metadata:
            kind, key, doc, aliases, restricts = field.metadata[_KEY]
            main = key or field.name
            found |= dict.fromkeys(
                (main, *aliases), Key(main, field.name, kind, doc, aliases, restricts)
            )
    return found


def read_value(
    kind: Kind, value: Any, path: str, problems: list[Problem], default: Any = None
) -> Any:
    """A value in its final form; the default if it is not of this kind, which is added to the problems."""
    try:
        return kind.read(value)
    except PlanError as error:
        problems += _below(path, error)
        return default


def _below(path: str, error: PlanError) -> list[Problem]:
    return [(f"{path}{inner.removeprefix('$')}", problem) for inner, problem in error.problems]


def read_record(
    keys: Mapping[str, Key],
    given: Mapping[Any, Any],
    path: str,
    problems: list[Problem],
    unknown: Callable[[Any, str], None] | None = None,
    noun: str = "key",
) -> dict[str, Any]:
    """The good values of a mapping, by the names of their fields.

    Args:
        keys: Those that are read; see `keys_of`.
        given: The mapping.
        path: Where it is.
        problems: Gets every problem.
        unknown: Called with a key that is not known and its path; without one, it is a problem.
        noun: What keys are called in messages.
    """
    values, written = dict[str, Any](), dict[str, str]()
    for name, value in given.items():
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


def read_arguments(cls: type[_C], given: Mapping[str, Any], subject: str) -> _C:
    """The arguments of a call, read into a class; None is as good as no argument.

    Raises:
        PlanError: Some cannot be used; each is named.
    """
    try:
        return cls(
            **_read_members(
                cls, {name: value for name, value in given.items() if value is not None}, "argument"
            )
        )
    except PlanError as error:
        raise PlanError(
            [(path.removeprefix("$."), text) for path, text in error.problems], subject=subject
        ) from None


def schemas_of(cls: type[attrs.AttrsInstance]) -> dict[str, dict[str, Any]]:
    """The JSON Schema of each key that is read into a class, with its default and what it means."""
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
    """A finite number.

    Args:
        least: The smallest one.
        most: The largest one.
        above: Whether it has to be larger than `least`.
        what: What the number means, with its article.
    """
    bounds = (
        [] if least is None else [f"above {least:.15g}" if above else f"of at least {least:.15g}"]
    )
    bounds += [] if most is None else [f"at most {most:.15g}"]
    limits = {"exclusiveMinimum" if above else "minimum": least, "maximum": most}
    low, high = -math.inf if least is None else least, math.inf if most is None else most
    return Kind(
        f"{what} {' and '.join(bounds)}".strip(),
        lambda value: (
            _is_finite(value) and (value > low if above else value >= low) and value <= high
        ),
        schema={
            "type": "number",
            **{name: limit for name, limit in limits.items() if limit is not None},
        },
    )


def _is_finite(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= sys.float_info.max
    )


def whole_number(least: int | None = None, most: int | None = None) -> Kind:
    """A whole number in a range."""
    kind = number(least, most, what="a whole number")
    return attrs.evolve(
        kind,
        accepts=lambda value: isinstance(value, int) and kind.accepts(value),
        schema={**kind.schema, "type": "integer"},
    )


seconds: Final = attrs.evolve(number(0, above=True), expected="a positive number of seconds")
delay: Final = attrs.evolve(number(0), expected="a number of seconds")


def optional(kind: Kind, *, null: str = "") -> Kind:
    """What another kind accepts, or null.

    Args:
        kind: The other kind.
        null: What null means, such as ``for no limit``.
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


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


text: Final = Kind("a non-empty text", _is_text, schema={"type": "string"})
any_text: Final = Kind("text", lambda value: isinstance(value, str), schema={"type": "string"})
secret: Final = attrs.evolve(any_text, is_secret=True)


def choice(*words: str) -> Kind:
    """One of some words."""
    return Kind(
        f"one of {', '.join(map(repr, words))}",
        lambda value: isinstance(value, str) and value in words,
        schema={"enum": list(words)},
        words=words,
    )


def list_of(plural: str, accepts: Callable[[Any], bool], *, least: int = 0) -> Kind:
    """A list, read as a tuple.

    Args:
        plural: What the items are, for messages.
        accepts: Whether an item is one of them.
        least: The smallest number of items.
    """
    return Kind(
        f"a list of {f'at least {least} ' if least else ''}{plural}",
        lambda value: (
            isinstance(value, list | tuple) and len(value) >= least and all(map(accepts, value))
        ),
        convert=tuple,
        schema={"type": "array"},
    )


def texts(*, least: int = 0) -> Kind:
    """A list of non-empty texts."""
    return list_of("non-empty texts", _is_text, least=least)


def choices(*words: str) -> Kind:
    """A list of some words."""
    return list_of(
        ", ".join(map(repr, words)), lambda item: isinstance(item, str) and item in words
    )


def list_each(plural: str, kind: Kind, *, least: int = 0) -> Kind:
    """A list whose items are read one by one into a tuple; each problem has the path of its item.

    Args:
        plural: What the items are, for messages.
        kind: Which items are accepted.
        least: The smallest number of items.
    """

    def convert(items: Any) -> tuple[Any, ...]:
        return tuple(_each(kind, ((f"$[{index}]", item) for index, item in enumerate(items))))

    return attrs.evolve(list_of(plural, lambda item: True, least=least), convert=convert)


def mapping_each(expected: str, kind: Kind) -> Kind:
    """An object whose values are read one by one; each problem has the path of its value."""

    def convert(members: Any) -> dict[str, Any]:
        pairs = ((format_path([name], "$"), value) for name, value in members.items())
        return dict(zip(members, _each(kind, pairs), strict=True))

    schema = {"type": "object", "additionalProperties": kind.schema}
    return Kind(expected, _is_mapping, convert, schema=schema)


def _each(kind: Kind, items: Iterator[tuple[str, Any]]) -> list[Any]:
    problems: list[Problem] = []
    read = [read_value(kind, item, path, problems) for path, item in items]
    if problems:
        raise PlanError(problems)
    return read


def object_with(kinds: Mapping[str, Kind]) -> Kind:
    """An object with some of these members; an unknown member is a problem."""
    cls = attrs.make_class("Members", {name: option(kind, None) for name, kind in kinds.items()})
    return attrs.evolve(record(cls), convert=lambda members: _read_members(cls, members))


def record(cls: type[attrs.AttrsInstance], expected: str = "", *, is_open: bool = False) -> Kind:
    """An object that is read into an attrs class; a missing member that has no default is a problem.

    Args:
        cls: The class.
        expected: As of a `Kind`.
        is_open: Unknown members are ignored; otherwise one is a problem.
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
            problems.append(
                (format_path([key.key], "$"), f"is missing; expected {key.kind.expected}")
            )
    if problems:
        raise PlanError(problems)
    return values


def _required(cls: type[attrs.AttrsInstance]) -> list[Key]:
    fields = attrs.fields_dict(cls)
    return [
        key
        for at, key in keys_of(cls).items()
        if at == key.key and fields[key.name].default is attrs.NOTHING
    ]


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


mapping: Final = Kind("an object", _is_mapping, convert=dict, schema={"type": "object"})


def mapping_of_secrets(
    what: str,
    accepts_name: Callable[[str], bool] = bool,
    accepts_text: Callable[[str], bool] = lambda text: True,
) -> Kind:
    """An object of texts that messages do not show."""
    return Kind(
        what,
        lambda value: (
            _is_mapping(value)
            and all(
                accepts_name(name) and isinstance(item, str) and accepts_text(item)
                for name, item in value.items()
            )
        ),
        convert=dict,
        is_secret=True,
    )


def _is_path(value: Any) -> bool:
    return (
        isinstance(value, str | os.PathLike) and bool(os.fspath(value)) and "\0" not in str(value)
    )


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
    if "@" in value.split("/")[2]:  # the value is not shown: logs would keep the password
        raise PlanError([("$", "expected a URL without a user name and password")])
    return value


url: Final = Kind(
    "a URL that begins with http:// or https://",
    lambda value: isinstance(value, str) and value.startswith(("http://", "https://")),
    _without_credentials,
)
