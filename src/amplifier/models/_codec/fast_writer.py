"""Fast writers, one function per class, written out from its fields.

The counterpart of `_fast_reading`, with the same contract: exact types or `Decline`, and then `_plain.PlainWalk`
decides. A writer makes plain dicts of the declared structure and leaves free-form values as they are; `encode` then
asks about all of those at once, because looking at each of their leaves in Python would double the cost.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

import orjson

from amplifier.models._definition.base import Model, ModelField, OpenModel, compile_function, indented
from amplifier.models._definition.field_types import (
    BoolShape,
    CheckedShape,
    DatetimeShape,
    DecimalShape,
    DictShape,
    EitherShape,
    FloatShape,
    IntShape,
    ListShape,
    LiteralShape,
    ModelShape,
    OptionalShape,
    Shape,
    StrShape,
    TaggedShape,
)

from .plain_values import (
    HIGHEST_SURE_FLOAT,
    LEAVES,
    LOWEST_SURE_FLOAT,
    STRICTLY,
    Decline,
    is_writable_size,
    may_hide_nan,
    only_word,
    vetted,
)

Writer = Callable[[Any, Any], dict[str, Any]]

_WRITERS: dict[Any, Writer] = {}
_COPYING_WRITERS: dict[Any, Writer] = {}
_EXACT: dict[type[Shape], str] = {StrShape: "str", IntShape: "int", BoolShape: "bool"}


def copied(value: Any) -> Any:
    """A copy of a free-form value.

    Raises:
        Decline: There is something in it that is not an exact JSON value.
    """
    return _copy(vetted(value))


def _copy(value: Any) -> Any:
    if value.__class__ is dict:
        return {key: member if member.__class__ in LEAVES else _copy(member) for key, member in value.items()}
    if value.__class__ is list:
        return [member if member.__class__ in LEAVES else _copy(member) for member in value]
    return value


def write(model: Model) -> dict[str, Any]:
    """The JSON values of a model, with nothing shared.

    Raises:
        Decline: Something is odd.
    """
    return _run_writer(_COPYING_WRITERS, model, copied)


def encode(model: Model) -> bytes:
    """The JSON text of a model.

    Raises:
        Decline: Something is odd.
        TypeError: The codec met something it does not write.
    """
    free: list[Any] = []
    plain = _run_writer(_WRITERS, model, free)
    if free:
        if not is_writable_size(free):
            raise Decline
        # Twice through the codec costs a third of looking at every number in Python.
        if may_hide_nan(orjson.dumps(free, None, STRICTLY)):
            for value in free:
                vetted(value)
    return orjson.dumps(plain, None, STRICTLY)


def _run_writer(writers: dict[Any, Writer], model: Model, free: Any) -> dict[str, Any]:
    """Run a writer; one that is missing, here or further in, is made and everything done again."""
    while True:
        try:
            return writers[model.__class__](model, free)
        except KeyError as error:
            cls = error.args[0]
            if cls in writers or not isinstance(cls, type) or not issubclass(cls, Model):
                raise Decline from error
            writers[cls] = _Source(copying=writers is _COPYING_WRITERS).writer_of(cls)


class _Source:
    """The source of one writer under construction; every method returns lines.

    The models in a list are written right in the loop over it, those in them as well, because calls would take a tenth
    of the time. The variables of each level have its number at their end. Where values of several types come by, the
    lines ask `type`; where one type is expected, `__class__` is faster, for the interpreter remembers what it last saw.
    """

    def __init__(self, *, copying: bool) -> None:
        self._copying = copying
        self._names: dict[str, Any] = {"Decline": Decline, "LEAVES": LEAVES, "Decimal": Decimal, "datetime": datetime}
        self._names |= {"lowest": LOWEST_SURE_FLOAT, "highest": HIGHEST_SURE_FLOAT}
        self._names["writers"] = _COPYING_WRITERS if copying else _WRITERS
        self._level = 0

    def writer_of(self, cls: type[Model]) -> Writer:
        """A function of an instance and ``free``: a list that notes its free-form values, or what copies one."""
        # Names bound as defaults would be found faster, but Python 3.13.0 does not count calls of functions with
        # defaults against its recursion limit: a request among its own messages would fill the memory.
        lines = ["def write(model0, free):", *indented([*self._model(cls), "return plain0"])]
        return compile_function("\n".join(lines) + "\n", "write", self._names, f"{cls.__module__}.{cls.__qualname__}")

    def _model(self, cls: type[Model]) -> list[str]:
        """Make ``plain`` of ``model``, both with the number of the level."""
        model, plain, fields = f"model{self._level}", f"plain{self._level}", cls.__model_fields_of__
        # The leading fields that are always written go into one dict display; the others follow one by one.
        leading = 0
        while leading < len(fields) and not fields[leading].is_left_out_when_none:
            leading += 1
        lines, members = [], []
        for field in fields[:leading]:
            if (word := only_word(field.shape)) is not None:
                members.append(f"{field.name!r}: {word!r}")
                continue
            value = f"field_{field.name}{self._level}"
            members.append(f"{field.name!r}: {value}")
            lines += [f"{value} = {model}.{field.name}", *self._value(value, field.shape)]
        lines.append(f"{plain} = {{{', '.join(members)}}}")
        for field in fields[leading:]:
            lines += self._later_field(field, f"{model}.{field.name}", f"{plain}[{field.name!r}] = value")
        if issubclass(cls, OpenModel):
            lines += self._unknown(cls)
        if cls.__remembers_order__:
            lines.append(f"{plain} = {model}._in_order({plain})")
        return lines

    def _later_field(self, field: ModelField, attribute: str, store: str) -> list[str]:
        shape = field.shape
        if not field.is_left_out_when_none:
            return [f"value = {attribute}", *self._value("value", shape), store]
        if isinstance(shape, OptionalShape):
            shape = shape.inner
        return [f"if (value := {attribute}) is not None:", *indented([*self._value("value", shape), store])]

    def _unknown(self, cls: type[Model]) -> list[str]:
        known = self._named("known", frozenset(field.name for field in cls.__model_fields_of__))
        return [
            f"if extra := model{self._level}.extra:",
            f"    if extra.__class__ is not dict or not {known}.isdisjoint(extra):",
            "        raise Decline",
            f"    {self._taken('extra')}",
            f"    plain{self._level}.update(extra)",
        ]

    def _list(self, value: str, classes: tuple[type[Model], ...]) -> list[str]:
        """A loop, because a comprehension is a function call of its own before Python 3.12."""
        self._level += 1
        model, plain, written = f"model{self._level}", f"plain{self._level}", f"written{self._level}"
        branches: list[str] = []
        for cls in classes:
            keyword = "elif" if branches else "if"
            branches += [f"{keyword} kind is {self._named('class', cls)}:", *indented(self._model(cls))]
        self._level -= 1
        return [
            f"if {value}.__class__ is not list:",
            "    raise Decline",
            f"{written} = []",
            f"for {model} in {value}:",
            f"    kind = type({model})",
            *indented(branches),
            "    else:",
            f"        {plain} = writers[kind]({model}, free)",
            f"    {written}.append({plain})",
            f"{value} = {written}",
        ]

    def _named(self, stem: str, value: Any) -> str:
        """A new name for a value."""
        name = f"{stem}_{len(self._names)}"
        self._names[name] = value
        return name

    def _taken(self, value: str) -> str:
        """Note the variable called `value`, or copy what is in it."""
        return f"{value} = free({value})" if self._copying else f"free.append({value})"

    def _value(self, value: str, shape: Shape) -> list[str]:
        """Test, and where needed replace, the variable called `value`."""
        if isinstance(shape, CheckedShape):
            shape = shape.inner
        if isinstance(shape, OptionalShape):
            return [f"if {value} is not None:", *indented(self._value(value, shape.inner))]
        if type(shape) in _EXACT or isinstance(shape, LiteralShape):
            return [f"if {value}.__class__ is not {_EXACT.get(type(shape), 'str')}:", "    raise Decline"]
        if isinstance(shape, FloatShape):
            return [f"if {value}.__class__ is not float or not lowest < {value} < highest:", "    raise Decline"]
        if isinstance(shape, DecimalShape):
            test = f"if {value}.__class__ is not Decimal or not {value}.is_finite():"
            return [test, "    raise Decline", f"{value} = str({value})"]
        if isinstance(shape, DatetimeShape):
            test = f"if {value}.__class__ is not datetime or {value}.utcoffset() is None:"
            return [test, "    raise Decline", f"{value} = {value}.isoformat()"]
        if isinstance(shape, (ModelShape, TaggedShape)):
            return [f"{value} = writers[{value}.__class__]({value}, free)"]
        if isinstance(shape, ListShape) and isinstance(shape.inner, ModelShape):
            return self._list(value, (shape.inner.cls,))
        if isinstance(shape, ListShape) and isinstance(shape.inner, TaggedShape):
            return self._list(value, shape.inner.classes)
        if isinstance(shape, DictShape) and type(shape.inner) is Shape:
            return [f"if {value}.__class__ is not dict:", "    raise Decline", self._taken(value)]
        if isinstance(shape, EitherShape) and isinstance(shape.options[0], StrShape) and len(shape.options) == 2:
            inner = self._value(value, shape.options[1])
            return [f"if type({value}) is not str:", *indented(inner)]
        # Looking for dicts of nothing but leaves right here was tried, and costs more than it saves `encode`.
        return [f"if type({value}) not in LEAVES:", f"    {self._taken(value)}"]
