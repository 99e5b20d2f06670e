"""Published modules that need asyncio, told apart before they fail in the middle of a turn.

About half of the published modules speak AnyIO or nothing; they run on trio as they are. The others call asyncio by name, and
on trio such a call finds no loop. What they call is read from their source, so that the refusal can name it. Above: the
mirror's loader.
"""

from __future__ import annotations

import ast
import sys
from functools import lru_cache
from pathlib import Path

from amplifier.errors import ModuleLoadError
from amplifier.kernel._firewall import _running_asyncio_loop

_HARMLESS = frozenset({"CancelledError", "TimeoutError", "iscoroutinefunction", "iscoroutine", "Task", "run"})
"""Names that need no running loop: types, questions, and ``asyncio.run``, which brings its own."""


def refuse_asyncio_on_trio(package: str, module_id: str) -> None:
    """Refuse a module that calls asyncio if trio is what runs.

    Raises:
        ModuleLoadError: Names the first such call and where it stands.
    """
    if _running_asyncio_loop() is not None or not _is_on_trio():
        return
    root = package.partition(".")[0]
    if root == "amplifier":
        return
    # A published module is a package of its own; of anything else only the file that has the mount is looked at.
    where = getattr(sys.modules.get(root if root.startswith("amplifier_module_") else package), "__file__", None)
    if where is None:
        return
    call = first_asyncio_call(str(where))
    if call is not None:
        raise ModuleLoadError(
            f"module {module_id!r} cannot run on trio: it calls {call}; run the session on asyncio, or use a module "
            "that speaks AnyIO",
            module_id=module_id,
            reason_code="validation_failed",
        )


def _is_on_trio() -> bool:
    trio = sys.modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_trio_token()
    except RuntimeError:
        return False
    return True


@lru_cache(maxsize=256)
def first_asyncio_call(file: str) -> str | None:
    """The first thing a package asks of asyncio that needs a running loop, such as ``asyncio.gather (x.py, line 3)``."""
    start = Path(file)
    files = sorted(start.parent.rglob("*.py")) if start.name == "__init__.py" else [start]
    for path in files:
        if "tests" in path.relative_to(start.parent).parts:
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        for line, name in _uses(tree):
            if name not in _HARMLESS:
                return f"asyncio.{name} ({path.name}, line {line})"
    return None


def _uses(tree: ast.AST) -> list[tuple[int, str]]:
    names = {"asyncio"}
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname for alias in node.names if alias.name == "asyncio" and alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module == "asyncio":
            found += [(node.lineno, alias.name) for alias in node.names]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
            found.append((node.lineno, node.attr))
    return sorted(found)
