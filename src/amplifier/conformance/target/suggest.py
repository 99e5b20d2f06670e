"""Suggest the command that examines something other than a module."""

from __future__ import annotations

import ast
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

from amplifier.conformance.target.locate import parsed

_LIBRARIES = {
    "pydantic_ai": ("FunctionToolset", "Tool", "tool", "tool_plain"),
    "agents": ("function_tool", "FunctionTool"),
    "langchain_core": ("tool", "StructuredTool", "Tool"),
    "langchain": ("tool",),
}
"""Names that make a tool, by library."""
_SERVERS = ("mcp", "fastmcp")


def fitting_command(reference: str) -> str | None:
    """Return the command for a reference that is not a module. None if there is none."""
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
    return (
        f"amplifier module validate {shlex.quote(str(files[0]))}"
        if path.is_dir() and len(files) == 1
        else None
    )


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
