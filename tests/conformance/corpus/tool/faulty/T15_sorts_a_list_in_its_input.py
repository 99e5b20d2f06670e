"""Planted: it sorts the caller's list in place."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Sort:
    name = "sort_texts"
    description = "Sorts texts."

    def get_schema(self):
        items = {"type": "array", "items": {"type": "string"}}
        return {"type": "object", "properties": {"items": items}, "required": ["items"]}

    async def execute(self, input):
        items = input.get("items")
        if not isinstance(items, list):
            return ToolResult(success=False, error={"message": "items must be a list"})
        items.sort(key=str, reverse=True)
        return ToolResult(output=list(items))


async def mount(coordinator, config):
    await coordinator.mount("tools", Sort())
