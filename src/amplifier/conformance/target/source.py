"""Read a module's syntax trees for words that reach its code, and for the location of a fault.

Nothing is run.
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

# The functions about literals look once for each module. The functions about locations look again,
# because a file may have changed.

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
    """Return the keys that the source looks up in a ``config`` or ``settings``."""
    return _looked_up(target, ("config", "settings", "cfg", "conf", "options"))


@functools.cache
def inputs_in(target: Target) -> list[str]:
    """Return the keys that the source looks up anywhere, as in inputs and payloads."""
    return _distinct(key for node in _nodes(target) for key in _key_of(node))


@functools.cache
def texts_in(target: Target) -> list[str]:
    """Return the short text constants, such as names of modes, commands and actions."""
    return _distinct(
        text for text in _texts(_nodes(target)) if 0 < len(text) <= 40 and "\n" not in text
    )


@functools.cache
def environment_in(target: Target) -> list[str]:
    """Return the names of the environment variables that the source looks up."""
    names = _looked_up(target, ("environ",))
    for node in _nodes(target):
        if isinstance(node, ast.Call) and _name_of(node.func) == "getenv":
            names += _texts(node.args[:1])
    return list(dict.fromkeys(names))


@functools.cache
def choices_in(target: Target) -> list[str]:
    """Return the texts of comparisons and tables, such as names of actions and modes.

    For a module that starts programs, the names of programs are left out.
    """
    texts = [text for node in _nodes(target) for text in _compared(node) if is_harmless(text)]
    if starts_programs(target):
        texts = [text for text in dict.fromkeys(texts) if shutil.which(text) is None]
    return _distinct(texts)


def patterns_in(target: Target) -> list[str]:
    """Return texts and patterns that the source may look for inside other texts.

    They are data for handlers, which look at events and run nothing. A module that starts programs
    gets none of them.
    """
    return (
        []
        if starts_programs(target)
        else _distinct(text for node in _nodes(target) for text in _listed(node))
    )


_SPLIT_METHODS = (
    *("split", "rsplit", "partition", "rpartition", "join", "replace", "strip", "lstrip"),
    *("rstrip", "startswith", "endswith", "find", "rfind", "index", "count", "removeprefix"),
    "removesuffix",
)
_MAX_SEPARATORS = 12


@functools.cache
def separators_in(target: Target) -> list[str]:
    """Return the short texts without letters at which the source splits or joins other texts.

    None of them turns a text into a path or names a home or parent directory.
    """
    if starts_programs(target):
        return []
    texts: list[str] = []
    for node in _nodes(target):
        if isinstance(node, ast.Call) and _is_method(node, *_SPLIT_METHODS):
            texts += _texts([*node.args, getattr(node.func, "value", None)])
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            texts += _texts([node.left])
    return [text for text in dict.fromkeys(texts) if _is_separator(text)][:_MAX_SEPARATORS]


def _is_separator(text: str) -> bool:
    is_short = 0 < len(text) <= 3 and not any(character.isalnum() for character in text)
    return is_short and not any(part in text for part in ("/", "~", "..", "\\", "\x00"))


def _trees(target: Target) -> list[tuple[Path, ast.Module]]:
    return [(file, tree) for file in target.sources() if (tree := parsed(file)) is not None]


@functools.cache
def _nodes(target: Target) -> list[ast.AST]:
    return [node for _, tree in _trees(target) for node in ast.walk(tree)]


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))[:_MAX_LITERALS]


def _texts(nodes: Iterable[ast.AST | None]) -> Iterator[str]:
    """Return the values of the text constants among the nodes."""
    return (
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _name_of(node: ast.AST | None) -> str:
    """Return the last part of a name: ``getenv`` of ``os.getenv``."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _listed(node: ast.AST) -> Iterator[str]:
    """Return the texts in a list, a table, the arguments of a call, or a comparison."""
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
    """Return the texts in a comparison, the keys of a table, or the items of a named list."""
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
    """Return the constant key of ``x["key"]``, ``x.get("key")`` or ``"key" in x``, if any."""
    parts: list[ast.AST] = []
    if isinstance(node, ast.Subscript):
        parts = [node.slice]
    elif isinstance(node, ast.Call) and _is_method(node, "get", "pop", "setdefault"):
        parts = list(node.args[:1])
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        parts = [node.left]
    return _texts(parts)


def _looked_up(target: Target, holders: tuple[str, ...]) -> list[str]:
    """Return the keys that are looked up in an object with one of the words in its name."""
    keys: list[str] = []
    for node in _nodes(target):
        called = node.func if isinstance(node, ast.Call) else node
        name = _name_of(getattr(called, "value", None)).lower()
        if any(word in name for word in holders):
            keys += _key_of(node)
    return _distinct(keys)


def _is_method(call: ast.Call, *names: str) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in names


@functools.cache
def starts_programs(target: Target) -> bool:
    """Return True if the source calls something that may start a program."""
    calls = [node.func for node in _nodes(target) if isinstance(node, ast.Call)]
    names = {_name_of(part) for function in calls for part in ast.walk(function)}
    return any(name in _PROGRAM_STARTERS or "subprocess" in name for name in names)


# ── the location of a fault ──

_MAIN_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "tool": ("execute",),
    "provider": ("complete",),
    "orchestrator": ("execute",),
    "context": ("get_messages_for_request", "add_message"),
    "hook": ("__call__", "handle", "handler", "on_event"),
    "resolver": ("async_resolve", "resolve"),
}
"""The functions that do the work of each type of module.

A fault is located there when its clause names no function.
"""


def source_location(
    subject: Target, module_type: str, clause: Clause, cancelled_at: str | None
) -> str | None:
    """Return the location of a fault, as ``file:line``.

    It is the cancelled await of the module, else the function that the clause is about.
    """
    at = None if cancelled_at is None else _line_in_module(subject, cancelled_at)
    if at is not None:
        return subject.location_at(*at)
    handlers = _registered_handlers(subject) if module_type == "hook" else []
    for name in (*clause.look_at, *handlers, *_MAIN_FUNCTIONS[module_type], "mount"):
        if name == "mount":
            marked = [function for group in subject.functions().values() for function in group]
            mount = subject.definition(subject.attribute) or next(iter(marked), None)
            location = None if mount is None else mount.location
        else:
            location = _function_named(subject, name)
        if location is not None:
            return location
    return None


def _line_in_module(subject: Target, spot: str) -> tuple[Path, int] | None:
    """Return the file and line of a spot such as ``folder/file.py:12 function``.

    Return None if it is not a file of the module.
    """
    name, _, line = spot.partition(" ")[0].rpartition(":")
    if not line.isdigit():
        return None
    ends = PurePath(name).parts[-2:]
    named = [file for file in subject.sources() if file.name == ends[-1]]
    exact = [file for file in named if file.parts[-2:] == ends]
    file = next(iter(exact or named), None)
    return None if file is None else (file, int(line))


def _registered_handlers(subject: Target) -> list[str]:
    """Return the names of the functions that the source registers as handlers, in order."""
    names = []
    for node in (node for _, tree in _trees(subject) for node in ast.walk(tree)):
        if isinstance(node, ast.Call) and _is_method(node, "register"):
            handlers = [
                *node.args[1:2],
                *(keyword.value for keyword in node.keywords if keyword.arg == "handler"),
            ]
            names += [
                getattr(handler, "attr", None) or getattr(handler, "id", "") for handler in handlers
            ]
    return [name for name in names if name]


def _function_named(subject: Target, name: str) -> str | None:
    for file, tree in _trees(subject):
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
                return subject.location_at(file, node.lineno)
    return None
