"""Prints what an ``amplifier_core`` offers as one JSON value; the same file runs on the published one and on ours."""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import os
import pkgutil
import sys
from types import ModuleType
from typing import Any

if os.environ.get("AMPLIFIER_COMPAT"):
    import amplifier.compat

    amplifier.compat.install()

import amplifier_core  # type: ignore[import-not-found]  # whichever this interpreter has

OWN = ("amplifier_core", "amplifier.", "builtins", "_engine")


def parameters(thing: Any) -> list[list[Any]] | None:
    """Name, kind and whether there is a default, of each parameter but self; None where nothing can be seen."""
    try:
        found = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return None
    return [
        [p.name, p.kind.name, p.default is not p.empty]
        for p in found
        if p.name not in ("self", "cls")
    ]


def defaults(thing: Any) -> dict[str, str]:
    """The defaults that are plain values."""
    try:
        found = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return {}
    plain = (str, int, float, bool, type(None))
    return {p.name: repr(p.default) for p in found if isinstance(p.default, plain)}


def routine(thing: Any) -> dict[str, Any]:
    return {
        "kind": "function",
        "parameters": parameters(thing),
        "defaults": defaults(thing),
        "async": is_async(thing),
    }


def is_async(thing: Any) -> bool | None:
    """Whether it is ``async def``; native code does not show it."""
    return inspect.iscoroutinefunction(thing) if inspect.isfunction(thing) else None


def members(cls: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in dir(cls):
        value = inspect.getattr_static(cls, name, None)
        if name.startswith("__"):
            continue
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        found[name] = routine(value) if inspect.isroutine(value) else {"kind": "attribute"}
    return found


def described(value: Any) -> dict[str, Any] | None:
    """What is known about a thing of the package's own; None for what it only imports."""
    if isinstance(value, ModuleType):
        return {"kind": "module"} if value.__name__.startswith("amplifier_core") else None
    if inspect.isclass(value):
        return described_class(value) if value.__module__.startswith(OWN) else None
    if inspect.isroutine(value):
        module = getattr(value, "__module__", None) or "builtins"
        return routine(value) if module.startswith(OWN) else None
    if isinstance(value, str | int | float | bool | list | tuple | dict | frozenset | set):
        plain = sorted(value) if isinstance(value, frozenset | set) else value
        return {"kind": "constant", "value": json.loads(json.dumps(plain, default=repr))}
    return None


def default_of(field: Any) -> Any:
    return (
        field.get_default(call_default_factory=True)
        if hasattr(field, "get_default")
        else field.default
    )


def described_class(cls: type) -> dict[str, Any]:
    seen: dict[str, Any] = {
        "kind": "class",
        "parameters": parameters(cls),
        "defaults": defaults(cls),
        "members": members(cls),
    }
    if issubclass(cls, enum.Enum):
        return {"kind": "enum", "values": {member.name: member.value for member in cls}}
    if issubclass(cls, Exception):
        seen["bases"] = [base.__name__ for base in cls.__mro__]
    fields = getattr(cls, "model_fields", None)
    if isinstance(fields, dict):
        made = {
            name: default_of(field) for name, field in fields.items() if not field.is_required()
        }
        seen["fields"] = {
            name: repr(made[name]) if name in made else "required"
            for name in fields
            if name != "started_at"
        }
        seen["extra"] = (getattr(cls, "model_config", None) or {}).get(
            "extra"
        ) == "allow" or hasattr(cls, "extra")
        seen["members"] = {}
    return seen


def surface() -> dict[str, Any]:
    names = [
        "amplifier_core",
        *(m.name for m in pkgutil.walk_packages(amplifier_core.__path__, "amplifier_core.")),
    ]
    found: dict[str, Any] = {}
    for name in sorted(names):
        if "_grpc_gen." in name:  # made by protobuf's compiler there; the alias has no gRPC
            continue
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            found[name] = {"needs": error.name}
            continue
        described_names = {
            key: described(value) for key, value in vars(module).items() if not key.startswith("__")
        }
        found[name] = {
            "all": sorted(module.__all__) if hasattr(module, "__all__") else None,
            "names": {key: value for key, value in described_names.items() if value is not None},
        }
    return found


json.dump(surface(), sys.stdout, sort_keys=True)
