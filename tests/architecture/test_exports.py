"""Public names: `__all__` is exact, and every name has one spelling besides the façade's.

The order of `__all__` is ruff's business (RUF022): constants, classes, the rest.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests._support.tree import SOURCE, load, parse, public_module_paths

PUBLIC = public_module_paths()

UNLISTED = {
    "amplifier.errors": {"Problem"},  # the alias explains a field; no user needs to import it
}
"""Public-looking names that stay out of `__all__`. This list may only shrink."""


def listed(name: str) -> list[str]:
    """What a module lists as public; nothing, if it has no list, and then it may bind no public name either."""
    return list(getattr(load(name), "__all__", []))


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """What a file does at its top level, with what it shows to type checkers only."""
    for node in tree.body:
        if (
            isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
        ):
            yield from node.body
        else:
            yield node


def bound_names(tree: ast.Module, *, is_init_file: bool) -> set[str]:
    """Public names a file binds itself at its top level; for an `__init__.py`, those it imports."""
    names: set[str] = set()
    for node in statements(tree):
        if is_init_file and isinstance(node, ast.ImportFrom) and node.module != "__future__":
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")} - {"TYPE_CHECKING"}


@pytest.mark.parametrize("name", PUBLIC)
def test_all_lists_public_names_exactly(name):
    path = PUBLIC[name]
    expected = bound_names(parse(path), is_init_file=path.name == "__init__.py") - UNLISTED.get(
        name, set()
    )
    assert sorted(listed(name)) == sorted(expected)


@pytest.mark.parametrize("name", UNLISTED)
def test_exception_is_still_needed(name):
    path = PUBLIC[name]
    assert UNLISTED[name] <= bound_names(parse(path), is_init_file=path.name == "__init__.py")


def test_every_public_name_exists():
    missing = [
        f"{name}.{public}"
        for name in PUBLIC
        for public in listed(name)
        if not hasattr(load(name), public)
    ]
    assert missing == []


def test_every_class_and_function_has_one_spelling():
    spellings: defaultdict[int, set[str]] = defaultdict(set)
    names: dict[int, str] = {}
    for module in PUBLIC:
        for public in listed(module):
            thing = getattr(load(module), public)
            if isinstance(thing, type) or callable(
                thing
            ):  # equal constants may be one object by accident
                spellings[id(thing)].add(module)
                names[id(thing)] = public
    assert {names[key]: modules for key, modules in spellings.items() if len(modules) > 1} == {}


def test_facade_only_repeats_names_of_packages():
    facade = load("amplifier")
    in_packages = {
        id(getattr(load(module), public)) for module in PUBLIC for public in listed(module)
    }
    names = [name for name in facade.__all__ if name != "__version__"]
    assert sorted(names) == sorted(bound_names(parse(SOURCE / "__init__.py"), is_init_file=True))
    assert [name for name in names if id(getattr(facade, name)) not in in_packages] == []


def test_facade_names_match_type_checkers_view():
    facade = load("amplifier")
    seen = 0
    for node in statements(parse(SOURCE / "__init__.py")):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                assert getattr(facade, (alias.asname or alias.name)) is getattr(
                    load(node.module), alias.name
                ), alias.name
                seen += 1
    assert seen >= len(facade.__all__)
