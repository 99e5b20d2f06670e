"""The messages of the published wire format as protobuf classes, built from the table when this file is imported."""

from __future__ import annotations

from typing import Any

from google.protobuf import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)
from google.protobuf.internal import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
    enum_type_wrapper,
)

from ._wire import ENUMS, MESSAGES, PACKAGE, SERVICES, Field

_SCALARS = {"string": 9, "bytes": 12, "bool": 8, "int32": 5, "double": 1}
_MESSAGE, _ENUM, _OPTIONAL, _REPEATED = 11, 14, 1, 3


def _file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="amplifier_module.proto", package=PACKAGE, syntax="proto3")
    for name, members in ENUMS.items():
        enum = file.enum_type.add(name=name)
        for number, member in enumerate(members):
            enum.value.add(name=member, number=number)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for group in dict.fromkeys(field.group for field in fields if field.group):
            message.oneof_decl.add(name=group)
        for field in fields:
            _add_field(message, field)
        # A field that knows whether it was set is a group of its own, and those come after the others.
        for added in message.field:
            if added.proto3_optional:
                added.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{added.name}")
    for name, calls in SERVICES.items():
        service = file.service.add(name=name)
        for call in calls:
            service.method.add(
                name=call.name,
                input_type=f".{PACKAGE}.{call.request}",
                output_type=f".{PACKAGE}.{call.response}",
                server_streaming=call.is_streaming or None,
            )
    return file


def _add_field(message: Any, field: Field) -> None:
    is_many = field.is_repeated or field.kind == "map"
    added = message.field.add(name=field.name, number=field.number, label=_REPEATED if is_many else _OPTIONAL)
    if field.kind in _SCALARS:
        added.type = _SCALARS[field.kind]
    elif field.kind == "map":
        entry = message.nested_type.add(name=f"{field.name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        for number, part in enumerate(("key", "value"), 1):
            entry.field.add(name=part, number=number, label=_OPTIONAL, type=_SCALARS["string"])
        added.type, added.type_name = _MESSAGE, f".{PACKAGE}.{message.name}.{entry.name}"
    else:
        added.type = _ENUM if field.kind in ENUMS else _MESSAGE
        added.type_name = f".{PACKAGE}.{field.kind}"
    if field.group is not None:
        added.oneof_index = [group.name for group in message.oneof_decl].index(field.group)
    if field.is_optional:
        added.proto3_optional = True


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())
DESCRIPTOR = _pool.FindFileByName("amplifier_module.proto")

for _name in MESSAGES:
    globals()[_name] = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name[_name])
    globals()[_name].__module__ = __name__
for _name, _members in ENUMS.items():
    globals()[_name] = enum_type_wrapper.EnumTypeWrapper(DESCRIPTOR.enum_types_by_name[_name])
    globals().update({member: number for number, member in enumerate(_members)})


def __getattr__(name: str) -> Any:
    # For the type checker: which names there are is known when the table has been read.
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
