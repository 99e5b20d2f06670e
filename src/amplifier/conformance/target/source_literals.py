"""Words that a module's own source uses: a dictionary for drawing inputs and settings that reach its code.

Read from syntax trees, nothing is run. Above stand `inputs` and the checks of hygiene; below stands `_subject`.
"""

from __future__ import annotations

import ast
import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from amplifier.conformance.inputs.hostile_values import is_harmless
from amplifier.conformance.inputs.regex_matches import texts_matching

from .locate import Target, parsed

_MOST = 60
_LONGEST_PATTERN = 300
_Finder = Callable[[Target], list[str]]


def _remembered(find: _Finder) -> _Finder:
    """Look once for each module: its words are asked for in every scene."""
    known: dict[Path, list[str]] = {}

    @functools.wraps(find)
    def look(subject: Target) -> list[str]:
        if subject.file not in known:
            known[subject.file] = find(subject)
        return list(known[subject.file])

    return look


@_remembered
def settings_in(subject: Target) -> list[str]:
    """Keys looked up in something called ``config`` or ``settings``."""
    return _looked_up(subject, ("config", "settings", "cfg", "conf", "options"))


@_remembered
def inputs_in(subject: Target) -> list[str]:
    """Keys looked up in anything else: inputs of tools, payloads of events."""
    found: list[str] = []
    for file in subject.sources():
        tree = parsed(file)
        for node in ast.walk(tree) if tree is not None else ():
            key = _key_of(node)
            if key is not None:
                found.append(key)
    return list(dict.fromkeys(found))[:_MOST]


@_remembered
def texts_in(subject: Target) -> list[str]:
    """Short text constants: names of modes, commands, actions."""
    found: list[str] = []
    for file in subject.sources():
        tree = parsed(file)
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and 0 < len(node.value) <= 40:
                found.append(node.value)
    return [text for text in dict.fromkeys(found) if "\n" not in text][:_MOST]


def environment_in(subject: Target) -> list[str]:
    """Names of environment variables that the source looks up."""
    found = _looked_up(subject, ("environ",))
    for file in subject.sources():
        tree = parsed(file)
        for node in ast.walk(tree) if tree is not None else ():
            called = node.func if isinstance(node, ast.Call) else None
            name = getattr(called, "attr", getattr(called, "id", ""))
            first = node.args[0] if isinstance(node, ast.Call) and node.args else None
            if name == "getenv" and isinstance(first, ast.Constant) and isinstance(first.value, str):
                found.append(first.value)
    return list(dict.fromkeys(found))


def numbers_in(subject: Target) -> set[int]:
    """Whole numbers that stand in the source."""
    trees = [tree for file in subject.sources() if (tree := parsed(file)) is not None]
    constants = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return {value for value in constants if type(value) is int}


_RUNNERS = frozenset(
    {"subprocess", "system", "popen", "open_process", "run_process", "eval", "exec", "pexpect", "pty", "spawn"}
)


@_remembered
def choices_in(subject: Target) -> list[str]:
    """Words that something is compared with, or looked up in a table: names of actions and modes.

    Of a module that starts programs, no word is taken that is the name of one.
    """
    found: list[str] = []
    runs_programs = False
    for file in subject.sources():
        tree = parsed(file)
        for node in ast.walk(tree) if tree is not None else ():
            found += _compared(node)
            runs_programs |= isinstance(node, ast.Call) and _starts_programs(node.func)
    harmless = [text for text in dict.fromkeys(found) if is_harmless(text)]
    return [text for text in harmless if not runs_programs or shutil.which(text) is None][:_MOST]


@_remembered
def triggers_in(subject: Target) -> list[str]:
    """Texts that the source may be looking for inside other texts: what its patterns match, what its lists name.

    They are data for handlers, which look at events and run nothing; a module that starts programs gets none of them.
    """
    found: list[str] = []
    for file in subject.sources():
        tree = parsed(file)
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.Call) and _starts_programs(node.func):
                return []
            found += _listed(node)
    texts = [match for text in dict.fromkeys(found) for match in texts_matching(text)]
    return list(dict.fromkeys(texts))[:_MOST]


def _listed(node: ast.AST) -> Iterator[str]:
    """Texts that stand in a list, in a table, as the argument of a call, or on a side of a comparison."""
    parts: list[ast.AST | None] = []
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        parts = list(node.elts)
    elif isinstance(node, ast.Dict):
        parts = [*node.keys, *node.values]
    elif isinstance(node, ast.Call):
        parts = list(node.args)
    elif isinstance(node, ast.Compare):
        parts = [node.left, *node.comparators]
    for part in parts:
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and 1 < len(part.value) <= _LONGEST_PATTERN:
            yield part.value


def _starts_programs(function: ast.expr) -> bool:
    words = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    words |= {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)}
    return any(word in _RUNNERS or "subprocess" in word for word in words)


def _compared(node: ast.AST) -> Iterator[str]:
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
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("startswith", "endswith")
    ):
        parts = list(node.args)
    for part in parts:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def _looked_up(subject: Target, holders: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    for file in subject.sources():
        tree = parsed(file)
        for node in ast.walk(tree) if tree is not None else ():
            holder = (
                node.func.value
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
                else getattr(node, "value", None)
            )
            name = getattr(holder, "attr", getattr(holder, "id", ""))
            key = _key_of(node)
            if key is not None and any(word in str(name).lower() for word in holders):
                found.append(key)
    return list(dict.fromkeys(found))[:_MOST]


def _key_of(node: ast.AST) -> str | None:
    """The constant key of ``x["key"]``, ``x.get("key")``, ``x.pop("key")`` or ``"key" in x``."""
    candidate: ast.AST | None = None
    if isinstance(node, ast.Subscript):
        candidate = node.slice
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("get", "pop", "setdefault")
    ):
        candidate = node.args[0] if node.args else None
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        candidate = node.left
    if isinstance(candidate, ast.Constant) and isinstance(candidate.value, str):
        return candidate.value
    return None
