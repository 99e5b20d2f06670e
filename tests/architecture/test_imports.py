"""Imports that `lint-imports` does not check: underscores, cycles, the façade, `__init__.py` files, banned modules.

The layers are the import-linter contracts of pyproject.toml, run by ``make check``.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests._support.tree import (
    FORMER_PLACES,
    MIRROR,
    SOURCE,
    TESTS,
    module_name,
    parse,
    python_files,
    relative,
)

BANNED_IN_SOURCE = {"asyncio", "unittest"}
MAY_IMPORT_ASYNCIO = (
    "amplifier.loading._islands",
    "amplifier.compat",
    "amplifier.testing",
    "amplifier.kernel.runtime.loop",
)


def imported_modules(tree: ast.AST, package: str) -> list[tuple[int, str]]:
    """Every module a file imports, wherever in the file, as (line, absolute name of the module)."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.lineno, _absolute(node, package)))
    return found


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


@cache
def imports(path: Path) -> ast.Module:
    """What these tests read of a file: its docstring and its imports. The whole tree of each would fill the memory."""
    tree = parse(path)
    found: list[ast.stmt] = [
        node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    return ast.Module(
        body=[*(node for node in tree.body[:1] if isinstance(node, ast.Expr)), *found],
        type_ignores=[],
    )


def package_of(path: Path) -> str:
    """The package that relative imports of a source file start from."""
    name = module_name(path)
    return name if path.name == "__init__.py" else name.rpartition(".")[0]


def banned_imports(tree: ast.AST, module: str) -> list[str]:
    """Imports of banned standard modules in one source file."""
    exempt = {"asyncio"} if module.startswith(MAY_IMPORT_ASYNCIO) else set()
    roots = {(line, name.partition(".")[0]) for line, name in imported_modules(tree, module)}
    return [
        f"{module}:{line} imports {root}"
        for line, root in sorted(roots)
        if root in BANNED_IN_SOURCE - exempt
    ]


def import_graph(trees: Mapping[str, tuple[ast.AST, str]]) -> dict[str, set[str]]:
    """Which of the given modules each of them imports, function-level and TYPE_CHECKING imports included.

    Args:
        trees: By module name, the syntax tree and the package that relative imports start from.
    """
    graph: dict[str, set[str]] = {}
    for module, (tree, package) in trees.items():
        names = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = _absolute(node, package)
                names |= {f"{base}.{alias.name}" for alias in node.names} | {base}
                # `from .package import file` imports the file; what the package's __init__ imports is no part of it.
                if all(f"{base}.{alias.name}" in trees for alias in node.names):
                    names.discard(base)
        graph[module] = names & trees.keys()
    return graph


def private_imports(tree: ast.AST, module: str, package: str) -> list[str]:
    """Return the imports of names with an underscore that belong to another package."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{_absolute(node, package)}.{alias.name}" for alias in node.names]
        else:
            continue
        found += [
            f"{module}:{node.lineno} imports {name}"
            for name in names
            if _is_private_for(name, package)
        ]
    return found


def _is_private_for(name: str, package: str) -> bool:
    parts = name.split(".")
    if parts[0] != "amplifier":
        return False
    for position, part in enumerate(parts):
        if part.startswith("_") and not part.startswith("__"):
            owner = ".".join(parts[:position])
            if (SOURCE.parent.joinpath(*parts[:position])).with_suffix(".py").is_file():
                owner = owner.rpartition(".")[0] if len(parts[:position]) > 2 else owner
            if not f"{package}.".startswith(f"{owner}."):
                return True
    return False


def import_cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """One cycle after another, each without the modules of those before."""
    left = {module: set(imports) for module, imports in graph.items()}
    cycles = []
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            cycle = error.args[1]
            cycles.append(cycle)
            left = {
                module: imports - set(cycle)
                for module, imports in left.items()
                if module not in cycle
            }
        else:
            return cycles


@cache
def source_graph() -> dict[str, set[str]]:
    """The import graph of src, without the mirror of the published kernel, which has that kernel's cycles."""
    paths = {module_name(path): path for path in python_files(SOURCE)}
    paths = {name: path for name, path in paths.items() if not name.startswith(MIRROR)}
    return import_graph({name: (imports(path), package_of(path)) for name, path in paths.items()})


def test_sources_do_not_import_facade():
    guilty = [
        f"{relative(path)}:{line}"
        for path in python_files(SOURCE)
        for line, name in imported_modules(imports(path), package_of(path))
        if name == "amplifier"
    ]
    assert guilty == []


def test_init_file_imports_own_package_only():
    inits = [
        path
        for path in python_files(SOURCE)
        if path.name == "__init__.py" and path.parent != SOURCE
    ]
    inits = [path for path in inits if not module_name(path).startswith((MIRROR, *FORMER_PLACES))]
    guilty = [
        f"{relative(path)}:{line} reaches into {name}"
        for path in inits
        for line, name in imported_modules(imports(path), package_of(path))
        if name.startswith("amplifier.")
        and not f"{name}.".startswith(f"{package_of(path)}.")
        # A built-in module that is a package builds on the contracts in its __init__, like any third-party module.
        and not package_of(path).startswith("amplifier.modules.")
    ]
    assert guilty == []


def test_private_name_is_imported_in_package_only():
    guilty = [
        line
        for path in python_files(SOURCE)
        if not (module := module_name(path)).startswith(MIRROR)
        for line in private_imports(imports(path), module, package_of(path))
    ]
    assert guilty == []


@pytest.mark.parametrize(
    ("code", "is_private"),
    [
        ("from amplifier._internal.json import JSON", False),
        ("from ._finding import read", False),
        ("from amplifier.loading._finding import read", False),
        ("from amplifier.loading import __doc__", False),
        ("import amplifier.store._database", True),
        ("from amplifier.store import _database", True),
        ("from ..store._database import open_file", True),
        ("from amplifier.agents import _listed", True),
        ("def late():\n    from amplifier._internal.json._text import text_size", True),
    ],
)
def test_planted_private_import_is_found(code, is_private):
    found = private_imports(ast.parse(code), "amplifier.loading.loader", "amplifier.loading")
    assert bool(found) is is_private


def test_imports_form_no_cycle():
    assert import_cycles(source_graph()) == []


@pytest.mark.parametrize(
    "code",
    [
        "import amplifier.kernel.session.session",
        "from amplifier.kernel.session.session import AmplifierSession",
        "from ..session import session",
        "def late():\n    from ..session.session import AmplifierSession",
        "if TYPE_CHECKING:\n    from ..session.session import AmplifierSession",
    ],
)
def test_planted_import_cycle_is_found(code):
    planted = "amplifier.kernel.runtime.loop"
    files = dict.fromkeys(source_graph(), (ast.parse(""), "amplifier"))
    files[planted] = (ast.parse(code), "amplifier.kernel.runtime")
    graph = {**source_graph(), planted: import_graph(files)[planted]}
    assert any(planted in cycle for cycle in import_cycles(graph))


def test_asyncio_and_unittest_are_confined():
    assert [
        line
        for path in python_files(SOURCE)
        for line in banned_imports(imports(path), module_name(path))
    ] == []


def test_no_test_uses_mocks():
    guilty = [
        f"{relative(path)}:{line}"
        for path in python_files(TESTS)
        if "unittest" in path.read_text(encoding="utf-8")
        for line, name in imported_modules(parse(path), "tests")
        if name.startswith("unittest")
    ]
    assert guilty == []


def test_every_source_file_has_docstring():
    assert [
        relative(path) for path in python_files(SOURCE) if not ast.get_docstring(imports(path))
    ] == []


@pytest.mark.parametrize(
    ("module", "guilty"),
    [
        ("amplifier.kernel.hooks.registry", 1),
        ("amplifier.kernel.runtime.loop", 0),
        ("amplifier.testing.virtual_time", 0),
    ],
)
def test_planted_asyncio_import_is_found(module, guilty):
    assert len(banned_imports(ast.parse("import asyncio"), module)) == guilty
    assert len(banned_imports(ast.parse("from unittest import mock"), module)) == 1
