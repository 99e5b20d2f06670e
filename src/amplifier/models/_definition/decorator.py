"""The class decorator `model`, which makes an attrs class a model.

The constructor is generated here instead of by attrs, because attrs' own can neither coerce a nested dict with a path
in the error nor take keywords it does not know.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform, overload

import attrs

from .base import EXTRA_ALIAS, REQUIRED, FieldType, Model, ModelField
from .constructor import lazy_init
from .field_types import CheckedType, field_type_of

ModelT = TypeVar("ModelT", bound="type[Model]")


def checked(check: Callable[[Any], Any], *, default: Any = attrs.NOTHING, raw: bool = False) -> Any:
    """A field with one rule more than its type.

    Args:
        check: Receives the coerced value, returns the one to store, raises ValueError with the problem.
        default: As in `attrs.field`.
        raw: The type's own coercion is skipped; `check` does it all.
    """
    return attrs.field(default=default, metadata={"check": check, "raw": raw})


@overload
def model(cls: ModelT, /) -> ModelT: ...
@overload
def model(*, slots: bool = True) -> Callable[[ModelT], ModelT]: ...
@dataclass_transform(kw_only_default=True, field_specifiers=(attrs.field, checked))
def model(cls: ModelT | None = None, /, *, slots: bool = True) -> ModelT | Callable[[ModelT], ModelT]:
    """Make a subclass of `Model` a model: fields from its annotations, `__init__`, equality, repr, copying, pickling.

    Args:
        slots: False changes the class in place instead of making a new one, as a subclass that arrives through
            ``__init_subclass__`` needs it.
    """

    def decorate(cls: ModelT) -> ModelT:
        # Equality and the constructor are ours: attrs would compile both for every class at every import.
        defined = attrs.define(cls, slots=slots, init=False, repr=False, eq=False, kw_only=True, on_setattr=None)
        defined.__model_fields_of__ = _LazyFields()  # type: ignore[assignment]  # returns the declared type
        defined.__init__ = lazy_init(defined)  # type: ignore[method-assign]  # what the decorator is for
        return defined

    return decorate if cls is None else decorate(cls)


class _LazyFields:
    """Computes a class's fields on first access: 40 classes at once would slow down every import."""

    def __get__(self, instance: object, owner: type[Model]) -> tuple[ModelField, ...]:
        owner.__model_fields_of__ = fields = _declared_fields(owner)
        return fields


def _declared_fields(cls: type[Model]) -> tuple[ModelField, ...]:
    hints = _resolved_hints(cls)
    fields = []
    for attribute in attrs.fields(cls):
        if attribute.alias == EXTRA_ALIAS or not attribute.init:
            continue
        raw, check = attribute.metadata.get("raw"), attribute.metadata.get("check")
        field_type = FieldType() if raw else field_type_of(hints.get(attribute.name, Any))
        default: Any = attribute.default
        factory: Callable[[], Any] | None = None
        if isinstance(default, attrs.Factory):  # type: ignore[arg-type]  # typed as a function in the stubs
            default, factory = None, default.factory
        elif type(default) in (list, dict):
            default, factory = None, default.copy
        elif default is attrs.NOTHING:
            default = REQUIRED
        field_type = CheckedType(field_type, check) if check else field_type
        fields.append(ModelField(attribute.name, field_type, default, factory))
    return tuple(fields)


def _resolved_hints(cls: type[Model]) -> dict[str, Any]:
    """Annotations as types; what cannot be resolved at run time is Any rather than an error at import."""
    try:
        return typing.get_type_hints(cls)
    except (NameError, TypeError):
        hints: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            names = dict(vars(sys.modules.get(base.__module__, object)))
            for name, annotation in inspect.get_annotations(base).items():
                try:
                    hints[name] = eval(annotation, names) if isinstance(annotation, str) else annotation
                except (NameError, TypeError):
                    hints[name] = Any
        return hints
