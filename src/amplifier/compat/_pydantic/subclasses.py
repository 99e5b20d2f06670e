"""Classes that inherit from a model with annotations and nothing else, as published providers write them.

pydantic turns such a class into a model by itself; ours need the decorator `model`. While compat is installed a
subclass is therefore made into one when it is first used. Not when it is defined: a class with the decorator is
defined first and decorated a moment later, and must not be touched in between.
"""

from __future__ import annotations

import inspect
import sys
import threading
from typing import Any, Final, cast

import attrs

from amplifier.models._definition.base import Model, ModelField, OpenModel
from amplifier.models._definition.decorator import model

_lock: Final = threading.RLock()
_ABSENT: Final = object()


class _FieldsWhenAsked:
    def __get__(self, instance: object, owner: type[Model]) -> tuple[ModelField, ...]:
        prepare(owner)
        # A class that attrs made anew, without our decorator, has this descriptor still; its fields are the inherited ones.
        for base in owner.__mro__:
            if base.__dict__.get("__model_fields_of__", self) is not self:
                return cast("type[Model]", base).__model_fields_of__
        return ()


_fields_when_asked: Final = _FieldsWhenAsked()


def notice_subclass(cls: type[Model], /, **_options: Any) -> None:
    """What `Model` does when it is inherited from."""
    super(Model, cls).__init_subclass__()
    if "__attrs_attrs__" in cls.__dict__:
        return
    own_init = cls.__dict__.get("__init__")

    def __init__(self: Model, /, *positional: Any, **keywords: Any) -> None:
        if own_init is None:
            prepare(cls)
            cls.__init__(self, *positional, **keywords)
        else:
            _keep_fields_as_unknown(cls)
            own_init(self, *positional, **keywords)

    if own_init is None:
        cls.__model_fields_of__ = _fields_when_asked  # type: ignore[assignment]  # gives what is promised
    cls.__init__ = __init__  # type: ignore[assignment, method-assign]


class _UnknownField:
    """A field of a class with a constructor of its own: an unknown member, with the default the class gives it."""

    def __init__(self, name: str, default: Any) -> None:
        self._name = name
        self._default = default

    def __get__(self, instance: Any, owner: type) -> Any:
        return self._default if instance is None else instance.extra.get(self._name, self._default)

    def __set__(self, instance: Any, value: Any) -> None:
        instance.extra[self._name] = value


def _keep_fields_as_unknown(cls: type[Model]) -> None:
    """Only its constructor knows what such a class takes, and the inherited constructor knows the inherited fields only."""
    for name in inspect.get_annotations(cls) if issubclass(cls, OpenModel) else ():
        default = cls.__dict__.get(name, _ABSENT)
        if _is_field(name) and default is not _ABSENT and not isinstance(default, _UnknownField):
            setattr(cls, name, _UnknownField(name, default))


def prepare(cls: type[Model]) -> None:
    """Make a recorded class into a model, unless that has happened."""
    with _lock:
        if not _is_waiting(cls):
            return
        for base in cls.__mro__[1:]:
            if issubclass(base, Model):
                prepare(base)
        own = {name: kind for name, kind in inspect.get_annotations(cls).items() if _is_field(name)}
        cls.__annotations__ = own
        for name in own:
            if name in cls.__dict__:
                setattr(cls, name, _default(cls.__dict__[name]))
        if "model_post_init" in cls.__dict__:
            cls.__attrs_post_init__ = _post_init  # type: ignore[attr-defined]  # what attrs looks for
        model(slots=False)(cls)
        for function in (__getstate__, __setstate__):
            if function.__name__ not in cls.__dict__:
                setattr(cls, function.__name__, function)
        cls.__model_fields_of__ = _in_published_order(cls)


def _is_waiting(cls: type[Model]) -> bool:
    return cls.__dict__.get("__model_fields_of__") is _fields_when_asked and "__attrs_attrs__" not in cls.__dict__


def _is_field(name: str) -> bool:
    return not name.startswith(("_", "model_config"))


def _default(given: Any) -> Any:
    """A default, or the one in pydantic's ``Field(...)``."""
    fields = sys.modules.get("pydantic.fields")
    if fields is None or not isinstance(given, fields.FieldInfo):
        return given
    if given.is_required():
        return attrs.field()
    factory: Any = given.default_factory
    return attrs.field(default=given.default) if factory is None else attrs.field(factory=factory)


def __getstate__(self: Any) -> dict[str, Any]:
    slots = {field.name: getattr(self, field.name) for field in attrs.fields(type(self)) if hasattr(self, field.name)}
    return {**slots, **vars(self)}


def __setstate__(self: Any, state: dict[str, Any]) -> None:
    for name, value in state.items():
        object.__setattr__(self, name, value)


def _post_init(self: Any) -> None:
    self.model_post_init(None)


def _in_published_order(cls: type[Model]) -> tuple[ModelField, ...]:
    """A field that is declared again keeps its place."""
    fields = {field.name: field for field in cls.__model_fields_of__}
    inherited = [field.name for base in cls.__mro__[1:2] for field in getattr(base, "__model_fields_of__", ())]
    order = [name for name in inherited if name in fields]
    return tuple(fields[name] for name in [*order, *(name for name in fields if name not in order)])
