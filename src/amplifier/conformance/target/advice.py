"""What to tell an author beyond what happened: where in the source to look, how to fix it, what to install.

Read from syntax trees and metadata; nothing of the module is run.
"""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path, PurePath
from typing import Any

from amplifier._regular_file import read_file
from amplifier.conformance.target.locate import Target, parsed
from amplifier.contracts import Clause

# ── where to look ────────────────────────────────────────────────────────────────────────────────

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


# ── a call that does not end as cancelled ────────────────────────────────────────────────────────

_CATCHING = frozenset({"CancelledError", "Cancelled", "get_cancelled_exc_class", "BaseException"})
"""How code names what catches a cancellation."""
_Block = ast.Try | ast.TryStar | ast.With | ast.AsyncWith
_Culprit = tuple[ast.AST, str, str]
"""A piece of code, how to show it, and what it does to a cancellation."""


def cancellation_hint(target: Target, clause: str, cancelled_at: str | None, error: BaseException | None) -> str | None:
    """How to fix a broken A7 or A8; None where the advice of the clause is all that is known.

    Args:
        target: The module.
        clause: ``A7``, cancellation does not leave the call as cancellation; ``A8``, the call goes on.
        cancelled_at: The await that was cancelled, ``file:line function``.
        error: What the call raised instead; None if it returned or went on.
    """
    if error is not None and not isinstance(error, BaseExceptionGroup):
        line = target.location_of(error)
        return (
            f"The {type(error).__name__} raised{'' if line is None else f' at {line}'} replaces the cancellation. Where you handle "
            "cancellation, end the block with a bare `raise`; in cleanup, catch Exception around what may fail."
        )
    at = None if cancelled_at is None else _line_in_module(target, cancelled_at)
    blocks = [] if at is None else _blocks_around(*at)
    if not blocks and clause != "A8":
        blocks = [(file, node) for file, node in _nodes(target) if isinstance(node, _Block) and _awaits(node.body)]
    for file, block in blocks:
        if error is not None and not isinstance(block, ast.TryStar):
            continue
        found = _shield(block) if clause == "A8" else _catcher(block)
        if found is not None:
            node, shown, what = found
            return f"`{shown}` at {target.location_at(file, getattr(node, 'lineno', 1))} {what}"
    if error is None:
        return None
    return (
        "An error that a task raises while its task group is cancelled comes out as a group in place of the cancellation. "
        "Let the tasks end with the cancellation: tidy up in a finally block, and catch there what may fail."
    )


def _catcher(block: _Block) -> _Culprit | None:
    """What ends a cancellation, or turns it into a group, in a block around the await."""
    if isinstance(block, ast.With | ast.AsyncWith):
        for call in (item.context_expr for item in block.items):
            is_suppress = isinstance(call, ast.Call) and ast.unparse(call.func).endswith("suppress")
            if is_suppress and _names(call) & _CATCHING:
                return call, ast.unparse(call), "suppresses the cancellation. Suppress Exception or a narrower class."
        return None
    leaving = next((node for node in _own_nodes(block.finalbody) if isinstance(node, ast.Return)), None)
    if leaving is not None:
        what = "in a finally block discards the cancellation. Return after the try statement instead."
        return leaving, ast.unparse(leaving), what
    is_star = isinstance(block, ast.TryStar)
    for handler in block.handlers:
        named = set() if handler.type is None else _names(handler.type)
        if handler.type is not None and not named & _CATCHING:
            continue
        raises = any(isinstance(node, ast.Raise) and node.exc is None for node in _own_nodes(handler.body))
        shown = f"except{'*' if is_star else ''}{'' if handler.type is None else f' {ast.unparse(handler.type)}'}:"
        if is_star:
            what = "takes the cancellation for part of a group. Name the errors you expect there, so that cancellation passes."
            return handler, shown, what
        fix = (
            "Catch Exception instead."
            if not named or "BaseException" in named
            else "End the block with a bare `raise`."
        )
        return None if raises else (handler, shown, f"catches the cancellation. {fix}")
    return None


def _shield(block: _Block) -> _Culprit | None:
    """A shield that keeps a cancellation out: the block itself, or one in its cleanup."""
    scopes: list[ast.AST] = [block]
    if isinstance(block, ast.Try | ast.TryStar):
        scopes = list(_own_nodes([*(each for handler in block.handlers for each in handler.body), *block.finalbody]))
    for item in (item for scope in scopes if isinstance(scope, ast.With | ast.AsyncWith) for item in scope.items):
        call = item.context_expr
        if isinstance(call, ast.Call) and any(word.arg == "shield" for word in call.keywords):
            what = "keeps the cancellation out while its body waits. Shield only short cleanup, with a deadline below one second"
            return call, ast.unparse(call), f"{what}: `anyio.move_on_after(0.5, shield=True)`."
    return None


def _blocks_around(file: Path, line: int) -> list[tuple[Path, _Block]]:
    """The try and with statements whose body holds the line, innermost first."""
    tree = parsed(file)
    found = [] if tree is None else [node for node in ast.walk(tree) if isinstance(node, _Block)]
    holding = [node for node in found if node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0)]
    return [(file, node) for node in sorted(holding, key=lambda each: -each.lineno)]


def _awaits(body: list[ast.stmt]) -> bool:
    return any(isinstance(node, ast.Await | ast.AsyncWith) for node in _own_nodes(body))


def _own_nodes(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """The nodes of a block, without those of functions defined in it."""
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            pending += ast.iter_child_nodes(node)


def _names(node: ast.AST) -> set[str]:
    return set(re.findall(r"\w+", ast.unparse(node)))


# ── a package that is missing ────────────────────────────────────────────────────────────────────

_MISSING = re.compile(r"No module named '([^']+)'")
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)[^;]*")


def missing_package_hint(target: Target, text: str) -> str | None:
    """What to install, if a text reports that something could not be imported for want of it; None if it does not.

    No name of a distribution is guessed from an import name, because anyone may own that name on a package index.
    """
    found = _MISSING.search(text)
    top = "" if found is None else found[1].partition(".")[0]
    if found is None or top == "amplifier_core":  # an alias, whose error has its own advice
        return None
    if top == target.import_name.partition(".")[0]:
        return f"The module's own package has no {found[1]!r}; check the spelling, and that the file is part of the package."
    where, declared = _requirements(target)
    read = [match for each in declared if isinstance(each, str) and (match := _REQUIREMENT.match(each)) is not None]
    absent = [match[0].strip() for match in read if not _is_installed(match[1])]
    if absent:
        return f"Install what {where} declares and is not installed: pip install {shlex.join(absent)}"
    return (
        f"Install the distribution that provides {top!r}, which may be called differently, and declare it in the "
        "dependencies of the module."
    )


def _requirements(target: Target) -> tuple[str, list[Any]]:
    """Where a module declares what it needs, and what it declares there; extras included."""
    if target.origin == "installed":
        names = packages_distributions().get(target.import_name.partition(".")[0], [""])
        try:
            return f"the distribution {names[0]!r}", list(distribution(names[0]).requires or ())
        except (PackageNotFoundError, ValueError):
            return "nothing", []
    above = (folder / "pyproject.toml" for folder in target.file.parents)
    file = target.project or next((file for file in above if file.is_file()), None)
    try:
        project: Any = {} if file is None else tomllib.loads(read_file(file).decode("utf-8")).get("project")
    except (OSError, ValueError):
        project = {}
    project = project if isinstance(project, dict) else {}
    extras = project.get("optional-dependencies")
    groups = [project.get("dependencies"), *(extras.values() if isinstance(extras, dict) else ())]
    return "pyproject.toml", [text for group in groups if isinstance(group, list) for text in group]


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except (PackageNotFoundError, ValueError):
        return False
    return True
