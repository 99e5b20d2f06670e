"""Counts the lines of a text with `wc`, in a child process.

Sound.
"""

from __future__ import annotations

import shutil
from typing import Any

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"
LIMIT = 100_000
SECONDS = 10


class LineCountTool:
    name = "line_count"
    description = "Counts the lines of a text of up to 100000 characters."

    def __init__(self, program: str) -> None:
        self._program = program

    def get_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"text": {"type": "string", "maxLength": LIMIT, "examples": ["one\ntwo\n"]}},
            "required": ["text"],
        }

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        text = input.get("text")
        if not isinstance(text, str) or len(text) > LIMIT:
            return ToolResult(success=False, error={"message": f"text: expected a string of up to {LIMIT} characters"})
        try:
            with anyio.fail_after(SECONDS):
                done = await anyio.run_process(
                    [self._program, "-l"], input=text.encode("utf-8", errors="replace"), check=False
                )
        except TimeoutError:
            return ToolResult(success=False, error={"message": f"wc did not end within {SECONDS} seconds"})
        except OSError as error:
            return ToolResult(success=False, error={"message": f"wc could not be started: {error}"})
        counted = done.stdout.decode("ascii", errors="replace").strip()
        if done.returncode != 0 or not counted.isdigit():
            return ToolResult(success=False, error={"message": f"wc failed with code {done.returncode}"})
        return ToolResult(success=True, output={"lines": int(counted)})


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    program = (config or {}).get("program") or shutil.which("wc") or "wc"
    await coordinator.mount("tools", LineCountTool(str(program)))
