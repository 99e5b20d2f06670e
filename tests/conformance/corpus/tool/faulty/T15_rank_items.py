"""Ranks items by length or alphabetically and returns the first of them.

Fault: the list in the input is sorted in place; the arguments that the loop keeps for the transcript and for hooks after the call
are no longer what the model wrote.
"""

from __future__ import annotations

from typing import Any

from amplifier import ToolResult

__amplifier_module_type__ = "tool"

ORDERS = {"alphabet": lambda item: (item.casefold(), item), "length": lambda item: (len(item), item)}


class RankItemsTool:
    """Sorts words."""

    name = "rank_items"
    description = "Sorts items by 'alphabet' or by 'length' and returns the first ones."

    def get_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {
                "items": {"type": "array", "items": {"type": "string"}, "examples": [["pear", "fig", "apple"]]},
                "order": {"type": "string", "enum": sorted(ORDERS), "default": "alphabet"},
                "first": {"type": "integer", "minimum": 1, "default": 10},
            },
            "required": ["items"],
        }

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        items = input.get("items")
        order = input.get("order", "alphabet")
        first = input.get("first", 10)
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            return ToolResult(success=False, error={"message": "items: expected a list of strings"})
        if not isinstance(order, str) or order not in ORDERS:
            return ToolResult(success=False, error={"message": f"order: expected one of {', '.join(sorted(ORDERS))}"})
        if isinstance(first, bool) or not isinstance(first, int) or first < 1:
            return ToolResult(success=False, error={"message": "first: expected a whole number from 1"})
        items.sort(key=ORDERS[order])
        return ToolResult(success=True, output={"ranked": items[:first], "of": len(items)})


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    await coordinator.mount("tools", RankItemsTool())
