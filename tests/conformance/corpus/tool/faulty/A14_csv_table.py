"""Shows CSV text as a table; the text goes through a spool file, as the parser of the original project wants a file.

Fault: the spool file is removed only where the parse succeeds; text that is no table leaves a file in the temp directory for
every such call.
"""

from __future__ import annotations

import csv
import os
import tempfile
from typing import Any

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"
MAX_ROWS = 200


class NotATable(Exception):
    pass


def _parse(path: str) -> list[list[str]]:
    with open(path, encoding="utf-8", newline="") as file:
        rows = [row for _, row in zip(range(MAX_ROWS), csv.reader(file), strict=False) if row]
    if not rows:
        raise NotATable("the text has no rows")
    width = len(rows[0])
    for number, row in enumerate(rows, 1):
        if len(row) != width:
            raise NotATable(f"row {number} has {len(row)} fields, expected {width}")
    return rows


def _read_table(text: str) -> list[list[str]]:
    handle, path = tempfile.mkstemp(suffix=".csv", prefix="csv_table_")
    with os.fdopen(handle, "w", encoding="utf-8", errors="replace", newline="") as file:
        file.write(text)
    rows = _parse(path)
    os.unlink(path)
    return rows


class CsvTableTool:
    name = "csv_table"
    description = "Parses CSV text and returns its header and rows (200 at most)."
    input_schema = {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "CSV with a header.", "examples": ["a,b\n1,2\n"]}},
        "required": ["text"],
    }

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        text = input.get("text")
        if not isinstance(text, str):
            return ToolResult(success=False, error={"message": f"text: expected a string, got {type(text).__name__}"})
        try:
            rows = await anyio.to_thread.run_sync(_read_table, text)
        except (NotATable, csv.Error) as error:
            return ToolResult(success=False, error={"message": f"no table: {error}"})
        return ToolResult(success=True, output={"header": rows[0], "rows": rows[1:], "count": len(rows) - 1})


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    await coordinator.mount("tools", CsvTableTool())
