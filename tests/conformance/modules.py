"""Small modules for the tests of the kit itself; the large collection is in corpus/."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import anyio

from amplifier.conformance import Report, check_module

SOUND_TOOL = """
    from amplifier import ToolResult

    __amplifier_module_type__ = "tool"


    class Echo:
        name = "echo"
        description = "Repeats the text."

        def get_schema(self):
            return {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

        async def execute(self, input):
            text = input.get("text")
            if not isinstance(text, str):
                return ToolResult(success=False, error={"message": "text: expected a string"})
            return ToolResult(success=True, output=text)


    async def mount(coordinator, config):
        coordinator.mount("tools", Echo())
"""


def write_module(folder: Path, source: str, name: str = "tool_echo.py") -> Path:
    """Put a module into a file of its own."""
    file = folder / name
    file.write_text(dedent(source), encoding="utf-8")
    return file


def write_project(
    folder: Path, source: str, *, entry_points: str = 'tool-echo = "tool_echo:mount"'
) -> Path:
    """Put a module into a project of its own, with a package and a pyproject.toml."""
    root = folder / "amplifier-module-tool-echo"
    (root / "tool_echo").mkdir(parents=True)
    (root / "tool_echo" / "__init__.py").write_text(dedent(source), encoding="utf-8")
    table = f'[project.entry-points."amplifier.modules"]\n{entry_points}\n' if entry_points else ""
    (root / "pyproject.toml").write_text(
        f'[project]\nname = "x"\nversion = "1"\n{table}', encoding="utf-8"
    )
    return root


def check(target: Any, **options: Any) -> Report:
    """Examine a module."""
    return anyio.run(partial(check_module, target, **options))


def with_status(report: Report, status: str) -> set[str]:
    """The clauses that a report lists as kept, broken or not checked."""
    return {outcome.id for outcome in report.clauses if outcome.status == status}
