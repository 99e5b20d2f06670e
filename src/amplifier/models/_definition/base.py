"""The base classes of models, of their fields and of field types, and the state of one coercion.

They refer to each other, so they are in one file: a model has fields, a field has a type, a type coerces a value, and
coercing a mapping builds a model. The concrete field types are in `field_types`, the class decorator in `decorator`.
"""

from __future__ import annotations

import inspect
import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from amplifier.errors import ModelError, Problem

from .problems import Path, join_paths, path_text, type_name


class Sentinel:
    """A unique value with a readable repr."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


REQUIRED: Any = Sentinel("<required>")
FRESH: Any = Sentinel("<new for each instance>")

EXTRA_ALIAS = "_extra_"
"""The keyword `attrs.evolve` passes `OpenModel.extra` by; ``extra=`` itself is an unknown keyword like any other."""


class Coercion:
    """One construction under way: collects problems, and takes free-form values as they are.

    Reading JSON overrides the methods for values, because JSON has stricter rules.

    Attributes:
        problems: What is wrong so far, in reading order.
    """

    __slots__ = ("problems",)

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def note(self, path: Path, problem: str) -> None:
        self.problems.append((path_text(path), problem))

    def adopt(self, error: ModelError, path: Path) -> None:
        """Add the problems of a part that was built on its own."""
        outer = path_text(path)
        self.problems.extend((join_paths(outer, inner), problem) for inner, problem in error.problems)

    def finish(self, subject: str) -> None:
        """Raise all problems at once.

        Raises:
            ModelError: There is at least one.
        """
        if self.problems:
            raise ModelError(self.problems, subject=subject)

    def text(self, value: str, path: Path) -> str:
        return value

    def integer(self, value: int, path: Path) -> int | None:
        return value

    def number(self, value: float, path: Path) -> float | None:
        return value

    def free(self, value: Any, path: Path) -> Any:
        """A value of any type: shared, its content not checked."""
        return value

    def free_dict(self, value: Mapping[Any, Any], path: Path) -> dict[str, Any] | None:
        return dict(value)

    def free_list(self, value: Iterable[Any], path: Path) -> list[Any] | None:
        return list(value)

    def model(self, cls: type[Model], value: Mapping[Any, Any], path: Path) -> Model | None:
        """A nested model given as a mapping."""
        try:
            built = cls(**value)
        except ModelError as error:
            self.adopt(error, path)
            return None
        except TypeError:
            if all(isinstance(key, str) for key in value):
                raise
            self.note(path, f"expected str keys for {cls.__name__}")
            return None
        if built.__remembers_order__:
            built._remember_order(value)
        return built


class FieldType:
    """Accepts anything, unchanged. Base of all field types, and the field type of `Any`."""

    expected: str = "anything"
    claimed: tuple[type, ...] = (object,)
    """A union passes instances of these to this type."""

    def coerce(self, value: Any, path: Path, coercion: Coercion) -> Any:
        """Return the value to store, or note in `coercion` why there is none."""
        return coercion.free(value, path)

    def claims(self, value: Any) -> bool:
        """Whether a union passes `value` to this type."""
        return isinstance(value, self.claimed)

    def wrong(self, value: Any, path: Path, coercion: Coercion) -> None:
        coercion.note(path, f"expected {self.expected}, got {type_name(value)}")


@attrs.frozen
class ModelField:
    """One declared field.

    Attributes:
        default: The value, `REQUIRED`, or None if `factory` makes it.
        factory: Makes the default, for defaults that must not be shared.
    """

    name: str
    type: FieldType
    default: Any
    factory: Callable[[], Any] | None

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED

    @property
    def is_left_out_when_none(self) -> bool:
        return self.default is None and self.factory is None

    def make_default(self) -> Any:
        return self.default if self.factory is None else self.factory()


class _LazySignature:
    """The keywords of the constructor for `inspect` and help(), which would otherwise show how `__init__` takes them."""

    def __get__(self, instance: object, owner: type[Model]) -> inspect.Signature:
        parameters = []
        for field in owner.__model_fields_of__:
            default = (
                inspect.Parameter.empty if field.is_required else field.default if field.factory is None else FRESH
            )
            parameters.append(inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default))
        unknown = "extra" if issubclass(owner, OpenModel) else "ignored"
        parameters.append(inspect.Parameter(unknown, inspect.Parameter.VAR_KEYWORD))
        return inspect.Signature(parameters)


class Model:
    """Base of every model: keyword-only, mutable, equal by value, with slots (an unknown attribute is an error).

    It has no public members on purpose: published modules branch on the absence of convenience methods.
    """

    __slots__ = ()

    __model_fields_of__: ClassVar[tuple[ModelField, ...]] = ()
    """The declared fields in order, without `OpenModel.extra`."""
    __signature__: ClassVar[_LazySignature] = _LazySignature()
    __remembers_order__: ClassVar[bool] = False
    """Whether `_remember_order` is called after a mapping became this model."""

    if TYPE_CHECKING:
        # attrs adds these; declared here so that generic code may rely on them.
        __attrs_attrs__: ClassVar[tuple[attrs.Attribute[Any], ...]]

    if not TYPE_CHECKING:  # to a type checker it would be the class's as well

        @property
        def __dict__(self) -> dict[str, Any]:
            """What ``vars()`` returns: models have slots and no dict, unless a layer above attaches ``__vars__``."""
            return self.__vars__()

    def _remember_order(self, names: Iterable[str]) -> None:
        """Record the order in which the members came, for models that write it back."""

    def _in_order(self, members: dict[str, Any]) -> dict[str, Any]:
        """The members in the recorded order, or as they are."""
        return members

    def __eq__(self, other: object) -> bool:
        cls = self.__class__
        if other.__class__ is not cls:
            return NotImplemented
        compared = _COMPARED.get(cls) or _compared_attributes(cls)
        return bool(compared(self) == compared(other))

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # mutable, so not hashable

    @reprlib.recursive_repr()
    def __repr__(self) -> str:
        shown = []
        for field in self.__model_fields_of__:
            value = getattr(self, field.name)
            if field.is_required or value != field.make_default():
                shown.append(f"{field.name}={value!r}")
        if isinstance(self, OpenModel):
            shown += [f"{name}={value!r}" for name, value in self.extra.items()]
        return f"{type(self).__name__}({', '.join(shown)})"

    def __copy__(self) -> Model:
        """A copy with lists and dicts of its own, one level down, like the one the constructor makes."""
        cls = type(self)
        copied = cls.__new__(cls)
        for attribute in attrs.fields(cls):
            value = getattr(self, attribute.name)
            kind = type(value)
            is_copied = kind is dict or issubclass(kind, list)
            object.__setattr__(copied, attribute.name, value.copy() if is_copied else value)
        return copied


_COMPARED: dict[type[Model], Callable[[Any], Any]] = {}


def _compared_attributes(cls: type[Model]) -> Callable[[Any], Any]:
    names = [attribute.name for attribute in attrs.fields(cls) if attribute.eq]
    compared = _COMPARED[cls] = operator.attrgetter(*names) if names else lambda instance: None
    return compared


@attrs.define(slots=True, init=False, repr=False, eq=False)
class OpenModel(Model):
    """A model that keeps unknown members.

    Attributes:
        extra: Unknown keywords and unknown JSON members, in the order they came; written back after the declared
            fields. A member whose name is declared is not written.
    """

    extra: dict[str, Any] = attrs.field(factory=dict, alias="_extra_")
