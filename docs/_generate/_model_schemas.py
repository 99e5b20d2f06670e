"""The models as JSON Schema: what `to_json` writes for each, from the same field types that check and read them."""

from __future__ import annotations

import json
from typing import Any

from amplifier import models
from amplifier.models import Model, OpenModel
from amplifier.models._definition.base import FieldType
from amplifier.models._definition.field_types import (
    BoolType,
    CheckedType,
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
)

from ._markdown import one_line, read_doc

_SCALARS: dict[type[FieldType], dict[str, Any]] = {
    StrType: {"type": "string"},
    IntType: {"type": "integer"},
    FloatType: {"type": "number"},
    BoolType: {"type": "boolean"},
    DecimalType: {"type": "string"},
    DatetimeType: {"type": "string", "format": "date-time"},
    FieldType: {},
}


def models_schema() -> dict[str, Any]:
    """One definition for each public model."""
    found = [getattr(models, name) for name in models.__all__]
    classes = [each for each in found if isinstance(each, type) and issubclass(each, Model)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Amplifier models",
        "description": "What amplifier.models.to_json writes, by class; refer to #/$defs/Message and so on.",
        "$defs": {model.__name__: _definition(model) for model in classes if model not in (Model, OpenModel)},
    }


def models_schema_text() -> str:
    """The schema as it is shipped beside the models: one line for each model, because every install has it."""
    schema = models_schema()
    definitions = schema.pop("$defs").items()
    lines = ",\n".join(
        f'    "{name}": {json.dumps(definition, ensure_ascii=False)}' for name, definition in definitions
    )
    head = json.dumps(schema, indent=2, ensure_ascii=False).removesuffix("\n}")
    return f'{head},\n  "$defs": {{\n{lines}\n  }}\n}}\n'


def _definition(model: type[Model]) -> dict[str, Any]:
    doc = read_doc(model.__doc__)
    described = dict(entry.split(": ", 1) for entry in doc.sections.get("Attributes", []) if ": " in entry)
    properties = {}
    for field in model.__model_fields_of__:
        about = {"description": described[field.name]} if field.name in described else {}
        properties[field.name] = {**about, **_schema_of(field.type)}
    required = [field.name for field in model.__model_fields_of__ if field.is_required]
    definition = {"description": one_line(doc.text), "type": "object", "properties": properties}
    return {**definition, "required": required} if required else definition


def _schema_of(field_type: FieldType) -> dict[str, Any]:
    if type(field_type) in _SCALARS:
        return dict(_SCALARS[type(field_type)])
    match field_type:
        case LiteralType():
            return {"enum": sorted(field_type.values)}
        case DictType():
            return {"type": "object", "additionalProperties": _schema_of(field_type.inner)}
        case ListType():
            return {"type": "array", "items": _schema_of(field_type.inner)}
        case ModelType():
            return _reference(field_type.cls)
        case TaggedUnionType():
            return _by_tag(field_type)
        case OptionalType():
            return {"anyOf": [_schema_of(field_type.inner), {"type": "null"}]}
        case UnionType():
            return {"anyOf": [_schema_of(option) for option in field_type.options]}
        case CheckedType():
            return _schema_of(field_type.inner)
    raise TypeError(f"no schema for {type(field_type).__name__}")


def _by_tag(field_type: TaggedUnionType) -> dict[str, Any]:
    """One of several models, distinguished by their type; an unknown type is that of the last one."""
    options = [_reference(cls) for cls in dict.fromkeys(field_type.by_tag.values())]
    if field_type.fallback is not None:
        unknown = {"properties": {"type": {"not": {"enum": sorted(field_type.by_tag)}}}}
        options.append({"allOf": [_reference(field_type.fallback), unknown]})
    return {"type": "object", "required": ["type"], "anyOf": options}


def _reference(model: type[Model]) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{model.__name__}"}
