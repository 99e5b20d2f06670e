"""Declared fields of a model class, as its constructor and the converter read them."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, TypeVar, cast

import attrs

from amplifier._internal.json import JSON

T = TypeVar("T")
ClassT = TypeVar("ClassT")
Field: TypeAlias = "attrs.Attribute[Any]"

EXTRA_ALIAS: Final = "_extra_"
"""Keyword by which `attrs.evolve` passes `OpenModel.extra`.

``extra=`` itself is an unknown keyword like any other.
"""


def per_class(function: Callable[[ClassT], T]) -> Callable[[ClassT], T]:
    """Cache the result of a function for each class."""
    # A cast, because mypy takes a class for unhashable if its instances are.
    return cast("Callable[[ClassT], T]", functools.cache(function))


def checked(
    check: Callable[[Any], object],
    *,
    default: Any = attrs.NOTHING,
    raw: bool = False,
    before: bool = False,
) -> Any:
    """Declare a field with a rule in addition to its type.

    Args:
        check: Receives the coerced value and returns the one to store. It raises ValueError with
            the problem.
        default: As in `attrs.field`.
        raw: Whether `check` replaces the coercion of the type instead of following it.
        before: Whether `check` receives the value before the type coerces it.
    """
    return attrs.field(default=default, metadata={"check": check, "raw": raw, "before": before})


# The converter recognizes models by this class only. Imports therefore point one way: fields,
# converter, models, and the attrs classes are unaware of JSON.
class Record:
    """Interface of a model for the converter."""

    __slots__ = ()

    if TYPE_CHECKING:
        # attrs adds this.
        __attrs_attrs__: ClassVar[tuple[Field, ...]]

    @classmethod
    def _before_first_use(cls) -> None:
        """Prepare the class for reading its fields, once."""

    def _fill(self, members: Mapping[str, object], *, warn: bool = False) -> None:
        """Set every field of a new instance.

        Raises:
            ModelError: Some members do not fit.
        """
        raise NotImplementedError

    def _in_order(self, members: dict[str, JSON]) -> dict[str, JSON]:
        """Return the members of the JSON object in the order in which they are written."""
        return members


@per_class
def declared_fields(cls: type[Record]) -> tuple[Field, ...]:
    """Return the fields that can be passed as keywords, in order and with resolved types.

    `OpenModel.extra` is not among them.
    """
    cls._before_first_use()
    hints = _resolve_hints(cls)
    return tuple(
        field.evolve(type=hints.get(field.name, Any))
        for field in getattr(cls, "__attrs_attrs__", ())
        if field.init and field.alias != EXTRA_ALIAS
    )


def is_required(field: Field) -> bool:
    """Return True for a field without a default."""
    return field.default is attrs.NOTHING


@per_class
def keeps_unknown(cls: type[Record]) -> bool:
    """Return True for a class with unknown members in `extra`."""
    return any(field.alias == EXTRA_ALIAS for field in getattr(cls, "__attrs_attrs__", ()))


def _resolve_hints(cls: type) -> dict[str, object]:
    """Return the annotations as types. One that cannot be resolved is Any rather than an error."""
    hints: dict[str, object] = {}
    for base in reversed(cls.__mro__):
        names = {**vars(sys.modules.get(base.__module__, object)), **vars(base)}
        for name, annotation in inspect.get_annotations(base).items():
            try:
                hints[name] = eval(annotation, names) if isinstance(annotation, str) else annotation
            except (NameError, TypeError):
                hints[name] = Any
    return hints
