"""Static checks of every module: entry point, mount, on_session_ready and declared type.

They read metadata and syntax trees. Where a tree does not show the answer, the check reports that and leaves the clause to
the checks that run the module.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from amplifier.conformance.checks.registry import check
from amplifier.conformance.target.locate import EXPECTED_MOUNT, Target, parsed
from amplifier.conformance.target.mounted import Fault, Unexamined
from amplifier.contracts import CONTRACTS
from amplifier.plan import is_module_id


@check("A1", kind="static")
def declares_an_entry_point(target: Target) -> Iterator[Fault]:
    """Reads the project's metadata for an entry point that leads to a file which can be parsed."""
    if target.project is not None and not target.declared:
        what = "pyproject.toml declares no entry point in the group 'amplifier.modules'"
        yield Fault(clause="A1", what=what, location=target.project.name)
    if target.origin == "folder":
        for module_id, reference in target.declared.items():
            name = reference.partition(":")[0].strip()
            if name != target.import_name and not _exists(target, name):
                what = f"the entry point {module_id!r} refers to {name!r}, and there is no such file in the project"
                yield Fault(clause="A1", what=what, location="pyproject.toml")
    for file in target.sources():
        if parsed(file) is None:
            yield Fault(clause="A1", what=f"{file.name} cannot be parsed, so it cannot be imported", location=file.name)


@check("A2", kind="static")
def is_well_named(target: Target) -> Iterator[Fault]:
    """Compares the names of the entry points with the grammar of module ids."""
    for module_id in target.declared:
        if not is_module_id(module_id):
            grammar = "lower-case letters, digits, '-' and '_', starting with a letter, at most 64 characters"
            what = f"the entry point is called {module_id!r}; expected {grammar}"
            yield Fault(clause="A2", what=what, location="pyproject.toml")


@check("A3", kind="static")
def has_a_mount(target: Target) -> Iterator[Fault]:
    """Reads the definition of mount: present, async or a context manager, callable with coordinator and config."""
    _require_tree(target)
    found = target.definition(target.attribute)
    if found is None and target.functions():
        return  # they are mounted as they are
    if found is None and not _is_dynamic(target, target.attribute):
        what = f"there is no {target.attribute!r} in {target.import_name}; expected {EXPECTED_MOUNT}"
        yield Fault(clause="A3", what=what, location=target.file.name)
        return
    node = None if found is None else found.node
    if found is None or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        raise Unexamined(f"{target.file.name} does not show how {target.attribute!r} is defined")
    if not _takes(node, 2):
        what = f"mount takes ({ast.unparse(node.args)}); expected one that can be called as mount(coordinator, config)"
        yield Fault(clause="A3", what=what, location=found.location)
    if isinstance(node, ast.FunctionDef):
        # A plain function may return a coroutine or a manager; only one that surely returns neither is a fault.
        answers = [each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value is not None]
        local = {each.name for each in ast.walk(node) if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))}
        if node.decorator_list or any(
            not isinstance(value, (ast.Constant, ast.Lambda)) and getattr(value, "id", "") not in local
            for value in answers
        ):
            raise Unexamined(f"{found.file.name} does not show what the plain function mount returns")
        what = "mount is a plain function; expected async def, or a factory of async context managers"
        yield Fault(clause="A3", what=what, location=found.location)


@check("A6", kind="static")
def is_told_when_ready(target: Target) -> Iterator[Fault]:
    """Reads the definition of on_session_ready, if there is one: async, and takes the coordinator alone."""
    _require_tree(target)
    found = target.definition("on_session_ready")
    if found is None and not _is_dynamic(target, "on_session_ready"):
        return  # there is none
    node = None if found is None else found.node
    if found is None or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        raise Unexamined(f"{target.file.name} does not show whether there is an on_session_ready")
    if not _takes(node, 1):
        what = f"on_session_ready takes ({ast.unparse(node.args)}); expected on_session_ready(coordinator)"
        yield Fault(clause="A6", what=what, location=found.location)
    if isinstance(node, ast.FunctionDef):
        if node.decorator_list:
            raise Unexamined(f"{found.file.name} does not show what its decorators make of on_session_ready")
        what = "on_session_ready is not async, so the kernel does not call it"
        yield Fault(clause="A6", what=what, location=found.location)


@check("A20", kind="static")
def declares_its_type(target: Target) -> Iterator[Fault]:
    """Reads __amplifier_module_type__."""
    _require_tree(target)
    found = target.definition("__amplifier_module_type__")
    declared = target.constant("__amplifier_module_type__")
    if found is None and not target.functions():
        what = "the module does not declare its type as __amplifier_module_type__"
        yield Fault(clause="A20", what=what, location=target.file.name)
    elif found is not None and declared is None:
        raise Unexamined(f"{target.file.name} does not show what __amplifier_module_type__ is")
    elif found is not None and declared not in CONTRACTS:
        what = f"__amplifier_module_type__ is {declared!r}; expected one of {', '.join(CONTRACTS)}"
        yield Fault(clause="A20", what=what, location=found.location)


def _require_tree(target: Target) -> None:
    """Make sure that the module's own file can be parsed.

    Raises:
        Unexamined: It cannot.
    """
    if parsed(target.file) is None:
        raise Unexamined(f"{target.file.name} cannot be parsed")


def _exists(target: Target, import_name: str) -> bool:
    base = target.search_path or target.folder
    path = base.joinpath(*import_name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def _takes(node: ast.FunctionDef | ast.AsyncFunctionDef, count: int) -> bool:
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    least = len(positional) - len(arguments.defaults)
    keywords_needed = any(default is None for default in arguments.kw_defaults)
    return least <= count and (len(positional) >= count or arguments.vararg is not None) and not keywords_needed


def _is_dynamic(target: Target, attribute: str) -> bool:
    """Whether a name could be defined in a way that the search for definitions does not see: then the file has the word."""
    text = target.file.read_text(encoding="utf-8", errors="replace")
    return re.search(rf"\b{re.escape(attribute.partition('.')[0])}\b|import \*|__getattr__|globals\(", text) is not None
