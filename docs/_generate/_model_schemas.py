"""The models as JSON Schema: what `to_json` writes for each, from the same shapes that check and read them."""

from __future__ import annotations

import json
from typing import Any

import amplifier.models as room
from amplifier.models import Model, OpenModel
from amplifier.models._definition.field_types import (
    BoolShape,
    CheckedShape,
    DatetimeShape,
    DecimalShape,
    DictShape,
    EitherShape,
    FloatShape,
    IntShape,
    ListShape,
    LiteralShape,
    ModelShape,
    OptionalShape,
    Shape,
    StrShape,
    TaggedShape,
)

from ._markdown import one_line, read_doc

_SCALARS: dict[type[Shape], dict[str, Any]] = {
    StrShape: {"type": "string"},
    IntShape: {"type": "integer"},
    FloatShape: {"type": "number"},
    BoolShape: {"type": "boolean"},
    DecimalShape: {"type": "string"},
    DatetimeShape: {"type": "string", "format": "date-time"},
    Shape: {},
}


def models_schema() -> dict[str, Any]:
    """One definition for each public model."""
    found = [getattr(room, name) for name in room.__all__]
    models = [each for each in found if isinstance(each, type) and issubclass(each, Model)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Amplifier models",
        "description": "What amplifier.models.to_json writes, by class; refer to #/$defs/Message and so on.",
        "$defs": {model.__name__: _definition(model) for model in models if model not in (Model, OpenModel)},
    }


def models_schema_text() -> str:
    """The schema as it is shipped beside the models."""
    return json.dumps(models_schema(), indent=2, ensure_ascii=False) + "\n"


def _definition(model: type[Model]) -> dict[str, Any]:
    doc = read_doc(model.__doc__)
    described = dict(entry.split(": ", 1) for entry in doc.sections.get("Attributes", []) if ": " in entry)
    properties = {}
    for field in model.__model_fields_of__:
        about = {"description": described[field.name]} if field.name in described else {}
        properties[field.name] = {**about, **_schema_of(field.shape)}
    required = [field.name for field in model.__model_fields_of__ if field.is_required]
    definition = {"description": one_line(doc.text), "type": "object", "properties": properties}
    return {**definition, "required": required} if required else definition


def _schema_of(shape: Shape) -> dict[str, Any]:
    if type(shape) in _SCALARS:
        return dict(_SCALARS[type(shape)])
    match shape:
        case LiteralShape():
            return {"enum": sorted(shape.values)}
        case DictShape():
            return {"type": "object", "additionalProperties": _schema_of(shape.inner)}
        case ListShape():
            return {"type": "array", "items": _schema_of(shape.inner)}
        case ModelShape():
            return _reference(shape.cls)
        case TaggedShape():
            return _by_tag(shape)
        case OptionalShape():
            return {"anyOf": [_schema_of(shape.inner), {"type": "null"}]}
        case EitherShape():
            return {"anyOf": [_schema_of(option) for option in shape.options]}
        case CheckedShape():
            return _schema_of(shape.inner)
    raise TypeError(f"no schema for {type(shape).__name__}")


def _by_tag(shape: TaggedShape) -> dict[str, Any]:
    """One of several models, told apart by their type; a type nobody knows is the last one's."""
    options = [_reference(cls) for cls in dict.fromkeys(shape.by_tag.values())]
    if shape.fallback is not None:
        unknown = {"properties": {"type": {"not": {"enum": sorted(shape.by_tag)}}}}
        options.append({"allOf": [_reference(shape.fallback), unknown]})
    return {"type": "object", "required": ["type"], "anyOf": options}


def _reference(model: type[Model]) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{model.__name__}"}
