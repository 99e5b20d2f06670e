"""Fast readers, one function per class, written out from its fields.

They take the straight road only: exact types, nothing odd. Anything else raises `Decline`, and `_converter` goes the
careful way (`_reading`), which gives the same result or a proper error; a property test holds the two together
(tests/models/test_fast.py). Generated because a loop over the fields costs four times as much.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amplifier.models._definition.base import (
    Model,
    ModelField,
    OpenModel,
    compile_function,
    hidden_lines,
    indented,
    store_line,
)
from amplifier.models._definition.field_types import (
    BoolShape,
    CheckedShape,
    DatetimeShape,
    DictShape,
    EitherShape,
    FloatShape,
    IntShape,
    ListShape,
    LiteralShape,
    ModelShape,
    OpaqueShape,
    OptionalShape,
    Shape,
    StrShape,
    TaggedShape,
    is_understood,
    shape_of,
)

from .plain_values import HIGHEST_SURE_FLOAT, LEAVES, LOWEST_SURE_FLOAT, Decline, only_word, vet, vetted

Convert = Callable[..., Any]

_EXACT: dict[type[Shape], str] = {StrShape: "str", IntShape: "int", BoolShape: "bool"}
_STR_ONLY = frozenset({str})


class _Table(dict[Any, Convert]):
    """Functions by class, made when first asked for."""

    def __init__(self, make: Callable[[Any], Convert]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Any) -> Convert:
        made = self[key] = self._make(key)
        return made


def _decline(*arguments: Any) -> Any:
    raise Decline


def _make_reader(annotation: Any) -> Convert:
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return _model_reader(annotation)
    shape = shape_of(annotation)
    return _reader(shape) if is_understood(shape) else _decline


READERS = _Table(_make_reader)
"""From a class or type to the function that reads fresh JSON values into it. Values are kept, not copied."""


def _reader(shape: Shape) -> Convert:
    """A function for one shape; the commonest shapes are inlined instead, see `_read_lines`."""
    if type(shape) is Shape or isinstance(shape, OpaqueShape):
        return vetted
    if isinstance(shape, FloatShape):
        return _read_float
    if isinstance(shape, ModelShape):
        return READERS[shape.cls]
    if isinstance(shape, TaggedShape):
        return _tagged_reader(shape)
    if isinstance(shape, ListShape) and isinstance(shape.inner, (ModelShape, TaggedShape)):
        return _list_reader(_reader(shape.inner))
    if isinstance(shape, ListShape) and isinstance(shape.inner, StrShape):
        return _read_texts
    if isinstance(shape, OptionalShape):
        inner = _reader(shape.inner)
        return lambda value: None if value is None else inner(value)
    if isinstance(shape, EitherShape):
        return _either_reader(shape)
    if isinstance(shape, (StrShape, IntShape, BoolShape, DictShape, ListShape)):
        return _exact_reader(shape)
    return _decline


def _read_float(value: Any) -> float:
    if value.__class__ is float and LOWEST_SURE_FLOAT < value < HIGHEST_SURE_FLOAT:
        return float(value)
    if value.__class__ is int and -(2**53) < value < 2**53:
        return float(value)
    raise Decline


def _read_texts(value: Any) -> Any:
    if value.__class__ is list and _STR_ONLY.issuperset(map(type, value)):
        return value
    raise Decline


def _exact_reader(shape: Shape) -> Convert:
    free = False
    if isinstance(shape, (DictShape, ListShape)):
        free = True
        if type(shape.inner) is not Shape:
            return _decline
    kind: type = {StrShape: str, IntShape: int, BoolShape: bool, DictShape: dict, ListShape: list}[type(shape)]

    def read(value: Any) -> Any:
        if value.__class__ is not kind:
            raise Decline
        if free:
            vet(value)
        return value

    return read


def _either_reader(shape: EitherShape) -> Convert:
    readers = [_reader(option) for option in shape.options]

    def read(value: Any) -> Any:
        for reader in readers:
            try:
                return reader(value)
            except Decline:
                continue
        raise Decline

    return read


def _list_reader(read_member: Convert) -> Convert:
    def read(value: Any) -> Any:
        if value.__class__ is not list:
            raise Decline
        members = []
        for member in value:
            members.append(read_member(member))  # a comprehension is a call of its own before 3.12
        return members

    return read


def _tagged_reader(shape: TaggedShape) -> Convert:
    readers = {tag: _TAGGED_READERS[cls] for tag, cls in shape.by_tag.items()}
    fallback: Convert = _decline if shape.fallback is None else READERS[shape.fallback]

    def read(value: Any) -> Any:
        if value.__class__ is not dict:
            raise Decline
        tag = value.get("type")
        if tag.__class__ is not str:
            raise Decline
        reader: Convert = readers.get(tag, fallback)
        return reader(value)

    return read


def _model_reader(cls: type[Model], *, tag_was_read: bool = False) -> Convert:
    """Write the reader of one class: it fills a new instance directly, without `__init__`.

    A class with rules of its own (a post-init, checked fields, remembered order) is left to the careful reader.

    Args:
        tag_was_read: The caller has seen that the data is a dict with the right ``type``.
    """
    fields = cls.__model_fields_of__
    has_rules = any(isinstance(field.shape, (CheckedShape, DatetimeShape)) for field in fields)
    if has_rules or hasattr(cls, "__attrs_post_init__"):
        return _decline
    if cls.__remembers_order__:
        return _unknown_block_reader(cls)
    names: dict[str, Any] = {"Decline": Decline, "new": cls.__new__, "cls": cls, "LEAVES": LEAVES}
    names |= {"vet": vet, "vetted": vetted, "unknown": _unknown_members, "known": frozenset(f.name for f in fields)}
    numbered = list(enumerate(fields))
    required = [(index, field) for index, field in numbered if field.is_required]
    lines = ["self = new(cls)", *hidden_lines(cls, names)]
    if not tag_was_read:
        lines = ["if data.__class__ is not dict:", "    raise Decline", *lines]
    if required:
        lines += ["try:", *(f"    value{index} = data[{field.name!r}]" for index, field in required)]
        lines += ["except KeyError:", "    raise Decline from None"]
    for index, field in required:
        lines += [*_read_lines(index, field.shape, names), store_line(cls, field.name, f"value{index}", names)]
    lines.append(f"left = len(data) - {len(required) + tag_was_read}")
    for index, field in numbered:
        if tag_was_read and field.name == "type":
            word = only_word(field.shape)
            lines.append(store_line(cls, "type", "data['type']" if word is None else repr(word), names))
        elif not field.is_required:
            lines += [
                f"if left and {field.name!r} in data:",
                f"    value{index} = data[{field.name!r}]",
                "    left -= 1",
            ]
            given = [*_read_lines(index, field.shape, names), store_line(cls, field.name, f"value{index}", names)]
            default = _default_source(index, field, names)
            lines += [*indented(given), "else:", "    " + store_line(cls, field.name, default, names)]
    if issubclass(cls, OpenModel):
        lines.append(store_line(cls, "extra", "unknown(data, known) if left else {}", names))
    lines.append("return self")
    source = "def read(data):\n" + "\n".join(indented(lines)) + "\n"
    return compile_function(source, "read", names, f"{cls.__module__}.{cls.__qualname__}")


_TAGGED_READERS = _Table(lambda cls: _model_reader(cls, tag_was_read=True))


def _read_lines(index: int, shape: Shape, names: dict[str, Any]) -> list[str]:
    """Lines that test, and where needed replace, ``value<index>``."""
    value = f"value{index}"
    if isinstance(shape, OptionalShape):
        return [f"if {value} is not None:", *indented(_read_lines(index, shape.inner, names))]
    if type(shape) in _EXACT:
        return [f"if {value}.__class__ is not {_EXACT[type(shape)]}:", "    raise Decline"]
    if isinstance(shape, LiteralShape):
        names[f"words{index}"] = shape.values
        return [f"if {value}.__class__ is not str or {value} not in words{index}:", "    raise Decline"]
    if type(shape) is Shape:
        return [f"if {value}.__class__ not in LEAVES:", f"    vetted({value})"]
    if isinstance(shape, DictShape) and type(shape.inner) is Shape:
        return [f"if {value}.__class__ is not dict:", "    raise Decline", f"vet({value})"]
    if isinstance(shape, EitherShape) and isinstance(shape.options[0], StrShape) and len(shape.options) == 2:
        names[f"read{index}"] = _reader(shape.options[1])
        return [f"if {value}.__class__ is not str:", f"    {value} = read{index}({value})"]
    names[f"read{index}"] = _reader(shape)
    return [f"{value} = read{index}({value})"]


def _default_source(index: int, field: ModelField, names: dict[str, Any]) -> str:
    if field.factory is None:
        names[f"default{index}"] = field.default
        return f"default{index}"
    names[f"factory{index}"] = field.factory
    return f"factory{index}()"


def _unknown_members(data: dict[str, Any], known: frozenset[str]) -> dict[str, Any]:
    unknown = {}
    for name, member in data.items():
        if name not in known:
            unknown[name] = member if member.__class__ in LEAVES else vetted(member)
    return unknown


def _unknown_block_reader(cls: Callable[..., Any]) -> Convert:
    def read(data: Any) -> Any:
        if data.__class__ is not dict or data.get("type").__class__ is not str:
            raise Decline
        made = cls(type=data["type"])
        made.extra = _unknown_members(data, frozenset({"type"}))
        made._remember_order(data)
        return made

    return read
