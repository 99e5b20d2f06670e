"""What to report to an author beyond what happened: where in the source to look. Nothing of the module is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path, PurePath

from amplifier.conformance.target.locate import Target, parsed
from amplifier.contracts import Clause

_MAIN_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "tool": ("execute",),
    "provider": ("complete",),
    "orchestrator": ("execute",),
    "context": ("get_messages_for_request", "add_message"),
    "hook": ("__call__", "handle", "handler", "on_event"),
    "resolver": ("async_resolve", "resolve"),
}
"""Functions that do the work of a module, by its type: where to look when the clause itself names no function."""


def source_location(subject: Target, module_type: str, clause: Clause, cancelled_at: str | None) -> str | None:
    """The line to look at, ``file:line``: the await of the module that was cancelled, else the function that keeps the promise."""
    at = None if cancelled_at is None else _line_in_module(subject, cancelled_at)
    if at is not None:
        return subject.location_at(*at)
    handlers = _registered_handlers(subject) if module_type == "hook" else []
    for name in (*clause.look_at, *handlers, *_MAIN_FUNCTIONS[module_type], "mount"):
        if name == "mount":
            marked = [each for group in subject.functions().values() for each in group]
            mount = subject.definition(subject.attribute) or next(iter(marked), None)
            found = None if mount is None else mount.location
        else:
            found = _function_named(subject, name)
        if found is not None:
            return found
    return None


def _line_in_module(subject: Target, spot: str) -> tuple[Path, int] | None:
    """The file and the line of a spot such as ``folder/file.py:12 function``; None if that is no file of the module."""
    name, _, line = spot.partition(" ")[0].rpartition(":")
    if not line.isdigit():
        return None
    ends = PurePath(name).parts[-2:]
    named = [file for file in subject.sources() if file.name == ends[-1]]
    exact = [file for file in named if file.parts[-2:] == ends]
    file = next(iter(exact or named), None)
    return None if file is None else (file, int(line))


def _nodes(subject: Target) -> Iterator[tuple[Path, ast.AST]]:
    for file in subject.sources():
        tree = parsed(file)
        yield from ((file, node) for node in (() if tree is None else ast.walk(tree)))


def _registered_handlers(subject: Target) -> list[str]:
    """The names of the functions that the source registers as handlers, in order."""
    names = []
    for _, node in _nodes(subject):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "register":
            given = [*node.args[1:2], *(word.value for word in node.keywords if word.arg == "handler")]
            names += [getattr(each, "attr", None) or getattr(each, "id", "") for each in given]
    return [name for name in names if name]


def _function_named(subject: Target, name: str) -> str | None:
    for file, node in _nodes(subject):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            return subject.location_at(file, node.lineno)
    return None
