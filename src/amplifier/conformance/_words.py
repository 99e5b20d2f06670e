"""Words that a module's own source uses: a dictionary for drawing inputs and settings that reach its code.

Read from syntax trees, nothing is run. Above stand `inputs` and the checks of hygiene; below stands `_subject`.
"""

from __future__ import annotations

import ast

from ._subject import Subject, parsed

_MOST = 60


def settings_in(subject: Subject) -> list[str]:
    """Keys looked up in something called ``config`` or ``settings``."""
    return _looked_up(subject, ("config", "settings", "cfg", "conf", "options"))


def inputs_in(subject: Subject) -> list[str]:
    """Keys looked up in anything else: inputs of tools, payloads of events."""
    found: list[str] = []
    for file in subject.sources():
        tree = parsed(file)
        for node in ast.walk(tree) if tree is not None else ():
            key = _key_of(node)
            if key is not None:
                found.append(key)
    return list(dict.fromkeys(found))[:_MOST]


def texts_in(subject: Subject) -> list[str]:
    """Short text constants: names of modes, commands, actions."""
    found: list[str] = []
    for file in subject.sources():
        tree = parsed(file)
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and 0 < len(node.value) <= 40:
                found.append(node.value)
    return [text for text in dict.fromkeys(found) if "\n" not in text][:_MOST]


def _looked_up(subject: Subject, holders: tuple[str, ...]) -> list[str]:
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
