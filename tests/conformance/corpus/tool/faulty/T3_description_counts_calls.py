"""Picks an item.

Planted: the description shows how often the tool was used.
"""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Pick:
    name = "pick_item"
    input_schema = {
        "type": "object",
        "properties": {"items": {"type": "array", "items": {"type": "string"}, "minItems": 1}},
        "required": ["items"],
    }

    def __init__(self):
        self.used = 0

    @property
    def description(self):
        return "Picks the first item in alphabetical order." + (f" Used {self.used} times." if self.used > 1 else "")

    async def execute(self, input):
        items = input.get("items")
        if not isinstance(items, list) or not items or not all(isinstance(item, str) for item in items):
            return ToolResult(success=False, error={"message": "items has to be a list of texts, not empty"})
        self.used += 1
        return ToolResult(output=min(items))


async def mount(coordinator, config):
    await coordinator.mount("tools", Pick())
