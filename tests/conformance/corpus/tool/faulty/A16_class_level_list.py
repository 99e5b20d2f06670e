"""Planted: the todos of all sessions are in one list."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Todos:
    name = "todos"
    description = "Adds to a list and shows it."
    items = []

    def get_schema(self):
        return {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}

    async def execute(self, input):
        item = input.get("item")
        if not isinstance(item, str):
            return ToolResult(success=False, error={"message": "item must be a string"})
        self.items.append(item)
        return ToolResult(output=list(self.items))


async def mount(coordinator, config):
    await coordinator.mount("tools", Todos())
