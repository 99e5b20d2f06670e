"""The models as JSON Schema: what `to_json` writes for each, from the same types that check and read them."""

from __future__ import annotations

import json
import types
import typing
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, Union

from amplifier import models
from amplifier.models import Model, OpenModel
from amplifier.models._converter import tags_of
from amplifier.models.fields import declared_fields, is_required

from ._markdown import one_line, read_doc

_SCALARS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    Decimal: {"type": "string"},
    datetime: {"type": "string", "format": "date-time"},
    Any: {},
}


def models_schema() -> dict[str, Any]:
    """One definition for each public model."""
    found = [getattr(models, name) for name in models.__all__]
    classes = [each for each in found if isinstance(each, type) and issubclass(each, Model)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Amplifier models",
        "description": "What amplifier.models.to_json writes, by class; refer to #/$defs/Message and so on.",
        "$defs": {
            model.__name__: _definition(model)
            for model in classes
            if model not in (Model, OpenModel)
        },
    }


def models_schema_text() -> str:
    """The schema as it is shipped beside the models: one line for each model, because every install has it."""
    schema = models_schema()
    definitions = schema.pop("$defs").items()
    lines = ",\n".join(
        f'    "{name}": {json.dumps(definition, ensure_ascii=False)}'
        for name, definition in definitions
    )
    head = json.dumps(schema, indent=2, ensure_ascii=False).removesuffix("\n}")
    return f'{head},\n  "$defs": {{\n{lines}\n  }}\n}}\n'


def _definition(model: type[Model]) -> dict[str, Any]:
    doc = read_doc(model.__doc__)
    described = dict(
        entry.split(": ", 1) for entry in doc.sections.get("Attributes", []) if ": " in entry
    )
    properties = {}
    for field in declared_fields(model):
        about = {"description": described[field.name]} if field.name in described else {}
        properties[field.name] = {**about, **_schema_of(field.type)}
    required = [field.name for field in declared_fields(model) if is_required(field)]
    definition = {"description": one_line(doc.text), "type": "object", "properties": properties}
    return {**definition, "required": required} if required else definition


def _schema_of(kind: Any) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind) or kind, typing.get_args(kind)
    if kind in _SCALARS:
        return dict(_SCALARS[kind])
    if origin is Literal:
        return {"enum": sorted(arguments)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema_of(arguments[1])}
    if origin is list:
        return {"type": "array", "items": _schema_of(arguments[0])}
    if isinstance(kind, type) and issubclass(kind, Model):
        return _reference(kind)
    present = [member for member in arguments if member is not types.NoneType]
    if origin not in (Union, types.UnionType):
        raise TypeError(f"no schema for {kind}")
    if len(present) == 1:
        schema = _schema_of(present[0])
    elif all(isinstance(member, type) and issubclass(member, Model) for member in present):
        schema = _by_tag(present)
    else:
        schema = {"anyOf": [_schema_of(member) for member in present]}
    return schema if len(present) == len(arguments) else {"anyOf": [schema, {"type": "null"}]}


def _by_tag(classes: list[type[Model]]) -> dict[str, Any]:
    """One of several models, distinguished by their type; an unknown type is that of the last one."""
    by_tag, fallback = tags_of(classes)
    options = [_reference(cls) for cls in dict.fromkeys(by_tag.values())]
    if fallback is not None:
        unknown = {"properties": {"type": {"not": {"enum": sorted(by_tag)}}}}
        options.append({"allOf": [_reference(fallback), unknown]})
    return {"type": "object", "required": ["type"], "anyOf": options}


def _reference(model: type) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{model.__name__}"}
