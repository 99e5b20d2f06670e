"""Which modules are installed, asked from synchronous code. Above: the commands. Below: the loader, which reads files only."""

from __future__ import annotations

import ast
import logging
from pathlib import Path

import anyio

from amplifier.loading import ModuleLoader
from amplifier.models import ModuleInfo
from amplifier.modules import __file__ as _built_in

__all__ = ["installed_ids", "installed_modules", "one_line_about"]


def installed_modules() -> list[ModuleInfo]:
    """Every module that can be loaded by its id, in order of kind and id."""
    found = anyio.run(ModuleLoader().discover)
    order = ["orchestrator", "context", "provider", "tool", "hook", "resolver"]
    return sorted(found, key=lambda info: (order.index(info.type), info.id))


def installed_ids() -> list[str]:
    """Their ids, for completion: nothing may be written to the terminal then."""
    logging.disable(logging.CRITICAL)
    try:
        return [info.id for info in installed_modules()]
    finally:
        logging.disable(logging.NOTSET)


def one_line_about(info: ModuleInfo) -> str:
    """What a module is: for a built-in the first line of its own documentation, else what its distribution says."""
    folder = Path(_built_in).parent
    name = info.id.replace("-", "_")
    for file in (folder / f"{name}.py", folder / name / "__init__.py"):
        try:
            documented = ast.get_docstring(ast.parse(file.read_bytes()))
        except (OSError, SyntaxError, ValueError):
            continue
        if documented:
            return documented.partition("\n")[0].removeprefix(f"{info.id}: ").removesuffix(".")
    return info.description
