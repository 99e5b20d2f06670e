"""The base classes of models, the decorator that makes one, and the constructor that all of them share.

A model is an attrs class: attrs makes its slots, equality, repr and `__attrs_init__`. The constructor here adds what attrs has
not: nested dicts become models, every problem is listed with its path, unknown keywords are kept or ignored. What a field
accepts is decided by the converter (`_converter`), which is imported when the first model is built with a keyword.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform, overload

import attrs

from amplifier._spelling import did_you_mean, misspelt, warn_caller
from amplifier.errors import ModelError

T = TypeVar("T")
ModelT = TypeVar("ModelT", bound="type[Model]")

EXTRA_ALIAS = "_extra_"
"""The keyword `attrs.evolve` passes `OpenModel.extra` by; ``extra=`` itself is an unknown keyword like any other."""


def per_class(function: Callable[[type[Model]], T]) -> Callable[[type[Model]], T]:
    """`functools.cache`, to whose types a class of unhashable instances is unhashable itself."""
    cached: Any = functools.cache(function)
    return cached  # type: ignore[no-any-return]


# ── how a class is made ──────────────────────────────────────────────────────────────────────────


def checked(
    check: Callable[[Any], Any], *, default: Any = attrs.NOTHING, raw: bool = False, before: bool = False
) -> Any:
    """Declare a field with one rule more than its type.

    Args:
        check: Receives the coerced value, returns the one to store, raises ValueError with the problem.
        default: As in `attrs.field`.
        raw: The type's own coercion is skipped; `check` does it all.
        before: `check` receives the value as it was given, and the type coerces what it returns.
    """
    return attrs.field(default=default, metadata={"check": check, "raw": raw, "before": before})


@overload
def model(cls: ModelT, /) -> ModelT: ...
@overload
def model(*, slots: bool = True, on_setattr: Any = None) -> Callable[[ModelT], ModelT]: ...
@dataclass_transform(kw_only_default=True, field_specifiers=(attrs.field, checked))
def model(
    cls: ModelT | None = None, /, *, slots: bool = True, on_setattr: Any = None
) -> ModelT | Callable[[ModelT], ModelT]:
    """`attrs.define` with the options of a model: keyword-only, and with the constructor of `Model`.

    Args:
        slots: False changes the class in place instead of making a new one, as a subclass that arrives through
            ``__init_subclass__`` needs it.
        on_setattr: As in `attrs.define`.
    """
    options: dict[str, Any] = {"slots": slots, "on_setattr": on_setattr, "field_transformer": _prepared}
    decorate: Callable[[ModelT], ModelT] = attrs.define(init=False, kw_only=True, **options)
    return decorate if cls is None else decorate(cls)


def _prepared(cls: type, fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    """A field that is declared again keeps its place; `extra` is the last; a default that is a list or dict is never shared."""
    inherited = [field.name for field in getattr(cls.__mro__[1], "__attrs_attrs__", ())]
    own = [_with_own_default(field, field.default) for field in fields]
    place = {name: position for position, name in enumerate(inherited)}
    return sorted(own, key=lambda field: (field.alias == EXTRA_ALIAS, place.get(field.name, len(inherited))))


def _with_own_default(field: attrs.Attribute[Any], default: Any) -> attrs.Attribute[Any]:
    return field.evolve(default=attrs.Factory(default.copy)) if type(default) in (list, dict) else field


@per_class
def declared_fields(cls: type[Model]) -> tuple[attrs.Attribute[Any], ...]:
    """The fields of a model in order, their types resolved, without `OpenModel.extra` and what is no keyword."""
    cls._before_first_use()
    hints = resolved_hints(cls)
    return tuple(
        field.evolve(type=hints.get(field.name, Any))
        for field in getattr(cls, "__attrs_attrs__", ())
        if field.init and field.alias != EXTRA_ALIAS
    )


@per_class
def _has_required(cls: type[Model]) -> bool:
    return any(map(is_required, declared_fields(cls)))


def is_required(field: attrs.Attribute[Any]) -> bool:
    return field.default is attrs.NOTHING


def resolved_hints(cls: type) -> dict[str, Any]:
    """Annotations as types; what cannot be resolved at run time is Any rather than an error."""
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        names = {**vars(sys.modules.get(base.__module__, object)), **vars(base)}
        for name, annotation in inspect.get_annotations(base).items():
            try:
                hints[name] = eval(annotation, names) if isinstance(annotation, str) else annotation
            except (NameError, TypeError):
                hints[name] = Any
    return hints


@per_class
def _keyword_reader(cls: type[Model]) -> Callable[[Mapping[str, Any], Any], dict[str, Any]]:
    reader: Callable[[Mapping[str, Any], Any], dict[str, Any]] = converter_module().keyword_reader(cls)
    return reader


def converter_module() -> Any:
    """The module that is built on these classes: by its name, and late, because cattrs takes longer to import than the package."""
    return importlib.import_module("amplifier.models._converter")


# ── the classes ──────────────────────────────────────────────────────────────────────────────────


class _LazySignature:
    """The keywords of the constructor for `inspect` and help(), which would otherwise show how `__init__` takes them."""

    def __get__(self, instance: object, owner: type[Model]) -> inspect.Signature:
        keyword, empty = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
        parameters = [
            inspect.Parameter(field.name, keyword, default=empty if is_required(field) else field.default)
            for field in declared_fields(owner)
        ]
        unknown = "extra" if issubclass(owner, OpenModel) else "ignored"
        return inspect.Signature([*parameters, inspect.Parameter(unknown, inspect.Parameter.VAR_KEYWORD)])


class Model:
    """Base of every model: keyword-only, mutable, equal by value, with slots (an unknown attribute is an error).

    It has no public members on purpose: published modules branch on the absence of convenience methods.
    """

    __slots__ = ()

    __signature__: ClassVar[_LazySignature] = _LazySignature()
    _reports_misspellings: ClassVar[bool] = True

    if TYPE_CHECKING:
        # attrs adds these; declared here so that generic code may rely on them.
        __attrs_attrs__: ClassVar[tuple[attrs.Attribute[Any], ...]]

        __attrs_init__: Callable[..., None]
        __hash__: ClassVar[None]  # type: ignore[assignment]  # mutable, so not hashable

        def __eq__(self, other: object) -> bool: ...

    else:  # to a type checker this would be the class's as well, and hide the keywords of the subclasses

        def __init__(self, /, *positional: Any, **keywords: Any) -> None:
            if positional:
                name, first = type(self).__name__, next((field.name for field in declared_fields(type(self))), "name")
                raise TypeError(f"{name} takes keyword arguments only, for example {name}({first}=...)")
            if not keywords and not _has_required(self.__class__):  # nothing to coerce; most hooks return this
                self.__attrs_init__()
                return
            evolved = keywords.pop(EXTRA_ALIAS, None)
            self._fill(keywords, warns=True)
            if evolved:
                self.extra = {**evolved, **self.extra}

    @classmethod
    def _before_first_use(cls) -> None:
        """A layer above may make a bare subclass a model here."""

    def _fill(self, members: Mapping[str, Any], *, warns: bool = False) -> None:
        """Set every field of a new instance from keywords, or from a mapping, about whose unknown members it does not warn.

        Raises:
            ModelError: With everything that is wrong.
        """
        cls = self.__class__
        try:
            known = _keyword_reader(cls)(members, None)
        except ExceptionGroup as error:
            if warns:
                _warn_about_misspelt(cls, members)
            raise converter_module().model_error(cls, error) from None
        if len(known) < len(members):
            if warns:
                _warn_about_misspelt(cls, members)
            if issubclass(cls, OpenModel):
                known[EXTRA_ALIAS] = {name: members[name] for name in members if name not in known}
                if not all(isinstance(name, str) for name in members):
                    raise ModelError([("", "expected str keys")], subject=cls.__name__)
        self.__attrs_init__(**known)

    def _in_order(self, members: dict[str, Any]) -> dict[str, Any]:
        """The members of the JSON object in the order in which they are written."""
        return members

    def __copy__(self) -> Model:
        """A copy with lists and dicts of its own, one level down, like the one the constructor makes."""
        cls = type(self)
        copied = cls.__new__(cls)
        for attribute in attrs.fields(cls):
            value = getattr(self, attribute.name)
            object.__setattr__(copied, attribute.name, value.copy() if type(value) in (dict, list) else value)
        return copied


@attrs.define(init=False)
class OpenModel(Model):
    """A model that keeps unknown members.

    Attributes:
        extra: Unknown keywords and unknown JSON members, in the order they came; written back after the declared
            fields. A member whose name is declared is not written.
    """

    extra: dict[str, Any] = attrs.field(factory=dict, alias="_extra_", kw_only=True)


# ── misspelt keywords ────────────────────────────────────────────────────────────────────────────


def _warn_about_misspelt(cls: type[Model], keywords: Mapping[str, Any]) -> None:
    """Warn about an unknown keyword that is nearly the name of a field, at the line that called the constructor.

    Models that this package builds from data (JSON, dicts inside of other models, stored messages) never warn: the member names of
    a service are no mistake in the program.
    """
    names = frozenset(field.name for field in declared_fields(cls))
    fate = "kept as an extra member" if issubclass(cls, OpenModel) else "ignored"
    for name in keywords if cls._reports_misspellings else ():
        meant = None if name in names or name.startswith("_") else misspelt(name, names)
        if meant is not None:
            message = f"{cls.__name__} has no field {name!r}, so it is {fate}; {did_you_mean(meant)}"
            warn_caller(message, "amplifier.models.", "attr.")
