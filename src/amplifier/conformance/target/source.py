"""The source of a module, read from syntax trees: a dictionary for drawing inputs and settings that reach its code, and where to look for a fault.

Nothing is run. Every function about literals looks once for each module; those about places look again, since a file may have changed.
"""

from __future__ import annotations

import ast
import functools
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath

from amplifier.conformance.inputs.values import is_harmless
from amplifier.conformance.target.locate import Target, parsed
from amplifier.contracts import Clause

_MAX_LITERALS = 60
_MAX_PATTERN_LENGTH = 300
_PROGRAM_STARTERS = frozenset(
    {
        "subprocess",
        "system",
        "popen",
        "open_process",
        "run_process",
        "eval",
        "exec",
        "pexpect",
        "pty",
        "spawn",
    }
)


@functools.cache
def settings_in(target: Target) -> list[str]:
    """Keys looked up in something called ``config`` or ``settings``."""
    return _looked_up(target, ("config", "settings", "cfg", "conf", "options"))


@functools.cache
def inputs_in(target: Target) -> list[str]:
    """Keys looked up in anything: inputs of tools, payloads of events."""
    return _distinct(key for node in _nodes(target) for key in _key_of(node))


@functools.cache
def texts_in(target: Target) -> list[str]:
    """Short text constants: names of modes, commands, actions."""
    return _distinct(
        text for text in _texts(_nodes(target)) if 0 < len(text) <= 40 and "\n" not in text
    )


@functools.cache
def environment_in(target: Target) -> list[str]:
    """Names of environment variables that the source looks up."""
    found = _looked_up(target, ("environ",))
    for node in _nodes(target):
        if isinstance(node, ast.Call) and _name_of(node.func) == "getenv":
            found += _texts(node.args[:1])
    return list(dict.fromkeys(found))


@functools.cache
def choices_in(target: Target) -> list[str]:
    """Words that something is compared with, or looked up in a table: names of actions and modes.

    Of a module that starts programs, no word is taken that is the name of one.
    """
    words = [text for node in _nodes(target) for text in _compared(node) if is_harmless(text)]
    if starts_programs(target):
        words = [word for word in dict.fromkeys(words) if shutil.which(word) is None]
    return _distinct(words)


def patterns_in(target: Target) -> list[str]:
    """Texts and patterns that the source may be looking for inside other texts.

    They are data for handlers, which look at events and run nothing; a module that starts programs gets none of them.
    """
    return (
        []
        if starts_programs(target)
        else _distinct(text for node in _nodes(target) for text in _listed(node))
    )


_CUTTING = (
    *("split", "rsplit", "partition", "rpartition", "join", "replace", "strip", "lstrip"),
    *("rstrip", "startswith", "endswith", "find", "rfind", "index", "count", "removeprefix"),
    "removesuffix",
)
_MAX_SEPARATORS = 12


@functools.cache
def separators_in(target: Target) -> list[str]:
    """Return the short texts without letters at which the source cuts or joins other texts.

    None of them makes a path, a home or a parent directory of a text.
    """
    if starts_programs(target):
        return []
    found: list[str] = []
    for node in _nodes(target):
        if isinstance(node, ast.Call) and _is_method(node, *_CUTTING):
            found += _texts([*node.args, getattr(node.func, "value", None)])
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            found += _texts([node.left])
    return [text for text in dict.fromkeys(found) if _is_separator(text)][:_MAX_SEPARATORS]


def _is_separator(text: str) -> bool:
    is_short = 0 < len(text) <= 3 and not any(each.isalnum() for each in text)
    return is_short and not any(part in text for part in ("/", "~", "..", "\\", "\x00"))


def _trees(target: Target) -> list[tuple[Path, ast.Module]]:
    return [(file, tree) for file in target.sources() if (tree := parsed(file)) is not None]


@functools.cache
def _nodes(target: Target) -> list[ast.AST]:
    return [node for _, tree in _trees(target) for node in ast.walk(tree)]


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))[:_MAX_LITERALS]


def _texts(nodes: Iterable[ast.AST | None]) -> Iterator[str]:
    """The values of those nodes that are text constants."""
    return (
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _name_of(node: ast.AST | None) -> str:
    """The last word of a name: ``getenv`` of ``os.getenv``."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _listed(node: ast.AST) -> Iterator[str]:
    """Texts in a list, in a table, as an argument of a call, or on a side of a comparison."""
    parts: list[ast.AST | None] = []
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        parts = list(node.elts)
    elif isinstance(node, ast.Dict):
        parts = [*node.keys, *node.values]
    elif isinstance(node, ast.Call):
        parts = list(node.args)
    elif isinstance(node, ast.Compare):
        parts = [node.left, *node.comparators]
    return (text for text in _texts(parts) if 1 < len(text) <= _MAX_PATTERN_LENGTH)


def _compared(node: ast.AST) -> Iterator[str]:
    """Texts that something is compared with, that are keys of a table, or that make up a list with a name."""
    parts: list[ast.AST | None] = []
    if isinstance(node, ast.Compare):
        for side in (node.left, *node.comparators):
            parts += side.elts if isinstance(side, (ast.Tuple, ast.List, ast.Set)) else [side]
    elif isinstance(node, ast.MatchValue):
        parts = [node.value]
    elif isinstance(node, ast.Dict):
        parts = list(node.keys)
    elif isinstance(node, ast.Set):
        parts = list(node.elts)
    elif isinstance(node, ast.Assign) and isinstance(node.value, (ast.Tuple, ast.List)):
        parts = list(node.value.elts)
    elif isinstance(node, ast.Call) and _is_method(node, "startswith", "endswith"):
        parts = list(node.args)
    return _texts(parts)


def _key_of(node: ast.AST) -> Iterator[str]:
    """The constant key of ``x["key"]``, ``x.get("key")``, ``x.pop("key")`` or ``"key" in x``, if it is one of these."""
    parts: list[ast.AST] = []
    if isinstance(node, ast.Subscript):
        parts = [node.slice]
    elif isinstance(node, ast.Call) and _is_method(node, "get", "pop", "setdefault"):
        parts = list(node.args[:1])
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        parts = [node.left]
    return _texts(parts)


def _looked_up(target: Target, holders: tuple[str, ...]) -> list[str]:
    """Keys looked up in something whose name contains one of these words."""
    found: list[str] = []
    for node in _nodes(target):
        called = node.func if isinstance(node, ast.Call) else node
        name = _name_of(getattr(called, "value", None)).lower()
        if any(word in name for word in holders):
            found += _key_of(node)
    return _distinct(found)


def _is_method(call: ast.Call, *names: str) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in names


@functools.cache
def starts_programs(target: Target) -> bool:
    """Whether the source calls something that may start a program."""
    calls = [node.func for node in _nodes(target) if isinstance(node, ast.Call)]
    words = {_name_of(part) for function in calls for part in ast.walk(function)}
    return any(word in _PROGRAM_STARTERS or "subprocess" in word for word in words)


# ── where to look ──

_MAIN_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "tool": ("execute",),
    "provider": ("complete",),
    "orchestrator": ("execute",),
    "context": ("get_messages_for_request", "add_message"),
    "hook": ("__call__", "handle", "handler", "on_event"),
    "resolver": ("async_resolve", "resolve"),
}
"""Functions that do the work of a module, by its type: where to look when the clause itself names no function."""


def source_location(
    subject: Target, module_type: str, clause: Clause, cancelled_at: str | None
) -> str | None:
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


def _registered_handlers(subject: Target) -> list[str]:
    """The names of the functions that the source registers as handlers, in order."""
    names = []
    for node in (node for _, tree in _trees(subject) for node in ast.walk(tree)):
        if isinstance(node, ast.Call) and _is_method(node, "register"):
            given = [
                *node.args[1:2],
                *(word.value for word in node.keywords if word.arg == "handler"),
            ]
            names += [getattr(each, "attr", None) or getattr(each, "id", "") for each in given]
    return [name for name in names if name]


def _function_named(subject: Target, name: str) -> str | None:
    for file, tree in _trees(subject):
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
                return subject.location_at(file, node.lineno)
    return None
