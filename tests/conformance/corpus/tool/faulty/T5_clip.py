"""Shortens a text to a number of bytes, for services that limit their fields by bytes.

Fault: the bytes are cut at the limit and decoded again strictly; a character of several bytes at the cut raises
UnicodeDecodeError. ASCII never shows it.
"""

from __future__ import annotations

from typing import Any

from amplifier import ToolResult
from amplifier.contracts import Coordinator

__amplifier_module_type__ = "tool"

DEFAULT_LIMIT = 280


class ClipTool:
    """Clips texts."""

    name = "clip_text"
    description = "Shortens a text so that it has at most so many bytes of UTF-8 (280 unless told)."

    def __init__(self, limit: int) -> None:
        self._limit = limit

    @property
    def input_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "bytes": {"type": "integer", "minimum": 1, "maximum": 10_000},
            },
            "required": ["text"],
        }

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        text = input.get("text")
        if not isinstance(text, str):
            return self._wrong("text: expected a string")
        limit = input.get("bytes", self._limit)
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= 10_000:
            return self._wrong("bytes: expected a whole number from 1 to 10000")
        # A lone surrogate cannot be encoded; the service would refuse it as well.
        encoded = text.encode("utf-8", errors="replace")
        if len(encoded) <= limit:
            return ToolResult(success=True, output={"text": encoded.decode("utf-8"), "clipped": False})
        return ToolResult(success=True, output={"text": encoded[:limit].decode("utf-8"), "clipped": True})

    def _wrong(self, message: str) -> ToolResult:
        return ToolResult(success=False, error={"type": "input", "message": message})


async def mount(coordinator: Coordinator, config: dict[str, Any]) -> None:
    await coordinator.mount("tools", ClipTool(int(config.get("limit", DEFAULT_LIMIT))))
