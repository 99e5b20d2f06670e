"""What every model is made of: the two base classes and the class decorator `model`.

A model is an attrs class whose `__init__` is generated here instead of by attrs, because attrs' own can neither
coerce a nested dict with a path in the error nor take keywords it does not know. Above: the files with the models.
Below: `_shapes` (what a field accepts), `_problems`. Nothing here knows JSON.
"""

from __future__ import annotations

import inspect
import linecache
import operator
import reprlib
import sys
import typing
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar, dataclass_transform, overload

import attrs

from .field_types import (
    BoolShape,
    CheckedShape,
    DictShape,
    FloatShape,
    IntShape,
    ListShape,
    LiteralShape,
    ModelShape,
    OptionalShape,
    Shape,
    StrShape,
    shape_of,
)
from .problems import Building
from .unknown_keywords import look_at_unknown

ModelT = TypeVar("ModelT", bound="type[Model]")

_EXTRA_ALIAS = "_extra_"
"""The keyword `attrs.evolve` passes `OpenModel.extra` by; ``extra=`` itself is an unknown keyword like any other."""


class _Sentinel:
    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


REQUIRED: Any = _Sentinel("<required>")
_FRESH: Any = _Sentinel("<new for each instance>")


@attrs.frozen
class ModelField:
    """One declared field, as the constructor and the JSON code see it.

    Attributes:
        default: The value, `REQUIRED`, or None if `factory` makes it.
        factory: Makes the default, for defaults that must not be shared.
    """

    name: str
    shape: Shape
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


class _FieldsOnDemand:
    """Works out a class's fields when they are first asked for: 40 classes at once would slow down every import."""

    def __get__(self, instance: object, owner: type[Model]) -> tuple[ModelField, ...]:
        owner.__model_fields_of__ = fields = _declared_fields(owner)
        return fields


class _SignatureOnDemand:
    """What `inspect` and help() show: the keywords, not how `__init__` takes them."""

    def __get__(self, instance: object, owner: type[Model]) -> inspect.Signature:
        return _signature(owner)


class Model:
    """Base of every model: keyword-only, mutable, equal by value, with slots (an unknown attribute is an error).

    It has no public members on purpose: published modules branch on the absence of convenience methods.
    """

    __slots__ = ()

    __model_fields_of__: ClassVar[tuple[ModelField, ...]] = ()
    """The declared fields in order, without `OpenModel.extra`."""
    __signature__: ClassVar[_SignatureOnDemand] = _SignatureOnDemand()
    __remembers_order__: ClassVar[bool] = False
    """Whether a mapping that becomes this model is shown to `_remember_order` afterwards."""

    if TYPE_CHECKING:
        # attrs adds these; stated here so that generic code may rely on them.
        __attrs_attrs__: ClassVar[tuple[attrs.Attribute[Any], ...]]

    if not TYPE_CHECKING:  # to a type checker it would be the class's as well

        @property
        def __dict__(self) -> dict[str, Any]:
            """What ``vars()`` asks for. Models have slots and none of it, unless a layer above attaches ``__vars__``."""
            return self.__vars__()

    def _remember_order(self, names: Iterable[str]) -> None:
        """Note the order in which the members came, for models that give it back."""

    def _in_order(self, members: dict[str, Any]) -> dict[str, Any]:
        """The members in the order noted, or as they are."""
        return members

    def __eq__(self, other: object) -> bool:
        cls = self.__class__
        if other.__class__ is not cls:
            return NotImplemented
        compared = _COMPARED.get(cls) or _compared_attributes(cls)
        return bool(compared(self) == compared(other))

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # may be changed, so not for sets

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
            object.__setattr__(copied, attribute.name, value.copy() if kind is dict or kind is list else value)
        return copied


_COMPARED: dict[type[Model], Callable[[Any], Any]] = {}


def _compared_attributes(cls: type[Model]) -> Callable[[Any], Any]:
    names = [attribute.name for attribute in attrs.fields(cls) if attribute.eq]
    compared = _COMPARED[cls] = operator.attrgetter(*names) if names else lambda instance: None
    return compared


@attrs.define(slots=True, init=False, repr=False, eq=False)
class OpenModel(Model):
    """A model that keeps what it does not know.

    Attributes:
        extra: Unknown keywords and unknown JSON members, in the order they came; written back after the declared
            fields. A member whose name is declared is not written.
    """

    extra: dict[str, Any] = attrs.field(factory=dict, alias="_extra_")


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
        defined.__model_fields_of__ = _FieldsOnDemand()  # type: ignore[assignment]  # gives what is promised
        defined.__init__ = _init_on_demand(defined)  # type: ignore[method-assign]  # what the decorator is for
        return defined

    return decorate if cls is None else decorate(cls)


def _declared_fields(cls: type[Model]) -> tuple[ModelField, ...]:
    hints = _resolved_hints(cls)
    fields = []
    for attribute in attrs.fields(cls):
        if attribute.alias == _EXTRA_ALIAS or not attribute.init:
            continue
        raw, check = attribute.metadata.get("raw"), attribute.metadata.get("check")
        shape = Shape() if raw else shape_of(hints.get(attribute.name, Any))
        default: Any = attribute.default
        factory: Callable[[], Any] | None = None
        if isinstance(default, attrs.Factory):  # type: ignore[arg-type]  # typed as a function in the stubs
            default, factory = None, default.factory
        elif type(default) in (list, dict):
            default, factory = None, default.copy
        elif default is attrs.NOTHING:
            default = REQUIRED
        fields.append(ModelField(attribute.name, CheckedShape(shape, check) if check else shape, default, factory))
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


# ── the constructor ──────────────────────────────────────────────────────────────────────────────

_EXACT: dict[type[Shape], str] = {StrShape: "str", IntShape: "int", FloatShape: "float", BoolShape: "bool"}
_NONE_GIVEN: Any = _Sentinel("<none>")


def _init_on_demand(cls: type[Model]) -> Callable[..., None]:
    def __init__(self: Model, /, *positional: Any, **keywords: Any) -> None:
        generated = cls.__init__ = _generate_init(cls)  # type: ignore[method-assign]
        generated(self, *positional, **keywords)

    return __init__


def _generate_init(cls: type[Model]) -> Callable[..., None]:
    """Write `__init__` for one class.

    The common case of each field is one inline test; all else goes to the field's shape. Written out because it is on
    the path of every hook dispatch: a loop over the fields costs ten times as much. For the same reason the
    parameters are not declared keyword-only (Python looks such defaults up one by one, which is a third of the cost of
    an empty HookResult): a positional-only guard in front of them catches positional use instead. A second parameter behind
    that guard is `_building`, which nobody can pass: its default costs less than an assignment.
    """
    fields = cls.__model_fields_of__
    names: dict[str, Any] = {"_Building": Building, "_REQUIRED": REQUIRED, "_FRESH": _FRESH, "_cls": cls}
    names |= {"_coerce": _coerce_field, "_NONE_GIVEN": _NONE_GIVEN, "_refuse_positional": _refuse_positional}
    names["_look_at_unknown"] = look_at_unknown
    parameters: list[str] = []
    body = ["if _positional is not _NONE_GIVEN:", "    _refuse_positional(_cls)"]
    body += ["if _unknown:", "    _look_at_unknown(_cls, _unknown)"]
    for index, field in enumerate(fields):
        names[f"_shape{index}"], names[f"_default{index}"] = field.shape, field.default
        default = "_FRESH" if field.factory is not None else f"_default{index}"
        parameters.append(f"{field.name}={default}")
        body += _init_lines(index, field, names)
    body += ["if _building is not None:", "    _building.finish(_cls.__name__)"]
    body += [store_line(cls, field.name, field.name, names) for field in fields]
    body += hidden_lines(cls, names)
    if issubclass(cls, OpenModel):
        body += [
            f"if _unknown and {_EXTRA_ALIAS!r} in _unknown:",
            f"    _unknown = {{**_unknown.pop({_EXTRA_ALIAS!r}), **_unknown}}",
            store_line(cls, "extra", "_unknown", names),
        ]
    if hasattr(cls, "__attrs_post_init__"):
        body.append("self.__attrs_post_init__()")
    shown = ", ".join([*parameters, "**_unknown"])
    signature = f"def __init__(self, _positional=_NONE_GIVEN, _building=None, /, {shown}):"
    source = "\n    ".join([signature, *body]) + "\n"
    return compile_function(source, "__init__", names, f"{cls.__module__}.{cls.__qualname__}")


def _signature(cls: type[Model]) -> inspect.Signature:
    keyword, empty = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    parameters = []
    for field in cls.__model_fields_of__:
        default = empty if field.is_required else _FRESH if field.factory is not None else field.default
        parameters.append(inspect.Parameter(field.name, keyword, default=default))
    unknown = "extra" if issubclass(cls, OpenModel) else "ignored"
    parameters.append(inspect.Parameter(unknown, inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(parameters)


def _refuse_positional(cls: type[Model]) -> NoReturn:
    first = cls.__model_fields_of__[0].name if cls.__model_fields_of__ else "name"
    raise TypeError(f"{cls.__name__} takes keyword arguments only, for example {cls.__name__}({first}=...)")


def store_line(cls: type[Model], name: str, value: str, names: dict[str, Any]) -> str:
    """The line that fills one field of a new instance called ``self``."""
    if cls.__setattr__ is object.__setattr__:
        return f"self.{name} = {value}"
    # A class that checks assignments has nothing to check here: the value has just been coerced.
    names["_set"] = object.__setattr__
    return f"_set(self, {name!r}, {value})"


def hidden_lines(cls: type[Model], names: dict[str, Any]) -> list[str]:
    """Lines that give the attributes nobody can pass to `__init__` their defaults."""
    hidden = [attribute for attribute in attrs.fields(cls) if not attribute.init]
    return [store_line(cls, attribute.name, repr(attribute.default), names) for attribute in hidden]


def _init_lines(index: int, field: ModelField, names: dict[str, Any]) -> list[str]:
    """Lines that bring one parameter into its shape."""
    name, shape, lines = field.name, field.shape, []
    keyword = "if"
    if field.factory is not None:
        names[f"_factory{index}"] = field.factory
        made = "[]" if field.factory is list else "{}" if field.factory is dict else f"_factory{index}()"
        lines += [f"if {name} is _FRESH:", f"    {name} = {made}"]
        keyword = "elif"
    if isinstance(shape, OptionalShape):
        shape = shape.inner
        lines += [f"{keyword} {name} is None:", "    pass"]
        keyword = "elif"
    if isinstance(shape, (DictShape, ListShape)) and type(shape.inner) is Shape:
        kind = "dict" if isinstance(shape, DictShape) else "list"
        lines += [f"{keyword} {name}.__class__ is {kind}:", f"    {name} = {name}.copy()"]
        keyword = "elif"
    test = _kept_as_it_is(index, name, field, shape, names)
    return [
        *lines,
        f"{keyword} not ({test}):" if test else f"{keyword} True:",
        "    if _building is None:",
        "        _building = _Building()",
        f"    {name} = _coerce(_building, {name!r}, _shape{index}, {name})",
    ]


def _kept_as_it_is(index: int, name: str, field: ModelField, shape: Shape, names: dict[str, Any]) -> str:
    """The test that lets a value pass without a call, as source; nothing if there is none."""
    tests = []
    if field.factory is None and not field.is_required and field.default is not None:
        tests.append(f"{name} is _default{index}")
    if type(shape) is Shape:
        tests = [f"{name} is not _REQUIRED"]
    elif type(shape) in _EXACT:
        tests.append(f"{name}.__class__ is {_EXACT[type(shape)]}")
    elif isinstance(shape, LiteralShape):
        names[f"_words{index}"] = shape.values
        tests.append(f"{name}.__class__ is str and {name} in _words{index}")
    elif isinstance(shape, ModelShape):
        names[f"_model{index}"] = shape.cls
        tests.append(f"{name}.__class__ is _model{index}")
    elif isinstance(shape, CheckedShape) and not field.is_required:
        tests = [f"{name} is _default{index}"]
    return " or ".join(tests)


def _coerce_field(building: Building, name: str, shape: Shape, value: Any) -> Any:
    if value is REQUIRED:
        building.note((None, name), "required, but missing")
        return None
    return shape.coerce(value, (None, name), building)


def indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


def compile_function(source: str, name: str, names: dict[str, Any], owner: str) -> Callable[..., Any]:
    """Compile one generated function, with its source kept for tracebacks and debuggers."""
    filename = f"<generated {name} of {owner}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    exec(compile(source, filename, "exec"), names)
    function: Callable[..., Any] = names[name]
    function.__qualname__ = f"{owner.rpartition('.')[2]}.{name}"
    function.__module__ = owner.rpartition(".")[0]
    return function
