"""`model_fields` and `model_json_schema`: a model's fields as pydantic describes them."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any, Final

import attrs

from amplifier.models import HookResult
from amplifier.models._definition.base import FieldType, Model, ModelField, OpenModel
from amplifier.models._definition.field_types import (
    BoolType,
    DatetimeType,
    DecimalType,
    DictType,
    FloatType,
    IntType,
    ListType,
    LiteralType,
    ModelType,
    OptionalType,
    StrType,
    TaggedUnionType,
    UnionType,
    field_type_of,
)

OURS: Final = frozenset({(HookResult, "approval_gates")})
"""Fields that the published models do not have; shown only while they hold something."""

_SCALARS: Final[dict[type[FieldType], dict[str, Any]]] = {
    StrType: {"type": "string"},
    IntType: {"type": "integer"},
    FloatType: {"type": "number"},
    BoolType: {"type": "boolean"},
    DecimalType: {"anyOf": [{"type": "number"}, {"type": "string"}]},
    DatetimeType: {"type": "string", "format": "date-time"},
}


@attrs.frozen
class FieldView:
    """One field as pydantic describes it, with the attributes that published code reads.

    Attributes:
        annotation: The resolved type.
        default: The default; ``...`` for a required field, None where a factory makes it.
        default_factory: Makes the default, if there is one to make it.
    """

    annotation: Any
    default: Any
    default_factory: Callable[[], Any] | None
    description: None = None
    alias: None = None

    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.default is ...

    def get_default(self, *, call_default_factory: bool = False) -> Any:
        """The default, made on request."""
        return self.default_factory() if self.default_factory and call_default_factory else self.default


def fields_of(cls: type[Model]) -> dict[str, FieldView]:
    """The declared fields by name."""
    hints = _hints(cls)
    return {
        field.name: FieldView(hints.get(field.name, Any), ... if field.is_required else field.default, field.factory)
        for field in published_fields(cls)
    }


def published_fields(cls: type[Model]) -> list[ModelField]:
    """The declared fields that the published model of that name has as well."""
    ours = {name for owner, name in OURS if issubclass(cls, owner)}
    return [field for field in cls.__model_fields_of__ if field.name not in ours]


def json_schema_of(cls: type[Model]) -> dict[str, Any]:
    """The JSON Schema of a model; nested models are definitions."""
    definitions: dict[str, Any] = {}

    def reference(nested: type[Model]) -> dict[str, Any]:
        if nested.__name__ not in definitions:
            definitions[nested.__name__] = {}  # a model may hold others of its own kind
            definitions[nested.__name__] = _Writer(reference).model(nested)
        return {"$ref": f"#/$defs/{nested.__name__}"}

    schema = _Writer(reference).model(cls)
    return {"$defs": dict(sorted(definitions.items())), **schema} if definitions else schema


def schema_for_pydantic(cls: type[Model], handler: Any) -> dict[str, Any]:
    """The JSON Schema of a model inside one that pydantic makes; pydantic keeps the definitions of nested models.

    Args:
        cls: The model.
        handler: Pydantic's; makes the JSON Schema of a core schema.
    """
    from pydantic import TypeAdapter  # noqa: PLC0415 — only pydantic calls this
    from pydantic_core import core_schema  # noqa: PLC0415 — as above

    def reference(nested: type[Model]) -> dict[str, Any]:
        if nested is cls:
            return {"title": cls.__name__, "type": "object"}
        # Inside a list, because the handler itself looks at the outermost schema only, without the schema of the class itself.
        made: dict[str, Any] = handler(core_schema.list_schema(TypeAdapter(nested).core_schema))["items"]
        return made

    return _Writer(reference, is_output=handler.mode == "serialization").model(cls)


def _hints(cls: type[Model]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except (NameError, TypeError):  # a type that exists for the type checker only
        return {}


@attrs.frozen
class _Writer:
    """Writes the schema of one model.

    Attributes:
        reference: Returns the reference to a nested model.
        is_output: The schema is of what a dump holds, not of what the constructor takes.
    """

    reference: Callable[[type[Model]], dict[str, Any]]
    is_output: bool = False

    def model(self, cls: type[Model]) -> dict[str, Any]:
        """The schema of the model itself."""
        hints = _hints(cls)
        schema: dict[str, Any] = {"additionalProperties": True} if issubclass(cls, OpenModel) else {}
        if cls.__doc__:
            schema["description"] = cls.__doc__.strip()
        schema["properties"] = {
            field.name: self._property(field, field_type_of(hints.get(field.name, Any)))
            for field in published_fields(cls)
        }
        required = [field.name for field in cls.__model_fields_of__ if field.is_required]
        if required:
            schema["required"] = required
        return {**schema, "title": cls.__name__, "type": "object"}

    def _property(self, field: ModelField, field_type: FieldType) -> dict[str, Any]:
        schema = self._field_type(field_type)
        if not field.is_required and field.factory is None:
            schema = {**schema, "default": field.default}
        named = field_type.inner if isinstance(field_type, OptionalType) else field_type
        # A nested model has a title already.
        return schema if isinstance(named, ModelType) else {**schema, "title": field.name.replace("_", " ").title()}

    def _field_type(self, field_type: FieldType) -> dict[str, Any]:
        if isinstance(field_type, DecimalType) and self.is_output:
            return {"type": "string"}
        if type(field_type) in _SCALARS:
            return dict(_SCALARS[type(field_type)])
        if isinstance(field_type, LiteralType):
            values = list(field_type.values)
            words = {"const": values[0]} if len(values) == 1 else {"enum": sorted(values)}
            return {**words, "type": "string"}
        if isinstance(field_type, DictType):
            members = True if type(field_type.inner) is FieldType else self._field_type(field_type.inner)
            return {"additionalProperties": members, "type": "object"}
        if isinstance(field_type, ListType):
            return {"items": self._field_type(field_type.inner), "type": "array"}
        if isinstance(field_type, ModelType):
            return self.reference(field_type.cls)
        if isinstance(field_type, TaggedUnionType):
            mapping = {tag: self.reference(cls)["$ref"] for tag, cls in field_type.by_tag.items()}
            options = [{"$ref": reference} for reference in mapping.values()]
            return {"discriminator": {"mapping": mapping, "propertyName": "type"}, "oneOf": options}
        if isinstance(field_type, OptionalType):
            inner = self._field_type(field_type.inner)
            options = inner["anyOf"] if set(inner) == {"anyOf"} else [inner]
            return {"anyOf": [*options, {"type": "null"}]}
        if isinstance(field_type, UnionType):
            return {"anyOf": [self._field_type(option) for option in field_type.options]}
        return {}
