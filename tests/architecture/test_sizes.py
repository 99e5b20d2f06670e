"""Size limits of files and functions; `__init__.py` files hold no logic."""

from __future__ import annotations

import ast

import pytest

from tests._support.tree import MIRROR, ROOT, SOURCE, TESTS, module_name, parse, python_files, relative

SOURCE_FILE_LINES = 500
TEST_FILE_LINES = 800
FUNCTION_LINES = 60

BENCHMARKS = ROOT / "benchmarks"


def long_functions(tree: ast.Module, name: str) -> list[str]:
    """Functions over budget; the lines of a docstring and of decorators do not count."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if ast.get_docstring(node) is not None:
            docstring = node.body[0]
            lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
        if lines > FUNCTION_LINES:
            found.append(f"{name}:{node.lineno} {node.name} has {lines} lines")
    return found


def misplaced_in_init_file(tree: ast.Module) -> list[str]:
    """Statements of an `__init__.py` that are neither docstring, import nor a dunder assignment.

    Imports may depend on ``TYPE_CHECKING``, which is then set to False there.
    """
    body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    return [f"line {node.lineno}: {ast.unparse(node)[:60]}" for node in body if not _belongs_in_init_file(node)]


def _belongs_in_init_file(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom) or ast.unparse(node) == "TYPE_CHECKING = False":
        return True
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return all(isinstance(inner, ast.ImportFrom) for inner in [*node.body, *node.orelse])
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    else:
        return False
    return all(isinstance(target, ast.Name) and target.id.startswith("__") for target in targets)


@pytest.mark.parametrize(("folder", "budget"), [(SOURCE, SOURCE_FILE_LINES), (TESTS, TEST_FILE_LINES)])
def test_every_file_keeps_its_budget_of_lines(folder, budget):
    lengths = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files(folder)}
    assert {name: length for name, length in lengths.items() if length > budget} == {}


@pytest.mark.parametrize("folder", [SOURCE, TESTS, BENCHMARKS])
def test_every_function_keeps_its_budget_of_lines(folder):
    assert [line for path in python_files(folder) for line in long_functions(parse(path), relative(path))] == []


def test_every_init_file_only_imports():
    init_files = [path for path in python_files(SOURCE) if path.name == "__init__.py"]
    # A built-in module may be a package; its __init__ then holds mount(), because the file name is the module's address.
    init_files = [path for path in init_files if not module_name(path).startswith(("amplifier.modules.", MIRROR))]
    assert {relative(path): wrong for path in init_files if (wrong := misplaced_in_init_file(parse(path)))} == {}


def test_a_planted_long_function_is_seen():
    body = "\n".join(f"    x = {number}" for number in range(FUNCTION_LINES))
    assert len(long_functions(ast.parse(f"def f():\n{body}"), "planted")) == 1
    assert long_functions(ast.parse(f'def f():\n    """Doc\n\n    string.\n    """\n{body[:-20]}'), "planted") == []


@pytest.mark.parametrize(
    "code",
    [
        *("def f(): ...", "class A: ...", "x = 1", "import os", "if True:\n    pass", "f()", "TYPE_CHECKING = True"),
        *("if TYPE_CHECKING:\n    x = 1", "if TYPE_CHECKING:\n    from .a import b\nelse:\n    f()"),
    ],
)
def test_planted_logic_in_an_init_file_is_seen(code):
    assert len(misplaced_in_init_file(ast.parse(f'"""Package."""\nfrom ._file import A\n__all__ = ["A"]\n{code}'))) == 1
