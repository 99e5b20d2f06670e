"""The one cattrs converter, which reads values into models and writes models as dicts."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
import operator
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal, TypeAlias, TypeGuard, Union

import attrs
from cattrs import BaseValidationError, Converter
from cattrs.cols import homogenous_tuple_structure_factory, list_structure_factory
from cattrs.errors import (
    AttributeValidationNote,
    ClassValidationError,
    IterableValidationError,
    StructureHandlerNotFoundError,
)
from cattrs.fns import identity
from cattrs.gen import (
    make_dict_structure_fn,
    make_dict_structure_fn_from_attrs,
    make_dict_unstructure_fn_from_attrs,
    override,
)

from amplifier._internal.json import JSON, format_path, join_paths
from amplifier._internal.json.values import MAX_DIGITS, aware, short, type_name
from amplifier.errors import ModelError, Problem

from .fields import Record, declared_fields, keeps_unknown, per_class

Hook: TypeAlias = Callable[[Any, Any], Any]
KeywordReader: TypeAlias = Callable[[Mapping[str, object], None], dict[str, Any]]
Writer: TypeAlias = Callable[[Any], JSON]

# ── converter ────────────────────────────────────────────────────────────────────────────────────


# A hook reads the values of one type, and cattrs finds it by the declared type of a field. Numbers
# and words are read leniently, as the published models read them, and text is read strictly. A
# nested dict becomes a model, and an instance is kept. A hook raises ValueError with one problem,
# or ModelError with several. cattrs collects them with the names of the fields, and each model
# turns them into one ModelError with paths.
#
# A written model is a plain dict. `_json._values` decides whether JSON can hold its values.
# `amplifier._internal.reading` reads foreign input that is not a model.
@functools.cache
def converter() -> Converter:
    """Return the converter, which is configured on first use."""
    new = Converter(structure_fallback_factory=_instance_hook)
    for kind, hook in _LEAF_HOOKS.items():
        new.register_structure_hook(kind, hook)
    read_with = new.register_structure_hook_factory
    read_with(lambda cls: _origin(cls) is Literal, _literal_hook)
    read_with(_is_list, lambda cls: _list_hook(cls, new))
    read_with(lambda cls: _origin(cls) is dict, lambda cls: _dict_hook(cls, new))
    read_with(_is_class, lambda cls: _class_hook(cls, make_dict_structure_fn(cls, new)))
    read_with(_is_model, lambda cls: _class_hook(cls, _read_model))
    read_with(_is_union, lambda cls: _union_hook(cls, new))
    new.register_unstructure_hook_factory(_is_model, lambda cls: _model_writer(cls, _write_value))
    new.register_unstructure_hook(Decimal, _write_decimal)
    new.register_unstructure_hook(datetime, lambda moment: aware(moment).isoformat())
    return new


def structure(cls: Any, value: object) -> Any:
    """Read a value into a class.

    The class is a model, or a type made of models such as ``list[Message]`` or a union. An instance
    of the class is kept, and so is every value of the type `Any`. Use `from_dict` for input that
    must be JSON.

    Raises:
        ModelError: The value does not fit. Every problem is listed.
    """
    try:
        return converter().structure(value, cls)
    except (
        ValueError,
        BaseValidationError,
        StructureHandlerNotFoundError,
        RecursionError,
    ) as error:
        raise ModelError(_problems_of(error), subject=_class_text(cls)) from None


def keyword_reader(cls: type[Record]) -> KeywordReader:
    """Return a function that coerces members to the keywords of `__attrs_init__`.

    It leaves unknown members out. It raises the error of cattrs, for `model_error` to convert.
    """
    fields = declared_fields(cls)
    overrides: dict[str, Any] = {}
    for field in fields:
        check, raw, before = map(field.metadata.get, ("check", "raw", "before"))
        if check is not None:
            read = None if raw else converter().get_structure_hook(field.type)
            overrides[field.name] = override(
                struct_hook=_checked_hook(read, check, before=bool(before))
            )
    reader: Hook = make_dict_structure_fn_from_attrs(list(fields), dict, converter(), **overrides)
    return reader


def _checked_hook(read: Hook | None, check: Callable[[object], object], *, before: bool) -> Hook:
    if read is None:
        return lambda value, _: check(value)
    if before:
        return lambda value, cls: read(check(value), cls)
    return lambda value, cls: check(read(value, cls))


def model_error(cls: type, error: BaseException) -> ModelError:
    """Convert an error of cattrs to one error with a path for each problem."""
    return ModelError(_problems_of(error), subject=cls.__name__)


# ── leaves ───────────────────────────────────────────────────────────────────────────────────────

# The forms of an integer in text that the published models accept: "5", " 5 ", "5.0", "1_000".
_INTEGER_TEXT: Final = re.compile(r"\s*([+-]?\d+(?:_\d+)*)(?:\.0+)?\s*")
_TRUE_WORDS: Final = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE_WORDS: Final = frozenset({"0", "false", "f", "no", "n", "off"})
_DATETIME: Final = "datetime or its ISO 8601 text"


def _mismatch(expected: str, value: object) -> ValueError:
    return ValueError(f"expected {expected}, got {type_name(value)}")


# The hook of a type also gets its subclasses, such as an IntEnum as the type of a field.
def _read_str(value: Any, cls: type[str]) -> str:
    """Read text. A number is refused rather than converted."""
    if value.__class__ is cls:
        return value
    if cls is not str:
        return cls(value)
    if isinstance(value, str):
        return value
    raise _mismatch("str", value)


def _read_int(value: Any, cls: type[int]) -> int:
    """Read a whole number, a bool, an integral float, a numeric text or an `__index__`."""
    if value.__class__ is cls:
        return value
    if cls is not int:
        return cls(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        match = _INTEGER_TEXT.fullmatch(value) if len(value) <= MAX_DIGITS else None
        if match is None:
            raise ValueError(f"expected int, got the str {short(value)}")
        return int(match[1])
    if isinstance(value, (float, Decimal)):
        # A Decimal beyond the floats is not finite here. As an int, 1E+999999999 would have a
        # billion digits.
        if not math.isfinite(value) or value != int(value):
            raise ValueError(f"expected int, got {short(value)}")
        return int(value)
    try:
        return operator.index(value)
    except TypeError:
        raise _mismatch("int", value) from None


def _read_float(value: Any, cls: type[float]) -> float:
    """Read a number, a bool, a numeric text or a `__float__`."""
    if value.__class__ is cls:
        return value
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"expected float, got the str {short(value)}")
        return number
    if not hasattr(type(value), "__float__") and not hasattr(type(value), "__index__"):
        raise _mismatch("float", value)
    try:
        return float(value)
    except OverflowError:
        raise ValueError("expected float, got an int too large for one") from None
    except (TypeError, ValueError):
        raise _mismatch("float", value) from None


def _read_bool(value: object, _: object) -> bool:
    """Read true or false, 0 or 1, or one of the usual words."""
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, float)) and value in (0, 1):
        return bool(value)
    if isinstance(value, str):
        word = value.lower() if len(value) <= 5 else ""
        if word not in _TRUE_WORDS and word not in _FALSE_WORDS:
            raise ValueError(f"expected bool, got the str {short(value)}")
        return word in _TRUE_WORDS
    raise _mismatch("bool", value)


def _read_decimal(value: object, _: object) -> Decimal:
    """Read an amount of money. A float is refused because it may have lost the exact amount."""
    if isinstance(value, float):
        problem = f"must be Decimal, not float (got {short(value)})"
        raise ValueError(f"{problem}; write it as a str or a Decimal")
    if isinstance(value, bool) or not isinstance(value, (Decimal, int, str)):
        raise _mismatch("Decimal", value)
    try:
        amount = value if isinstance(value, Decimal) else Decimal(value)
    except (InvalidOperation, ValueError):
        raise ValueError(f"expected Decimal, got the str {short(value)}") from None
    if not amount.is_finite():
        raise ValueError(f"expected a finite Decimal, got {short(amount)}")
    return amount


def _read_datetime(value: object, _: object) -> datetime:
    """Read a moment. Without a time zone it is local time, as in the published models."""
    moment = value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(f"expected {_DATETIME}, got {short(value)}") from None
    if not isinstance(moment, datetime):
        raise _mismatch(_DATETIME, value)
    try:
        return aware(moment)
    except (OverflowError, OSError, ValueError):
        raise ValueError(f"{short(value)} is too far away to have a time zone") from None


_LEAF_HOOKS: Final[dict[type, Hook]] = {
    str: _read_str,
    bool: _read_bool,
    int: _read_int,
    float: _read_float,
    Decimal: _read_decimal,
    datetime: _read_datetime,
}


def _literal_hook(literal: object) -> Hook:
    """Return a hook for one of several constants. A member of a str enum is stored as its text."""
    choices = {choice: choice for choice in typing.get_args(literal)}
    expected = _expected(literal)

    def read(value: object, _: object) -> object:
        if value.__class__ is str and value in choices:
            return value
        if isinstance(value, str):
            if str.__str__(value) in choices:
                return choices[str.__str__(value)]
            raise ValueError(f"expected {expected}, got {short(value)}")
        for choice in choices:
            if type(choice) is type(value) and choice == value:
                return choice
        raise _mismatch(expected, value)

    return read


# ── containers ───────────────────────────────────────────────────────────────────────────────────

_LIST_LIKE: Final = (list, tuple, set, frozenset, collections.deque)


def _list_hook(annotation: Any, converter: Converter) -> Hook:
    """Return a hook that copies a list, or a tuple of any length, and coerces the members."""
    is_list = _origin(annotation) is list
    factory = list_structure_factory if is_list else homogenous_tuple_structure_factory
    read_members: Hook = factory(annotation, converter)

    def read(value: object, cls: object) -> object:
        if value.__class__ is not list and not isinstance(value, _LIST_LIKE):
            raise _mismatch("list", value)
        return read_members(value, cls)

    return read


def _dict_hook(annotation: object, converter: Converter) -> Hook:
    """Return a hook that copies a mapping with str keys and coerces the values.

    Values of the type `Any` are shared.
    """
    member_type = (*typing.get_args(annotation), Any, Any)[1]
    read_member: Hook = converter.get_structure_hook(member_type)

    def read(value: object, _: object) -> dict[str, object]:
        if not isinstance(value, (dict, Mapping)):
            raise _mismatch("dict", value)
        if member_type is Any:
            return dict(value)
        members: dict[str, object] = {}
        problems: list[Problem] = []
        for key, member in value.items():
            if not isinstance(key, str):
                found = f"the {type_name(key)} key {short(key)}"
                problems.append(("", f"expected str keys, got {found}"))
                continue
            try:
                members[key] = read_member(member, member_type)
            except (ValueError, BaseValidationError) as error:
                problems += _problems_below(key, error)
        if problems:
            raise ModelError(problems, subject="dict")
        return members

    return read


# ── classes ──────────────────────────────────────────────────────────────────────────────────────


def _class_hook(cls: type, read_members: Hook) -> Hook:
    """Return a hook that keeps an instance of a class and builds one from a mapping.

    The class is a model, or an attrs class or a dataclass in a third-party model.
    """
    expected = _expected(cls)

    def read(value: object, _: object) -> object:
        if value.__class__ is not dict:
            if isinstance(value, cls):
                return value
            if not isinstance(value, Mapping):
                raise _mismatch(expected, value)
        return read_members(value, cls)

    return read


def _read_model(members: Mapping[str, object], cls: type[Record]) -> Record:
    instance = cls.__new__(cls)
    try:
        instance._fill(members)
    except ModelError:
        if all(isinstance(key, str) for key in members):
            raise
        raise ValueError(f"expected str keys for {cls.__name__}") from None
    return instance


def _instance_hook(cls: object) -> Hook:
    """Return the hook for a type that has no other. It keeps instances of a class.

    A type that is not a class is not checked.
    """
    if not isinstance(cls, type):
        return lambda value, _: value

    def read(value: object, _: object) -> object:
        if isinstance(value, cls):
            return value
        raise _mismatch(cls.__name__, value)

    return read


# ── unions ───────────────────────────────────────────────────────────────────────────────────────


def _union_hook(union: object, converter: Converter) -> Hook:
    """Return a hook for a union.

    None is kept where the union has it. Models are chosen by their `type`, and otherwise the first
    type that accepts this kind of value.
    """
    members = [member for member in typing.get_args(union) if member is not types.NoneType]
    if Any in members:
        return lambda value, _: value
    inner = _member_hook(members, converter)
    if len(members) == len(typing.get_args(union)):
        return inner
    only = members[0] if len(members) == 1 else union
    return lambda value, _: None if value is None else inner(value, only)


def _member_hook(members: list[Any], converter: Converter) -> Hook:
    if len(members) == 1:
        hook: Hook = converter.get_structure_hook(members[0])
        return hook
    models = list(filter(_is_model, members))
    if len(models) == len(members):
        if all(map(_has_type_field, models)):
            return _tagged_hook(*tags_of(models), converter)
        return lambda value, _: value
    read_with = converter.get_structure_hook
    options = [(_accepted_types(member), member, read_with(member)) for member in members]
    exact = {member: hook for kinds, member, hook in options if member in kinds}
    expected = " or ".join(map(_expected, members))

    def read(value: object, _: object) -> object:
        cls = value.__class__
        if cls in exact:
            return exact[cls](value, cls)
        for kinds, member, hook in options:
            # A bool is an int to isinstance(), but not a number in a union.
            is_bool_as_number = isinstance(value, bool) and member in (int, float)
            if isinstance(value, kinds) and not is_bool_as_number:
                return hook(value, member)
        raise _mismatch(expected, value)

    return read


def _accepted_types(member: object) -> tuple[type, ...]:
    """Return the types of the values that a member of a union accepts."""
    origin = _origin(member)
    if origin is Literal:
        return (str,)
    if origin in (int, float):
        return (int, float)
    if origin in (list, tuple):
        return _LIST_LIKE
    if origin is dict:
        return (Mapping,)
    if not isinstance(origin, type):
        return (object,)
    return (origin, Mapping) if _is_model(origin) or _is_class(origin) else (origin,)


def _has_type_field(cls: type[Record]) -> bool:
    return "type" in (field.name for field in declared_fields(cls))


def tags_of(
    classes: Iterable[type[Record]],
) -> tuple[dict[str, type[Record]], type[Record] | None]:
    """Return the models of a union by their `type`, and the model for every other type or None."""
    by_tag: dict[str, type[Record]] = {}
    fallback: type[Record] | None = None
    for cls in classes:
        tag = next((field.type for field in declared_fields(cls) if field.name == "type"), None)
        if typing.get_origin(tag) is Literal:
            by_tag.update(dict.fromkeys(typing.get_args(tag), cls))
        elif fallback is None:
            fallback = cls
    return by_tag, fallback


def _tagged_hook(
    by_tag: dict[str, type[Record]],
    fallback: type[Record] | None,
    converter: Converter,
) -> Hook:
    """Return a hook that chooses a model by the `type` of a mapping.

    An unknown type is read by `fallback`, which keeps everything. Without one it is a problem.
    """
    classes = (*by_tag.values(), *([] if fallback is None else [fallback]))
    hooks = {tag: converter.get_structure_hook(cls) for tag, cls in by_tag.items()}
    fallback_hook = None if fallback is None else converter.get_structure_hook(fallback)
    expected = "a dict with a type, or one of " + ", ".join(cls.__name__ for cls in classes)

    def read(value: object, _: object) -> object:
        if not isinstance(value, dict):
            if isinstance(value, classes):
                return value
            if not isinstance(value, Mapping):
                raise _mismatch(expected, value)
        tag = value.get("type")
        hook = hooks.get(tag, fallback_hook) if isinstance(tag, str) else None
        if hook is not None:
            return hook(value, None)
        problem = "required, but missing"
        if isinstance(tag, str):
            problem = f"expected one of {', '.join(map(repr, by_tag))}, got {short(tag)}"
        elif "type" in value:
            problem = f"expected str, got {type_name(tag)}"
        raise ModelError([("type", problem)], subject="block")

    return read


# ── problems ─────────────────────────────────────────────────────────────────────────────────────


def _problems_of(error: BaseException) -> list[Problem]:
    """Return the problems that cattrs and the hooks report, with their paths."""
    if isinstance(error, (ClassValidationError, IterableValidationError)):
        placed, unplaced = error.group_exceptions()
        problems: list[Problem] = []
        for inner, note in placed:
            name = note.name if isinstance(note, AttributeValidationNote) else note.index
            if isinstance(inner, KeyError):
                problems.append((format_path([name]), "required, but missing"))
            else:
                problems += _problems_below(name, inner)
        return problems + [problem for inner in unplaced for problem in _problems_of(inner)]
    if isinstance(error, ModelError):
        return error.problems
    if isinstance(error, RecursionError):
        return [("", "nested too deeply")]
    return [("", str(error) or type(error).__name__)]


def _problems_below(name: object, error: BaseException) -> list[Problem]:
    """Return the problems of a member with the path from its container."""
    outer = format_path([name])
    return [(join_paths(outer, path), problem) for path, problem in _problems_of(error)]


def _expected(annotation: object) -> str:
    """Return the description of a type in the text of a problem."""
    origin = typing.get_origin(annotation)
    if origin is Literal:
        choices = typing.get_args(annotation)
        listed = ", ".join(map(repr, choices))
        return listed if len(choices) == 1 else f"one of {listed}"
    if annotation is datetime:
        return _DATETIME
    name = _class_text(origin or annotation)
    return f"{name} or dict" if _is_model(annotation) or _is_class(annotation) else name


def _class_text(cls: object) -> str:
    """Return the name of a class, or the text of a type made of classes."""
    return str(getattr(cls, "__name__", cls)) if typing.get_origin(cls) is None else str(cls)


# ── writing ──────────────────────────────────────────────────────────────────────────────────────


def members_of(instance: object) -> JSON:
    """Return the members of an instance of an attrs class or a dataclass.

    The members of a model are not converted.
    """
    if isinstance(instance, Record):
        return _member_getter(type(instance))(instance)
    return converter().unstructure(instance)


def _model_writer(cls: type[Record], write_value: Writer = identity) -> Writer:
    """Return a function that writes a model as a dict of declared fields, then unknown members.

    A field with the default None is left out when it is None. A field that can hold only one
    constant is written as that constant, because the class decides. Free-form values are not
    converted.

    Args:
        cls: The class of the instance.
        write_value: Converts the values of fields with a type that JSON doesn't have.
    """
    fields = declared_fields(cls)
    declared = frozenset(field.name for field in fields)
    hooks = {field.name: _write_hook(field.type, write_value) for field in fields}
    # cattrs would write optional fields last, and compare their values with the default, which may
    # run foreign code. So cattrs writes the fields before the first optional one, and this function
    # the others.
    always = list(itertools.takewhile(lambda field: field.default is not None, fields))
    overrides: Any = {name: override(unstruct_hook=hook) for name, hook in hooks.items()}
    write_always = make_dict_unstructure_fn_from_attrs(always, cls, converter(), **overrides)
    rest = fields[len(always) :]
    others = tuple((field.name, field.default is None, hooks[field.name]) for field in rest)
    is_open, is_ordered = keeps_unknown(cls), cls._in_order is not Record._in_order

    def write(instance: Any) -> JSON:
        members = write_always(instance)
        for name, is_left_out, hook in others:
            value = getattr(instance, name)
            if value is not None:
                members[name] = hook(value)
            elif not is_left_out:
                members[name] = None
        if is_open and (unknown := instance.extra):
            if not declared.isdisjoint(unknown):
                unknown = {name: member for name, member in unknown.items() if name not in declared}
            members.update(unknown)
        return instance._in_order(members) if is_ordered else members

    return write


_member_getter = per_class(_model_writer)


def _write_value(value: object) -> JSON:
    if type(value) is str:
        return value
    if type(value) is not list:
        return _writer_of(type(value))(value)
    kinds = set(map(type, value))
    if len(kinds) == 1:
        # Most lists hold one kind of value.
        return list(map(_writer_of(kinds.pop()), value))
    return [_writer_of(type(member))(member) for member in value]


@per_class
def _writer_of(kind: type) -> Writer:
    if issubclass(kind, (Record, Decimal, datetime)):
        return converter().get_unstructure_hook(kind)
    return identity


def _write_hook(annotation: object, write_value: Writer) -> Writer:
    choices = typing.get_args(annotation) if typing.get_origin(annotation) is Literal else ()
    if len(choices) == 1:
        return lambda _: choices[0]
    return write_value if _is_converted(annotation) else identity


def _is_converted(annotation: object) -> bool:
    """Return True for a type that JSON does not have, or that contains one."""
    if annotation in (Decimal, datetime) or _is_model(annotation):
        return True
    return any(map(_is_converted, typing.get_args(annotation)))


def _write_decimal(amount: Decimal) -> JSON:
    # NaN and the infinities stay as they are, for the check of JSON values to report.
    return str(amount) if amount.is_finite() else amount


# ── types ────────────────────────────────────────────────────────────────────────────────────────


def _is_model(cls: object) -> TypeGuard[type[Record]]:
    return isinstance(cls, type) and issubclass(cls, Record)


def _is_class(cls: object) -> bool:
    if not isinstance(cls, type) or _is_model(cls):
        return False
    return attrs.has(cls) or dataclasses.is_dataclass(cls)


def _is_list(annotation: object) -> bool:
    origin, arguments = _origin(annotation), typing.get_args(annotation)
    return origin is list or (origin is tuple and (not arguments or arguments[-1] is ...))


def _is_union(annotation: object) -> bool:
    return _origin(annotation) in (Union, types.UnionType)


def _origin(annotation: object) -> object:
    """Return ``list`` for ``list[int]``, and a class itself."""
    return typing.get_origin(annotation) or annotation
