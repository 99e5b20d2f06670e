"""Counts the days between two dates, with or without a time of day and an offset.

Fault: a time with an offset and one without cannot be subtracted; the TypeError of that escapes, since only ValueError is expected.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


def parse(text: Any) -> datetime:
    """Read ISO 8601, the Z for UTC included."""
    if not isinstance(text, str):
        raise ValueError(f"expected a date such as 2024-05-01, got {text!r}")
    return datetime.fromisoformat(text.strip())


class DaysBetween:
    name = "days_between"
    description = (
        "Counts the whole days from one date to another. Both are ISO 8601: 2024-05-01 or 2024-05-01T12:00:00Z."
    )

    def get_schema(self) -> dict[str, Any]:
        moment = {"type": "string", "format": "date-time"}
        return {
            "type": "object",
            "properties": {
                "start": {**moment, "examples": ["2024-05-01", "2024-05-01T12:00:00Z"]},
                "end": {**moment, "examples": ["2024-12-24", "2024-12-24T18:00:00+01:00"]},
            },
            "required": ["start", "end"],
        }

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        try:
            start, end = parse(input.get("start")), parse(input.get("end"))
        except ValueError as error:
            return ToolResult(success=False, error={"message": f"not a date: {error}"})
        days = (end - start).days
        direction = "later" if days > 0 else "earlier" if days < 0 else "the same day"
        return ToolResult(success=True, output={"days": days, "direction": direction})


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    await coordinator.mount("tools", DaysBetween())
