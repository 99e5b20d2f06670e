"""Reading and writing messages of the wire format without protobuf, for the two functions of the engine that need no more.

A message is a dict from field name to value. What is not set is not in it, except several: they are lists. Fields that the
table does not know are passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from ._wire import ENUMS, MESSAGES, Field

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def decode(data: bytes, message: str) -> dict[str, Any]:
    """Read a message.

    Raises:
        ValueError: The bytes are not one.
    """
    fields = {field.number: field for field in MESSAGES[message]}
    found: dict[str, Any] = {field.name: [] for field in fields.values() if field.is_repeated}
    for number, raw in _pieces(data):
        field = fields.get(number)
        if field is None:
            continue
        value = _value(field, raw)
        if field.is_repeated:
            found[field.name].append(value)
            continue
        if field.group is not None:
            for other in fields.values():
                if other.group == field.group:
                    found.pop(other.name, None)
        found[field.name] = value
    return found


def encode(values: dict[str, Any], message: str) -> bytes:
    """Write a message; values that are the default of their kind are left out unless the field knows that it was set."""
    written = bytearray()
    for field in MESSAGES[message]:
        value = values.get(field.name)
        if value is None:
            continue
        for one in value if field.is_repeated else [value]:
            if one or field.is_repeated or field.is_optional or field.group is not None or isinstance(one, dict):
                written += _written(field, one)
    return bytes(written)


def _pieces(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        length = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if kind == _BYTES:
            length, at = _varint(data, at)
        if length is None or at + length > len(data):
            raise ValueError(f"failed to decode Protobuf message: field {tag >> 3} of kind {kind} does not fit")
        yield tag >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("failed to decode Protobuf message: invalid varint")


def _value(field: Field, raw: int | bytes) -> Any:
    if isinstance(raw, int):
        if field.kind == "bool":
            return bool(raw)
        if field.kind == "int32" or field.kind in ENUMS:
            low = raw & 0xFFFFFFFF
            return low - 2**32 if low >= 2**31 else low
    elif field.kind == "double" and len(raw) == 8:
        return struct.unpack("<d", raw)[0]
    elif field.kind in ("string", "bytes"):
        return raw.decode() if field.kind == "string" else raw
    elif field.kind in MESSAGES:
        return decode(raw, field.kind)
    raise ValueError(f"failed to decode Protobuf message: {field.name} is not {field.kind}")


def _written(field: Field, value: Any) -> bytes:
    if field.kind == "double":
        return _number(field.number << 3 | _FIXED64) + struct.pack("<d", value)
    if field.kind in ("bool", "int32") or field.kind in ENUMS:
        return _number(field.number << 3 | _VARINT) + _number(int(value) & (2**64 - 1))
    data = (
        encode(value, field.kind) if field.kind in MESSAGES else value if isinstance(value, bytes) else value.encode()
    )
    return _number(field.number << 3 | _BYTES) + _number(len(data)) + data


def _number(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
