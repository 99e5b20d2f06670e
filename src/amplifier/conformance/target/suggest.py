"""Suggest the command that examines something other than a module."""

from __future__ import annotations

import ast
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

from amplifier.conformance.target.locate import parsed
from amplifier.contracts import CONTRACTS

_LIBRARIES = {
    "pydantic_ai": ("FunctionToolset", "Tool", "tool", "tool_plain"),
    "agents": ("function_tool", "FunctionTool"),
    "langchain_core": ("tool", "StructuredTool", "Tool"),
    "langchain": ("tool",),
}
"""Names that make a tool, by library."""
_SERVERS = ("mcp", "fastmcp")


def fitting_command(reference: str) -> str | None:
    """Return the command for a reference that is not a module, or None if there is none."""
    if reference.startswith(("http://", "https://")):
        return f"amplifier validate mcp {shlex.quote(reference)}"
    path = Path(reference).expanduser()
    if not path.exists():
        return (
            f"amplifier validate mcp {shlex.quote(reference)}" if " " in reference.strip() else None
        )
    package = path / "package.json"
    if path.is_dir() and "@modelcontextprotocol/sdk" in _dependencies(package):
        return f'amplifier validate mcp "npx -y {reference}"'
    files = [path] if path.is_file() else sorted(path.glob("*.py"))
    for file in files:
        tree = parsed(file)
        if tree is None:
            continue
        imported = {name.partition(".")[0] for name in _imports(tree)}
        if imported.intersection(_SERVERS):
            return f"amplifier validate mcp {shlex.quote(f'python {file}')}"
        name = _tool_name(tree, imported)
        if name is not None:
            return f"amplifier validate python {shlex.quote(f'{file}:{name}')}"
    return _for_one_file(files[0], is_given=path.is_file()) if len(files) == 1 else None


def _for_one_file(file: Path, *, is_given: bool) -> str | None:
    """Return the command for a file on its own: a module that lacks its type, or a function."""
    tree = parsed(file)
    functions = [
        node.name
        for node in (() if tree is None else tree.body)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    if tree is not None and "mount" in functions:
        module_type = None if _declares_type(tree) else _mounted_type(tree)
        words = ["amplifier", "module", "validate", str(file)]
        words += ["--type", module_type] if module_type else []
        return shlex.join(words) if module_type or not is_given else None
    public = [name for name in functions if not name.startswith("_")]
    if not public:
        return None
    return f"amplifier validate python {shlex.quote(f'{file}:{public[0]}')}"


def _declares_type(tree: ast.Module) -> bool:
    targets = [each for node in tree.body if isinstance(node, ast.Assign) for each in node.targets]
    return any(
        isinstance(each, ast.Name) and each.id == "__amplifier_module_type__" for each in targets
    )


def _mounted_type(tree: ast.Module) -> str | None:
    """Return the type of a module by the mount point in its source, or None if it names none."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr == "register" and getattr(node.func.value, "attr", "") == "hooks":
            return "hook"
        place = node.args[0] if node.func.attr == "mount" and node.args else None
        if isinstance(place, ast.Constant):
            for contract in CONTRACTS.values():
                if contract.mount_point == place.value:
                    return contract.module_type
    return None


def _dependencies(package: Path) -> dict[str, object]:
    try:
        found = json.loads(package.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    needed = found.get("dependencies") if isinstance(found, dict) else None
    return needed if isinstance(needed, dict) else {}


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""


def _tool_name(tree: ast.Module, imported: set[str]) -> str | None:
    """Return the name of the first tool of another library in a file."""
    makers = {name for library in imported for name in _LIBRARIES.get(library, ())}
    for node in tree.body if makers else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if any(_called(decorator) in makers for decorator in node.decorator_list):
                return node.name
        elif (
            isinstance(node, ast.Assign)
            and _called(node.value) in makers
            and isinstance(node.targets[0], ast.Name)
        ):
            return node.targets[0].id
    return None


def _called(node: ast.expr) -> str:
    called = node.func if isinstance(node, ast.Call) else node
    return (
        called.attr
        if isinstance(called, ast.Attribute)
        else called.id
        if isinstance(called, ast.Name)
        else ""
    )
