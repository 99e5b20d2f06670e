"""Where in a module to look for what broke a clause, when no error points there: the function that makes the promise.

Read from syntax trees. Above stands the conductor, which writes the reports; below stands `_subject`.
"""

from __future__ import annotations

import ast

from amplifier.conformance.target.locate import Subject, parsed

_BY_CLAUSE: dict[str, tuple[str, ...]] = {
    "A6": ("on_session_ready",),
    "A11": ("cleanup", "close", "aclose"),
    "A12": ("cleanup", "close", "aclose"),
    "A13": ("cleanup", "close", "aclose"),
    "A14": ("cleanup", "close", "aclose"),
    "A15": ("cleanup", "close", "aclose"),
    "T2": ("name",),
    "T3": ("description",),
    "T7": ("get_schema", "input_schema"),
    "T8": ("get_schema", "input_schema", "execute"),
    "P10": ("parse_tool_calls",),
    "P12": ("list_models",),
    "P13": ("get_info",),
    "P20": ("get_info",),
    "P21": ("stream",),
    "P22": ("stream",),
    "C3": ("add_message",),
    "C4": ("get_messages", "add_message"),
    "C5": ("add_message",),
    "C13": ("add_message",),
    "C14": ("clear", "set_messages"),
    "C15": ("add_message",),
    "C19": ("add_message",),
}
_BY_TYPE: dict[str, tuple[str, ...]] = {
    "tool": ("execute",),
    "provider": ("complete",),
    "orchestrator": ("execute",),
    "context": ("get_messages_for_request", "add_message"),
    "hook": ("__call__", "handle", "handler", "on_event"),
    "resolver": ("async_resolve", "resolve"),
}
_ABOUT_MOUNT = frozenset(
    {"A3", "A4", "A5", "A19", "A20", "A21", "T4", "P2", "P15", "P17", "P18", "O2", "C2", "C18", "H2"}
    | {f"H{number}" for number in range(8, 15)}
)


def place_for(subject: Subject, module_type: str, clause: str, cancelled_at: str | None) -> str | None:
    """The line to look at, ``file:line``: where the call was cancelled, else where the promise is kept."""
    if cancelled_at is not None and ".py:" in cancelled_at:
        return cancelled_at.partition(" ")[0].rpartition("/")[2]
    names = _BY_CLAUSE.get(clause, ())
    if clause not in _ABOUT_MOUNT:
        names += _BY_TYPE[module_type]
    for name in names:
        found = _defined(subject, name)
        if found is not None:
            return found
    mount = subject.definition(subject.attribute)
    return None if mount is None else mount.location


def _defined(subject: Subject, name: str) -> str | None:
    for file in subject.sources():
        tree = parsed(file)
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
                return f"{file.name}:{node.lineno}"
    return None
