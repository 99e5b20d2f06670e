"""Operations that differ from the typical ones: what one session does while another one does those."""

from __future__ import annotations

from functools import partial
from typing import Any

from amplifier.conformance.inputs.json_schema import acceptor

from .mounted_module import MountedModule
from .typical_use import Operation, execute, schema_of, typical_operations

_PLAIN, _OTHER = "text", "other text"


def other_operations(mounted: MountedModule) -> list[Operation]:
    """The operations of a tool with other texts, those of a hook in another order; none for the other types."""
    typical = [each for each in typical_operations(mounted) if not each.is_last]
    if mounted.loaded.module_type == "hook":
        return typical[::-1]
    if mounted.loaded.module_type != "tool":
        return []
    found = []
    for operation in typical:
        name, given = operation.given["tool"], operation.given["input"]
        changed = _with_other_texts(given)
        accepts = acceptor(schema_of(mounted.instances[name]))
        if changed != given and (accepts is None or accepts(changed)):
            run = partial(execute, name, changed)
            found.append(Operation(operation.name, {"tool": name, "input": changed}, run))
    return found


def _with_other_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_other_texts(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_with_other_texts(member) for member in value]
    return _OTHER if value == _PLAIN else value
