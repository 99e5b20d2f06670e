"""The converter: the one cattrs converter that reads and writes models. `amplifier._reading` reads what is no model.

What a field accepts is a hook for its type, found by cattrs: lax for numbers and words as the published models are, strict for text;
a nested dict becomes a model, an instance is kept. Hooks raise ValueError with the problem, `ModelError` where there are several;
cattrs collects them with the names of the fields, and at each class they become one `ModelError` with paths.

Writing makes plain dicts of models; whether JSON can hold what is in them is for `_json._values` to say.
"""

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
from typing import Any, Final, Literal, TypeAlias, Union

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

from amplifier._json import format_path, join_paths
from amplifier._json._values import MAX_DIGITS, aware, short, type_name
from amplifier.errors import ModelError, Problem

from ._base import Model, OpenModel, declared_fields, per_class

Hook: TypeAlias = Callable[[Any, Any], Any]


def structure(cls: Any, value: Any) -> Any:
    """Read a value that comes from outside into a class, with all problems listed.

    The class is a model or a type made of models (``list[Message]``, a union). An instance of the class is kept as it is, and so are
    values of the type `Any`: use `from_dict` for input that has to be JSON.

    Raises:
        ModelError: The value does not fit; everything wrong with it is listed.
    """
    try:
        return converter().structure(value, cls)
    except (ValueError, BaseValidationError, StructureHandlerNotFoundError, RecursionError) as error:
        raise ModelError(_problems_of(error), subject=_class_text(cls)) from None


def keyword_reader(cls: type[Model]) -> Hook:
    """A function from members to the coerced keywords of `__attrs_init__`, without the unknown ones.

    It raises cattrs' error, of which `model_error` makes ours.
    """
    fields = declared_fields(cls)
    overrides: dict[str, Any] = {}
    for field in fields:
        check, raw, before = map(field.metadata.get, ("check", "raw", "before"))
        if check is not None:
            read = None if raw else converter().get_structure_hook(field.type)
            hook = functools.partial(_check_and_read if before else _read_checked, read, check)
            overrides[field.name] = override(struct_hook=hook)
    return make_dict_structure_fn_from_attrs(list(fields), dict, converter(), **overrides)


def _read_checked(read: Hook | None, check: Callable[[Any], Any], value: Any, cls: Any) -> Any:
    return check(value if read is None else read(value, cls))


def _check_and_read(read: Hook | None, check: Callable[[Any], Any], value: Any, cls: Any) -> Any:
    checked = check(value)
    return checked if read is None else read(checked, cls)


def model_error(cls: type, error: BaseException) -> ModelError:
    """What went wrong while reading a class, as one error with paths."""
    return ModelError(_problems_of(error), subject=cls.__name__)


# ── leaves ───────────────────────────────────────────────────────────────────────────────────────
# The second argument of a hook is the type; a hook for int also gets its subclasses, such as an IntEnum.

# An integer a person may have typed: what the reference accepts for an int field ("5", " 5 ", "5.0", "1_000").
_WHOLE_NUMBER: Final = re.compile(r"\s*([+-]?\d+(?:_\d+)*)(?:\.0+)?\s*")
_FIRST_TOO_LONG: Final = Decimal(10) ** MAX_DIGITS
_TRUE_WORDS: Final = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE_WORDS: Final = frozenset({"0", "false", "f", "no", "n", "off"})
_MOMENT: Final = "datetime or its ISO 8601 text"


def _wrong(expected: str, value: object) -> ValueError:
    return ValueError(f"expected {expected}, got {type_name(value)}")


def _read_str(value: Any, cls: type[str]) -> str:
    """Text. Numbers are not text: they are refused rather than converted."""
    if value.__class__ is cls:
        return value
    if cls is not str:
        return cls(value)
    if isinstance(value, str):
        return value
    raise _wrong("str", value)


def _read_int(value: Any, cls: type[int]) -> int:
    """Whole numbers; also bools, integral floats, numeric strings and whatever has `__index__`."""
    if value.__class__ is cls:
        return value
    if cls is not int:
        return cls(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        match = _WHOLE_NUMBER.fullmatch(value) if len(value) <= MAX_DIGITS else None
        if match is None:
            raise ValueError(f"expected int, got the str {short(value)}")
        return int(match[1])
    if isinstance(value, (float, Decimal)):
        # The size comes first: a Decimal like 1E+999999999 is integral, and has a billion digits.
        is_small = math.isfinite(value) and bool(abs(value) < _FIRST_TOO_LONG)  # type: ignore[operator]
        if not is_small or value != int(value):
            raise ValueError(f"expected int, got {short(value)}")
        return int(value)
    try:
        return operator.index(value)
    except TypeError:
        raise _wrong("int", value) from None


def _read_float(value: Any, cls: type[float]) -> float:
    """Numbers; also bools, numeric strings and whatever has `__float__`."""
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
        raise _wrong("float", value)
    try:
        return float(value)
    except OverflowError:
        raise ValueError("expected float, got an int too large for one") from None
    except (TypeError, ValueError):
        raise _wrong("float", value) from None


def _read_bool(value: Any, _: Any) -> bool:
    """True and false; also 0, 1 and the usual words."""
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, float)) and value in (0, 1):
        return bool(value)
    if isinstance(value, str):
        word = value.lower() if len(value) <= 5 else ""
        if word not in _TRUE_WORDS and word not in _FALSE_WORDS:
            raise ValueError(f"expected bool, got the str {short(value)}")
        return word in _TRUE_WORDS
    raise _wrong("bool", value)


def _read_decimal(value: Any, _: Any) -> Decimal:
    """Money. A float is refused: it has already lost the amount that was meant."""
    if isinstance(value, float):
        raise ValueError(f"must be Decimal, not float (got {short(value)}); write it as a str or a Decimal")
    if isinstance(value, bool) or not isinstance(value, (Decimal, int, str)):
        raise _wrong("Decimal", value)
    try:
        amount = value if isinstance(value, Decimal) else Decimal(value)
    except (InvalidOperation, ValueError):
        raise ValueError(f"expected Decimal, got the str {short(value)}") from None
    if not amount.is_finite():
        raise ValueError(f"expected a finite Decimal, got {short(amount)}")
    return amount


def _read_datetime(value: Any, _: Any) -> datetime:
    """A moment. One without a time zone means local time, as in the reference, and is made aware at once."""
    moment = value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(f"expected {_MOMENT}, got {short(value)}") from None
    if not isinstance(moment, datetime):
        raise _wrong(_MOMENT, value)
    try:
        return aware(moment)
    except (OverflowError, OSError, ValueError):
        raise ValueError(f"{short(value)} is too far away to have a time zone") from None


def _literal_hook(literal: Any) -> Hook:
    """One of a few words; of a str enum the plain word is stored."""
    words, expected = {word: word for word in typing.get_args(literal)}, _expected(literal)

    def read(value: Any, _: Any) -> Any:
        if value.__class__ is str and value in words:
            return value
        if isinstance(value, str):
            if str.__str__(value) in words:
                return words[str.__str__(value)]
            raise ValueError(f"expected {expected}, got {short(value)}")
        for word in words:
            if type(word) is type(value) and word == value:
                return word
        raise _wrong(expected, value)

    return read


# ── containers ───────────────────────────────────────────────────────────────────────────────────

_LIST_LIKE: Final = (list, tuple, set, frozenset, collections.deque)


def _list_hook(annotation: Any, converter: Converter) -> Hook:
    """A list or a tuple of any length; copied, and its members coerced one by one."""
    is_list = _origin(annotation) is list
    members: Hook = (list_structure_factory if is_list else homogenous_tuple_structure_factory)(annotation, converter)

    def read(value: Any, cls: Any) -> Any:
        if value.__class__ is not list and not isinstance(value, _LIST_LIKE):
            raise _wrong("list", value)
        return members(value, cls)

    return read


def _dict_hook(annotation: Any, converter: Converter) -> Hook:
    """A mapping with str keys; copied, its values coerced, or shared if they may be anything."""
    member_type = (*typing.get_args(annotation), Any, Any)[1]
    read_member: Hook = converter.get_structure_hook(member_type)

    def read(value: Any, _: Any) -> dict[str, Any]:
        if value.__class__ is not dict and not isinstance(value, Mapping):
            raise _wrong("dict", value)
        if member_type is Any:
            return dict(value)
        members: dict[str, Any] = {}
        problems: list[Problem] = []
        for key, member in value.items():
            if not isinstance(key, str):
                problems.append(("", f"expected str keys, got the {type_name(key)} key {short(key)}"))
                continue
            try:
                members[key] = read_member(member, member_type)
            except (ValueError, BaseValidationError) as error:
                problems += [(join_paths(format_path([key]), path), problem) for path, problem in _problems_of(error)]
        if problems:
            raise ModelError(problems, subject="dict")
        return members

    return read


# ── classes ──────────────────────────────────────────────────────────────────────────────────────


def _class_hook(cls: type, read_members: Hook) -> Hook:
    """A model, or an attrs class or a dataclass in a third-party one: an instance is kept as it is, a mapping becomes one."""
    expected = _expected(cls)

    def read(value: Any, _: Any) -> Any:
        if value.__class__ is not dict:
            if isinstance(value, cls):
                return value
            if not isinstance(value, Mapping):
                raise _wrong(expected, value)
        return read_members(value, cls)

    return read


def _read_model(members: Any, cls: type[Model]) -> Model:
    made = cls.__new__(cls)
    try:
        made._fill(members)
    except ModelError:
        if all(isinstance(key, str) for key in members):
            raise
        raise ValueError(f"expected str keys for {cls.__name__}") from None
    return made


# ── unions ───────────────────────────────────────────────────────────────────────────────────────


def _union_hook(union: Any, converter: Converter) -> Hook:
    """None if that is among them; models by their `type`; otherwise the first type that takes values of this kind."""
    members = [member for member in typing.get_args(union) if member is not types.NoneType]
    if Any in members:
        return lambda value, _: value
    inner = _chosen_hook(members, converter) if len(members) > 1 else converter.get_structure_hook(members[0])
    if len(members) == len(typing.get_args(union)):
        return inner
    only = members[0] if len(members) == 1 else union
    return lambda value, _: None if value is None else inner(value, only)


def _chosen_hook(members: list[Any], converter: Converter) -> Hook:
    if all(_is_model(member) for member in members):
        has_tags = all("type" in (field.name for field in declared_fields(member)) for member in members)
        return _tagged_hook(*tags_of(members), converter) if has_tags else lambda value, _: value
    options = [(_taken_kinds(member), member, converter.get_structure_hook(member)) for member in members]
    exact = {member: hook for kinds, member, hook in options if member in kinds}
    expected = " or ".join(map(_expected, members))

    def read(value: Any, _: Any) -> Any:
        cls = value.__class__
        if cls in exact:
            return exact[cls](value, cls)
        for kinds, member, hook in options:
            if isinstance(value, kinds) and not (isinstance(value, bool) and member in (int, float)):
                return hook(value, member)
        raise _wrong(expected, value)

    return read


def _taken_kinds(member: Any) -> tuple[type, ...]:
    """Values of these types belong to this member of a union."""
    origin = _origin(member)
    if origin is Literal:
        return (str,)
    if origin in (int, float):
        return (int, float)
    if origin in (list, tuple):
        return _LIST_LIKE
    if not isinstance(origin, type) or origin is dict:
        return (Mapping,) if origin is dict else (object,)
    return (origin, Mapping) if _is_model(origin) or _is_class(origin) else (origin,)


def tags_of(classes: Iterable[type[Model]]) -> tuple[dict[str, type[Model]], type[Model] | None]:
    """The models of a union by their `type`, and the one for every other type, if there is one."""
    by_tag: dict[str, type[Model]] = {}
    fallback: type[Model] | None = None
    for cls in classes:
        tag = next((field.type for field in declared_fields(cls) if field.name == "type"), None)
        if typing.get_origin(tag) is Literal:
            by_tag.update(dict.fromkeys(typing.get_args(tag), cls))
        elif fallback is None:
            fallback = cls
    return by_tag, fallback


def _tagged_hook(by_tag: dict[str, type[Model]], fallback: type[Model] | None, converter: Converter) -> Hook:
    """An unknown type goes to `fallback`, which keeps everything; without one it is a problem."""
    classes = (*by_tag.values(), *([fallback] if fallback is not None else []))
    hooks = {tag: converter.get_structure_hook(cls) for tag, cls in by_tag.items()}
    fall_back = None if fallback is None else converter.get_structure_hook(fallback)
    expected = "a dict with a type, or one of " + ", ".join(cls.__name__ for cls in classes)

    def read(value: Any, _: Any) -> Any:
        if value.__class__ is not dict:
            if isinstance(value, classes):
                return value
            if not isinstance(value, Mapping):
                raise _wrong(expected, value)
        tag = value.get("type")
        hook = hooks.get(tag, fall_back) if isinstance(tag, str) else None
        if hook is not None:
            return hook(value, None)
        problem = "required, but missing"
        if "type" in value:
            known = f"expected one of {', '.join(map(repr, by_tag))}, got {short(tag)}"
            problem = known if isinstance(tag, str) else f"expected str, got {type_name(tag)}"
        raise ModelError([("type", problem)], subject="block")

    return read


# ── problems ─────────────────────────────────────────────────────────────────────────────────────


def _problems_of(error: BaseException) -> list[Problem]:
    """What cattrs and the hooks found, as paths and problems."""
    if isinstance(error, (ClassValidationError, IterableValidationError)):
        placed, unplaced = error.group_exceptions()
        found: list[Problem] = []
        for inner, note in placed:
            name = note.name if isinstance(note, AttributeValidationNote) else note.index
            if isinstance(inner, KeyError):
                found.append((format_path([name]), "required, but missing"))
            else:
                found += [(join_paths(format_path([name]), path), problem) for path, problem in _problems_of(inner)]
        return found + [problem for inner in unplaced for problem in _problems_of(inner)]
    if isinstance(error, ModelError):
        return error.problems
    if isinstance(error, RecursionError):
        return [("", "nested too deeply")]
    return [("", str(error) or type(error).__name__)]


def _expected(annotation: Any) -> str:
    """A type as problems name it."""
    origin = typing.get_origin(annotation)
    if origin is Literal:
        words = typing.get_args(annotation)
        listed = ", ".join(map(repr, words))
        return listed if len(words) == 1 else f"one of {listed}"
    if annotation is datetime:
        return _MOMENT
    name = _class_text(origin or annotation)
    return f"{name} or dict" if _is_model(annotation) or _is_class(annotation) else name


def _class_text(cls: Any) -> str:
    """A class, or a type made of classes, as errors name it."""
    return str(getattr(cls, "__name__", cls)) if typing.get_origin(cls) is None else str(cls)


# ── writing ──────────────────────────────────────────────────────────────────────────────────────


def members_of(obj: Any) -> Any:
    """The members of an instance of an attrs class or a dataclass; those of a model are not converted themselves."""
    return _member_getter(type(obj))(obj) if isinstance(obj, Model) else converter().unstructure(obj)


def _model_writer(cls: type[Model], write_value: Callable[[Any], Any] = identity) -> Callable[[Any], dict[str, Any]]:
    """A function from an instance to what its JSON object holds: declared fields in order, then unknown members.

    A field whose default is None is left out when it is None. A field that can hold only one word is written as that
    word whatever was assigned, because the class decides. Free-form values are left as they are.

    Args:
        cls: The class of the instance.
        write_value: Converts the values of fields that are not JSON as they are.
    """
    fields = declared_fields(cls)
    declared = frozenset(field.name for field in fields)
    hooks = {field.name: _write_hook(field.type, write_value) for field in fields}
    # What may be left out is not written by cattrs: it would come last, and be compared with its default, which may run foreign code.
    always = list(itertools.takewhile(lambda field: field.default is not None, fields))
    overrides: Any = {name: override(unstruct_hook=hook) for name, hook in hooks.items()}
    write_always = make_dict_unstructure_fn_from_attrs(always, cls, converter(), **overrides)
    others = tuple((field.name, field.default is None, hooks[field.name]) for field in fields[len(always) :])
    is_open, is_ordered = issubclass(cls, OpenModel), cls._in_order is not Model._in_order

    def write(obj: Any) -> dict[str, Any]:
        members = write_always(obj)
        for name, is_left_out, hook in others:
            value = getattr(obj, name)
            if value is not None:
                members[name] = hook(value)
            elif not is_left_out:
                members[name] = None
        if is_open and (unknown := obj.extra):
            if not declared.isdisjoint(unknown):
                unknown = {name: member for name, member in unknown.items() if name not in declared}
            members.update(unknown)
        return obj._in_order(members) if is_ordered else members

    return write


_member_getter = per_class(_model_writer)


def _write_value(value: Any) -> Any:
    if type(value) is str:
        return value
    if type(value) is not list:
        return _writer_of(type(value))(value)
    kinds = set(map(type, value))
    if len(kinds) == 1:  # as in most lists
        return list(map(_writer_of(kinds.pop()), value))
    return [_writer_of(type(member))(member) for member in value]


@per_class
def _writer_of(kind: Any) -> Callable[[Any], Any]:
    is_ours = issubclass(kind, (Model, Decimal, datetime))
    return converter().get_unstructure_hook(kind) if is_ours else identity


def _write_hook(annotation: Any, write_value: Callable[[Any], Any]) -> Callable[[Any], Any]:
    words = typing.get_args(annotation) if typing.get_origin(annotation) is Literal else ()
    if len(words) == 1:
        return lambda _: words[0]
    return write_value if _is_converted(annotation) else identity


def _is_converted(annotation: Any) -> bool:
    """Whether values of a declared type are not JSON as they are."""
    inner = typing.get_args(annotation)
    return annotation in (Decimal, datetime) or _is_model(annotation) or any(map(_is_converted, inner))


# ── the converter ────────────────────────────────────────────────────────────────────────────────


def _is_model(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, Model)


def _is_class(cls: Any) -> bool:
    return isinstance(cls, type) and not _is_model(cls) and (attrs.has(cls) or dataclasses.is_dataclass(cls))


def _origin(annotation: Any) -> Any:
    """``list`` of ``list[int]``; a class itself."""
    return typing.get_origin(annotation) or annotation


def _is_list(annotation: Any) -> bool:
    origin, arguments = _origin(annotation), typing.get_args(annotation)
    return origin is list or (origin is tuple and (not arguments or arguments[-1] is ...))


def _instance_hook(cls: Any) -> Hook:
    """A class that nothing is known about: instances are kept; what is no class at all is not checked."""
    if not isinstance(cls, type):
        return lambda value, _: value

    def read(value: Any, _: Any) -> Any:
        if isinstance(value, cls):
            return value
        raise _wrong(cls.__name__, value)

    return read


@functools.cache
def converter() -> Converter:
    """The converter, made when it is first needed."""
    made = Converter(structure_fallback_factory=_instance_hook)
    numbers: dict[type, Hook] = {bool: _read_bool, int: _read_int, float: _read_float, Decimal: _read_decimal}
    for leaf, hook in {str: _read_str, datetime: _read_datetime, **numbers}.items():
        made.register_structure_hook(leaf, hook)
    read_with = made.register_structure_hook_factory
    read_with(lambda cls: _origin(cls) is Literal, _literal_hook)
    read_with(_is_list, lambda cls: _list_hook(cls, made))
    read_with(lambda cls: _origin(cls) is dict, lambda cls: _dict_hook(cls, made))
    read_with(_is_class, lambda cls: _class_hook(cls, make_dict_structure_fn(cls, made)))
    read_with(_is_model, lambda cls: _class_hook(cls, _read_model))
    read_with(lambda cls: _origin(cls) in (Union, types.UnionType), lambda cls: _union_hook(cls, made))
    made.register_unstructure_hook_factory(_is_model, lambda cls: _model_writer(cls, _write_value))
    made.register_unstructure_hook(Decimal, lambda amount: str(amount) if amount.is_finite() else amount)
    made.register_unstructure_hook(datetime, lambda moment: aware(moment).isoformat())
    return made
