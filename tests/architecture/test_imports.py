"""Imports that `lint-imports` cannot judge: the façade is never imported from inside, and an `__init__.py` imports only from its own package.

The layers are the import-linter contracts of pyproject.toml, run by ``make check``.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests._support.tree import MIRROR, SOURCE, TESTS, module_name, parse, python_files, relative

BANNED_IN_SOURCE = {"asyncio", "unittest"}
MAY_IMPORT_ASYNCIO = (
    "amplifier.compat",
    "amplifier.testing",
    "amplifier.kernel.runtime.backend",
    "amplifier.kernel.runtime.sections",
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


def package_of(path: Path) -> str:
    """The package that relative imports of a source file start from."""
    name = module_name(path)
    return name if path.name == "__init__.py" else name.rpartition(".")[0]


def banned_imports(tree: ast.AST, module: str) -> list[str]:
    """Imports of banned standard modules in one source file."""
    exempt = {"asyncio"} if module.startswith(MAY_IMPORT_ASYNCIO) else set()
    roots = {(line, name.partition(".")[0]) for line, name in imported_modules(tree, module)}
    return [f"{module}:{line} imports {root}" for line, root in sorted(roots) if root in BANNED_IN_SOURCE - exempt]


def test_no_source_file_imports_the_facade():
    guilty = [
        f"{relative(path)}:{line}"
        for path in python_files(SOURCE)
        for line, name in imported_modules(parse(path), package_of(path))
        if name == "amplifier"
    ]
    assert guilty == []


def test_an_init_file_imports_only_from_its_own_package():
    init_files = [path for path in python_files(SOURCE) if path.name == "__init__.py" and path.parent != SOURCE]
    init_files = [path for path in init_files if not module_name(path).startswith(MIRROR)]
    guilty = [
        f"{relative(path)}:{line} reaches into {name}"
        for path in init_files
        for line, name in imported_modules(parse(path), package_of(path))
        if name.startswith("amplifier.")
        and not name.startswith(f"{package_of(path)}.")
        # A built-in module that is a package builds on the contracts in its __init__, like any third-party module.
        and not package_of(path).startswith("amplifier.modules.")
    ]
    assert guilty == []


def test_asyncio_and_unittest_are_named_only_where_they_must_be():
    assert [line for path in python_files(SOURCE) for line in banned_imports(parse(path), module_name(path))] == []


def test_no_test_uses_mocks():
    guilty = [
        f"{relative(path)}:{line}"
        for path in python_files(TESTS)
        for line, name in imported_modules(parse(path), "tests")
        if name.startswith("unittest")
    ]
    assert guilty == []


def test_every_source_file_has_a_docstring():
    assert [relative(path) for path in python_files(SOURCE) if not ast.get_docstring(parse(path))] == []


@pytest.mark.parametrize(
    ("code", "package", "expected"),
    [
        ("import amplifier", "amplifier.kernel", "amplifier"),
        ("from amplifier import errors", "amplifier.kernel", "amplifier"),
        ("from .. import errors", "amplifier.kernel", "amplifier"),
        ("from . import errors", "amplifier", "amplifier"),
        ("from ..errors import A", "amplifier.kernel", "amplifier.errors"),
        ("from ._file import A", "amplifier.kernel", "amplifier.kernel._file"),
        ("def f():\n    import asyncio.tasks", "amplifier.kernel", "asyncio.tasks"),
    ],
)
def test_the_reader_of_imports_resolves_them(code, package, expected):
    assert [name for _, name in imported_modules(ast.parse(code), package)] == [expected]


@pytest.mark.parametrize(
    ("module", "guilty"),
    [
        ("amplifier.kernel.hooks.registry", 1),
        ("amplifier.kernel.runtime.backend", 0),
        ("amplifier.testing.virtual_time", 0),
    ],
)
def test_a_planted_asyncio_import_is_seen_where_it_is_banned(module, guilty):
    assert len(banned_imports(ast.parse("import asyncio"), module)) == guilty
    assert len(banned_imports(ast.parse("from unittest import mock"), module)) == 1
