"""Readers of the source tree, for the tests that hold its shape."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "amplifier"
TESTS = ROOT / "tests"

MIRROR = "amplifier.compat.amplifier_core"
"""A mirror of the published kernel's names; our rules about names do not hold inside."""

FORMER_PLACES = {
    "amplifier.answers": "amplifier.models.answers",
    "amplifier.event_payloads": "amplifier.events.payloads",
    "amplifier.live": "amplifier.shared_sessions",
    "amplifier.turns": "amplifier.models.turns",
}
"""Modules that have moved and keep working under the former name for two minor releases."""

_NOT_OURS = {"__pycache__", "_build", "build", "dist", "node_modules", "results"}


def python_files(folder: Path) -> list[Path]:
    """All Python files below a folder, sorted; not the modules of the corpus, which are written as third-party authors write them."""
    apart = {"__pycache__", "corpus"}
    return sorted(
        path for path in folder.rglob("*.py") if apart.isdisjoint(path.relative_to(folder).parts)
    )


def text_files() -> Iterator[tuple[Path, str]]:
    """Every text file of the project with its content; neither environments nor caches."""
    for path in sorted(_files_below(ROOT)):
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def _files_below(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if (
            path.is_file() and path.name != ".git"
        ):  # a file in a linked worktree, with the path of the repository
            yield path
        elif (
            path.is_dir()
            and path.name not in _NOT_OURS
            and (not path.name.startswith(".") or path.name == ".ci")
        ):
            yield from _files_below(path)


def relative(path: Path) -> str:
    """The path as a reader of the repository would write it."""
    return path.relative_to(ROOT).as_posix()


def parse(path: Path) -> ast.Module:
    """The syntax tree of one file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=relative(path))


def module_name(path: Path) -> str:
    """The dotted name under which a source file is imported."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_public(name: str) -> bool:
    """Whether users may import the module.

    Users import a package of `amplifier`, a file directly in it, a server and a built-in module, and a file of a package
    that lists its names in ``__all__``. Other files without an underscore are for the other packages here.
    """
    parts = name.split(".")
    if name in FORMER_PLACES or any(part.startswith("_") for part in parts):
        return False
    if len(parts) <= 2 or parts[1] == "modules":
        return True
    if len(parts) > 3:
        return False
    path = SOURCE / parts[1] / f"{parts[2]}.py"
    # Folders inside a package are addressed through the package, except servers.
    return (
        "\n__all__" in path.read_text(encoding="utf-8") if path.is_file() else parts[1] == "servers"
    )


def public_module_paths() -> dict[str, Path]:
    """Every module users may import, except the façade, by name."""
    names = {module_name(path): path for path in python_files(SOURCE)}
    return {
        name: path
        for name, path in sorted(names.items())
        if is_public(name) and name != "amplifier"
    }


def load(name: str) -> ModuleType:
    """Import a module by name."""
    return importlib.import_module(name)
