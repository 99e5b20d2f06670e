"""Recognizing published modules, and those among them that need asyncio, by their source.

About half of the published modules use AnyIO or neither library; they run on trio as they are. The others call asyncio by name, or
use a library that does, and on trio such a call finds no loop. Their source shows the call, so such a module is mounted on an
asyncio island there.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from amplifier.contracts._containment import running_asyncio_loop
from amplifier.errors import ModuleLoadError

from .._alias.finder import ALIAS

_HARMLESS: Final = frozenset(
    {
        "CancelledError",
        "IncompleteReadError",
        "InvalidStateError",
        "LimitOverrunError",
        "QueueEmpty",
        "QueueFull",
        "Task",
        "TimeoutError",
        "iscoroutine",
        "iscoroutinefunction",
        "run",
    }
)
"""Names that need no running loop: types, predicates, and ``asyncio.run``, which starts one."""

_NEED_ASYNCIO: Final = frozenset({"aiohttp", "litellm"})
"""Libraries whose coroutines run on asyncio only, among those that published modules use."""

_ANNOTATIONS: Final = frozenset({"annotation", "returns"})


def needs_island(package: str) -> bool:
    """Whether a module calls asyncio while trio runs, so that it has to run on an asyncio island."""
    if running_asyncio_loop() is not None or not _is_on_trio():
        return False
    where = _source_of(package)
    return where is not None and first_asyncio_call(where) is not None


def cannot_run_on_trio(module_id: str, call: str) -> ModuleLoadError:
    """The error about a module that turns out to call asyncio while it runs on trio."""
    return ModuleLoadError(
        f"module {module_id!r} cannot run on trio: it calls {call}, which its own source does not show; declare "
        '__amplifier_backends__ = ("asyncio",) in it, so that it gets an asyncio event loop of its own, or run the session '
        "on asyncio",
        module_id=module_id,
        reason_code="validation_failed",
    )


def _source_of(package: str) -> str | None:
    """The file to read, or the ``__init__.py`` of a package to read all of it; None for our own code and for what has no file."""
    if is_built_in(package):
        return None
    root = package.partition(".")[0]
    # A published module is a package of its own; of anything else only the file with the mount function is read.
    where = getattr(sys.modules.get(root if root.startswith("amplifier_module_") else package), "__file__", None)
    return where if isinstance(where, str) else None


def _is_on_trio() -> bool:
    trio = sys.modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_trio_token()
    except RuntimeError:
        return False
    return True


def is_built_in(package: str) -> bool:
    """Whether a Python module is one of ours."""
    return package.partition(".")[0] == "amplifier"


def is_published(package: str) -> bool:
    """Whether a Python module belongs to a package that was written for the published kernel."""
    where = _source_of(package)
    return where is not None and mentions_alias(where)


@lru_cache(maxsize=256)
def mentions_alias(file: str) -> bool:
    """Whether a package imports ``amplifier_core``, at its top or inside a function."""
    return any(name == ALIAS for _, tree in _trees(file) for _, name in _imported(tree))


@lru_cache(maxsize=256)
def first_asyncio_call(file: str) -> str | None:
    """The first use of asyncio in a package that needs a running loop, such as ``asyncio.gather (x.py, line 3)``."""
    for path, tree in _trees(file):
        needed = [(line, f"asyncio.{name}") for line, name in _uses(tree) if name not in _HARMLESS]
        needed += [(line, f"{name}, which needs asyncio") for line, name in _imported(tree) if name in _NEED_ASYNCIO]
        if needed:
            line, what = min(needed)
            return f"{what} ({path.name}, line {line})"
    return None


def _trees(file: str) -> Iterator[tuple[Path, ast.AST]]:
    """The parsed files of a package, or the one file that is given; without its tests."""
    start = Path(file)
    for path in sorted(start.parent.rglob("*.py")) if start.name == "__init__.py" else [start]:
        if "tests" in path.relative_to(start.parent).parts:
            continue
        try:
            yield path, ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue


def _imported(tree: ast.AST) -> list[tuple[int, str]]:
    """The top-level packages that are imported, each with its line."""
    found: list[tuple[int, str]] = []
    for node in _running_code(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name.partition(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.append((node.lineno, node.module.partition(".")[0]))
    return found


def _uses(tree: ast.AST) -> list[tuple[int, str]]:
    names = {"asyncio"}
    found: list[tuple[int, str]] = []
    nodes = list(_running_code(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.asname for alias in node.names if alias.name == "asyncio" and alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module == "asyncio":
            found += [(node.lineno, alias.name) for alias in node.names]
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
            found.append((node.lineno, node.attr))
    return sorted(found)


def _running_code(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those of annotations and of what is imported for the type checker only."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for field, value in ast.iter_fields(node):
            if field in _ANNOTATIONS or (field == "body" and isinstance(node, ast.If) and _is_type_checking(node.test)):
                continue
            members = value if isinstance(value, list) else [value]
            waiting += [member for member in members if isinstance(member, ast.AST)]


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"
