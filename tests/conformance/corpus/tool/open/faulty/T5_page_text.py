"""Shows a long text page by page, so that a model need not read all of it at once.

Fault: `has_more` is computed with an off-by-one error; if exactly one line remains after a page, the model is told that it has seen
everything.
"""

from __future__ import annotations

from typing import Any

from amplifier import ToolResult

__amplifier_module_type__ = "tool"
DEFAULT_SIZE = 2
MAX_SIZE = 500


def _whole_number(value: Any, default: int) -> int | None:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value


class PageTextTool:
    name = "page_text"
    description = (
        "Returns one page of a text. Give the text, the page (from 0) and how many lines a page has. "
        "Go on with the next page as long as has_more is true."
    )

    def get_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {
                "text": {"type": "string", "examples": ["one\ntwo\nthree\n"]},
                "page": {"type": "integer", "minimum": 0, "default": 0},
                "size": {"type": "integer", "minimum": 1, "maximum": MAX_SIZE, "default": DEFAULT_SIZE},
            },
            "required": ["text"],
        }

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        text = input.get("text")
        if not isinstance(text, str):
            return ToolResult(success=False, error={"message": "text: expected a string"})
        page, size = _whole_number(input.get("page"), 0), _whole_number(input.get("size"), DEFAULT_SIZE)
        if page is None or page < 0:
            return ToolResult(success=False, error={"message": "page: expected a whole number from 0"})
        if size is None or not 1 <= size <= MAX_SIZE:
            return ToolResult(success=False, error={"message": f"size: expected a number from 1 to {MAX_SIZE}"})
        lines = text.split("\n")
        start = page * size
        end = start + size
        shown = lines[start:end]
        return ToolResult(
            success=True,
            output={"lines": shown, "page": page, "total": len(lines), "has_more": end < len(lines) - 1},
        )


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    await coordinator.mount("tools", PageTextTool())
