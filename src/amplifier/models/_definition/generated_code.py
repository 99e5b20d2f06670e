"""Helpers for functions that are generated as source, one for each model class: constructors, readers, writers."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import attrs

from .base import Model
from .problems import class_text


def indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


def store_line(cls: type[Model], name: str, value: str, names: dict[str, Any]) -> str:
    """The line that sets one attribute of a new instance called ``self``."""
    if cls.__setattr__ is object.__setattr__:
        return f"self.{name} = {value}"
    # A class that checks assignments has nothing to check here: the value has just been coerced.
    names["_set"] = object.__setattr__
    return f"_set(self, {name!r}, {value})"


def default_lines(cls: type[Model], names: dict[str, Any]) -> list[str]:
    """Lines that set the attributes that are no parameters of `__init__` to their defaults."""
    hidden = [attribute for attribute in attrs.fields(cls) if not attribute.init]
    return [store_line(cls, attribute.name, repr(attribute.default), names) for attribute in hidden]


def compile_function(signature: str, body: list[str], names: dict[str, Any], owner: Any) -> Callable[..., Any]:
    """Compile a generated function, with its source kept for tracebacks and debuggers.

    Args:
        signature: Such as ``read(data)``.
        names: What the body refers to.
        owner: The class or type the function is for.
    """
    name = signature.partition("(")[0]
    source = "\n".join([f"def {signature}:", *indented(body), ""])
    filename = f"<generated {name} of {owner.__module__}.{class_text(owner)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    exec(compile(source, filename, "exec"), names)
    function: Callable[..., Any] = names[name]
    function.__qualname__ = f"{class_text(owner)}.{name}"
    function.__module__ = owner.__module__
    return function


class FunctionTable(dict[Any, Callable[..., Any]]):
    """Generated functions by class or type, each made on first access."""

    def __init__(self, make: Callable[[Any], Callable[..., Any]]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Any) -> Callable[..., Any]:
        made = self[key] = self._make(key)
        return made
