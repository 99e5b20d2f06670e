"""Converts lengths between units; further units come from the configuration.

Fault: the schema is built from a list on the class, and each request for the schema adds the configured units to that list once
more, so that the enum grows with every request to the model.
"""

from __future__ import annotations

from typing import Any

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class UnitTool:
    name = "convert_length"
    description = "Converts a length from one unit to another."

    METRES = {"m": 1.0, "km": 1000.0, "cm": 0.01, "mile": 1609.344, "foot": 0.3048}
    UNITS = list(METRES)

    def __init__(self, extra: dict[str, float]) -> None:
        self._metres = {**self.METRES, **extra}
        self._extra = extra

    def get_schema(self) -> dict[str, Any]:
        units = self.UNITS
        units.extend(self._extra)
        return {
            "type": "object",
            "properties": {
                "value": {"type": "number", "examples": [3]},
                "from": {"type": "string", "enum": list(units)},
                "to": {"type": "string", "enum": list(units)},
            },
            "required": ["value", "from", "to"],
        }

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        value, source, target = input.get("value"), input.get("from"), input.get("to")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return ToolResult(success=False, error={"message": "value: expected a number"})
        for key, unit in (("from", source), ("to", target)):
            if not isinstance(unit, str) or unit not in self._metres:
                return ToolResult(success=False, error={"message": f"{key}: expected one of {', '.join(self._metres)}"})
        try:
            result = value * self._metres[source] / self._metres[target]
        except OverflowError:
            return ToolResult(success=False, error={"message": "value: too large"})
        return ToolResult(success=True, output={"value": result, "unit": target})


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    extra = {"yard": 0.9144, **((config or {}).get("units") or {})}
    await coordinator.mount("tools", UnitTool(extra))
