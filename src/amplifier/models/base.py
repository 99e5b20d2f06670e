"""The base classes of models, the decorator that makes one, and the constructor they share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, dataclass_transform, overload

import attrs

from amplifier._internal.json import JSON
from amplifier._internal.spelling import did_you_mean, misspelt, warn_caller
from amplifier.errors import ModelError

from .fields import (
    EXTRA_ALIAS,
    Field,
    Record,
    checked,
    declared_fields,
    is_required,
    keeps_unknown,
    per_class,
)

if TYPE_CHECKING:
    from ._converter import KeywordReader

ModelT = TypeVar("ModelT", bound="type[Model]")
OnSetattr: TypeAlias = Callable[[Any, Field, Any], Any]

# ── decorator ────────────────────────────────────────────────────────────────────────────────────


@overload
def model(cls: ModelT, /) -> ModelT: ...
@overload
def model(
    *,
    slots: bool = True,
    on_setattr: OnSetattr | None = None,
) -> Callable[[ModelT], ModelT]: ...
@dataclass_transform(kw_only_default=True, field_specifiers=(attrs.field, checked))
def model(
    cls: ModelT | None = None,
    /,
    *,
    slots: bool = True,
    on_setattr: OnSetattr | None = None,
) -> ModelT | Callable[[ModelT], ModelT]:
    """Apply `attrs.define` with the options of a model: keyword-only, with `Model.__init__`.

    Args:
        slots: False changes the class in place instead of making a new one. A subclass that is
            prepared after its definition needs that.
        on_setattr: As in `attrs.define`.
    """
    decorate: Callable[[ModelT], ModelT] = attrs.define(
        init=False,
        kw_only=True,
        slots=slots,
        on_setattr=on_setattr,
        field_transformer=_arrange_fields,
    )
    return decorate if cls is None else decorate(cls)


def _arrange_fields(cls: type, fields: list[Field]) -> list[Field]:
    """Keep the place of a field that is declared again, and put `extra` last."""
    inherited = [field.name for field in getattr(cls.__mro__[1], "__attrs_attrs__", ())]
    place = {name: position for position, name in enumerate(inherited)}

    def sort_key(field: Field) -> tuple[bool, int]:
        return field.alias == EXTRA_ALIAS, place.get(field.name, len(inherited))

    return sorted(map(_copy_default, fields), key=sort_key)


def _copy_default(field: Field) -> Field:
    """Give every instance its own copy of a default that is a list or a dict."""
    default: Any = field.default
    if type(default) in (list, dict):
        return field.evolve(default=attrs.Factory(default.copy))
    return field


# ── classes ──────────────────────────────────────────────────────────────────────────────────────


class _LazySignature:
    """Descriptor that shows the keywords of the constructor to `inspect` and help()."""

    def __get__(self, instance: object, owner: type[Model]) -> inspect.Signature:
        keyword, empty = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
        parameters = []
        for field in declared_fields(owner):
            default = empty if is_required(field) else field.default
            parameters.append(inspect.Parameter(field.name, keyword, default=default))
        unknown = "extra" if issubclass(owner, OpenModel) else "ignored"
        parameters.append(inspect.Parameter(unknown, inspect.Parameter.VAR_KEYWORD))
        return inspect.Signature(parameters)


# attrs makes the slots, equality, repr and `__attrs_init__` of a model. The constructor adds three
# things that attrs doesn't have: nested dicts become models, every problem is listed with its path,
# and unknown keywords are kept or ignored.
#
# A model has no public members besides its fields, because published modules branch on the absence
# of convenience methods.
class Model(Record):
    """Base of every model: keyword-only, mutable, equal by value, with slots."""

    __slots__ = ()

    __signature__: ClassVar[_LazySignature] = _LazySignature()
    _reports_misspellings: ClassVar[bool] = True

    if TYPE_CHECKING:
        # attrs adds this. It is declared for code that handles any model.
        __attrs_init__: Callable[..., None]
        # A model is mutable, so it has no hash.
        __hash__: ClassVar[None]  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool: ...

    else:
        # Type checkers would prefer this constructor to the keywords of the subclasses.

        def __init__(self, /, *positional: Any, **keywords: Any) -> None:
            cls = self.__class__
            if positional:
                names = (field.name for field in declared_fields(cls))
                example = f"for example {cls.__name__}({next(names, 'name')}=...)"
                raise TypeError(f"{cls.__name__} takes keyword arguments only, {example}")
            if not keywords and not _has_required(cls):
                # There is nothing to coerce in most results of hooks.
                self.__attrs_init__()
                return
            evolved = keywords.pop(EXTRA_ALIAS, None)
            self._fill(keywords, warn=True)
            if evolved:
                self.extra = {**evolved, **self.extra}

    def _fill(self, members: Mapping[str, object], *, warn: bool = False) -> None:
        """Set every field of a new instance from keywords or from a mapping.

        Args:
            members: The values by name.
            warn: Whether to warn about unknown members that look misspelt.

        Raises:
            ModelError: Some members do not fit. Every problem is listed.
        """
        cls = self.__class__
        try:
            known = _keyword_reader(cls)(members, None)
        except ExceptionGroup as error:
            if warn:
                _warn_about_misspelt(cls, members)
            from ._converter import model_error  # noqa: PLC0415  # loaded by the reader above

            raise model_error(cls, error) from None
        if len(known) < len(members):
            if warn:
                _warn_about_misspelt(cls, members)
            if keeps_unknown(cls):
                known[EXTRA_ALIAS] = {name: members[name] for name in members if name not in known}
                if not all(isinstance(name, str) for name in members):
                    raise ModelError([("", "expected str keys")], subject=cls.__name__)
        self.__attrs_init__(**known)

    def __copy__(self) -> Model:
        """Return a copy with its own lists and dicts, one level deep, as the constructor does."""
        cls = type(self)
        copied = cls.__new__(cls)
        for attribute in attrs.fields(cls):
            value = getattr(self, attribute.name)
            if type(value) in (dict, list):
                value = value.copy()
            object.__setattr__(copied, attribute.name, value)
        return copied


@attrs.define(init=False)
class OpenModel(Model):
    """A model that keeps unknown members.

    Attributes:
        extra: Unknown keywords and unknown JSON members in their original order. They are written
            after the declared fields. A member with the name of a declared field is not written.
    """

    extra: dict[str, JSON] = attrs.field(factory=dict, alias="_extra_", kw_only=True)


@per_class
def _has_required(cls: type[Model]) -> bool:
    return any(map(is_required, declared_fields(cls)))


@per_class
def _keyword_reader(cls: type[Model]) -> KeywordReader:
    # cattrs takes longer to import than this package, and many programs only build empty results.
    from ._converter import keyword_reader  # noqa: PLC0415

    return keyword_reader(cls)


# ── misspelt keywords ────────────────────────────────────────────────────────────────────────────


def _warn_about_misspelt(cls: type[Model], keywords: Mapping[str, object]) -> None:
    """Warn about an unknown keyword that is nearly a field, at the line that built the model.

    A model that this package builds from data (JSON, nested dicts, stored messages) never warns:
    a service that names its members differently is not a mistake in the program.
    """
    names = frozenset(field.name for field in declared_fields(cls))
    outcome = "kept as an extra member" if keeps_unknown(cls) else "ignored"
    for name in keywords if cls._reports_misspellings else ():
        match = None if name in names or name.startswith("_") else misspelt(name, names)
        if match is not None:
            message = f"{cls.__name__} has no field {name!r}, so it is {outcome}"
            warn_caller(f"{message}; {did_you_mean(match)}", "amplifier.models.", "attr.")
