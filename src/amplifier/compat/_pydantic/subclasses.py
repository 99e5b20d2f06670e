"""Classes that inherit from a model with annotations and nothing else, as published providers write them.

pydantic turns such a class into a model by itself; ours need the decorator `model`. While compat is installed a
subclass is therefore made into one when it is first used. Not when it is defined: a class with the decorator is
defined first and decorated a moment later, and must not be touched in between.
"""

from __future__ import annotations

import inspect
import sys
import threading
from typing import Any, Final

import attrs

from amplifier.models._base import Model, OpenModel, model

_lock: Final = threading.RLock()
_ABSENT: Final = object()


def notice_subclass(cls: type[Model], /, **_options: Any) -> None:
    """What `Model` does when it is inherited from."""
    super(Model, cls).__init_subclass__()
    own_init = cls.__dict__.get("__init__")
    if "__attrs_attrs__" in cls.__dict__:
        return
    if own_init is None:
        cls._before_first_use = classmethod(prepare)  # type: ignore[assignment]  # it takes the class, as declared
        return

    def __init__(self: Model, /, *positional: Any, **keywords: Any) -> None:
        _keep_fields_as_unknown(cls)
        own_init(self, *positional, **keywords)

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
    """Make a class without the decorator into a model, unless that has happened."""
    with _lock:
        if not _is_bare(cls):
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
        has_own_repr = "__repr__" in cls.__dict__
        model(slots=False)(cls)
        if not has_own_repr:
            del cls.__repr__  # the inherited one is the published one
        for function in (__getstate__, __setstate__):
            if function.__name__ not in cls.__dict__:
                setattr(cls, function.__name__, function)


def _is_bare(cls: type[Model]) -> bool:
    """Whether neither attrs has made the class nor a constructor of its own knows its fields."""
    return cls is not Model and "__attrs_attrs__" not in cls.__dict__ and "__init__" not in cls.__dict__


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
